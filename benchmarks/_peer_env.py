"""The peers' own virtual environment, made once in the cache folder by pip."""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
import subprocess
import sys

from benchmarks import _machine

# setuptools: Sample Factory imports pkg_resources. The CPU build of torch is taken where the index has it.
_PACKAGES = ("torch==2.13.0", "stable-baselines3==2.9.2", "sample-factory==2.1.1", "setuptools<82", "psutil")


def python(given: str | None = None) -> str:
    """Path of a Python that has the peers; makes the environment when it is not there.

    Args:
      given: an interpreter to use instead of making one.
    """
    if given:
        return given
    folder = _machine.CACHE / "peers"
    interpreter = folder / "bin" / "python"
    made = folder / ".made"
    if not made.exists() or made.read_text() != " ".join(_PACKAGES):
        _machine.progress(f"making the peers' environment in {folder} (a few minutes): {', '.join(_PACKAGES)}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(interpreter), "-m", "pip", "install", "--quiet", *_PACKAGES], check=True)
        pathlib.Path(made).write_text(" ".join(_PACKAGES))
    return str(interpreter)


def add(interpreter: str, packages: Sequence[str]) -> None:
    """Installs what some environments need beside; nothing happens where it is there."""
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *packages], check=True)


def versions(interpreter: str) -> dict[str, str]:
    """Versions of the peers in that environment."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({n: m.version(n) for n in"
        " ('torch', 'stable-baselines3', 'sample-factory', 'gymnasium', 'numpy')}))"
    )
    result = _machine.last_json([interpreter, "-c", code], timeout=60)
    return {name: value for name, value in result.items() if name != "started"}
