"""Resolves the lock files anew: a fresh virtual environment each, what pip chooses, written down."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Lock file: what is asked of pip on top of the package itself.
LOCKS = {
    "requirements.lock": [".", "setuptools>=78.1.1,<82"],
    "requirements-dev.lock": [
        ".[dev,envpool,onnx,atari,mujoco,box2d,multiagent,distributed]",
        "setuptools>=78.1.1,<82",
    ],
    "requirements-docs.lock": ["mkdocs-material>=9.5"],
    "requirements-oldest.lock": [".", "tensorflow==2.15.1", "setuptools>=78.1.1,<82"]
    + ["hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist"],
}


def resolve(wanted: list[str]) -> list[str]:
    """The `name==version` lines of a fresh environment in which `wanted` is installed."""
    with tempfile.TemporaryDirectory() as folder:
        python = pathlib.Path(folder, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, cwd=ROOT)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        frozen = subprocess.run(
            [python, "-m", "pip", "freeze", "--all", "--exclude", "alf", "--exclude", "pip"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    lines = frozen.split("\n")
    odd = [line for line in lines if line and not re.fullmatch(r"[\w.-]+==[\w.+!]+", line)]
    if odd:
        raise SystemExit(f"these packages have no plain version: {odd}: install them from the index.")
    return [line for line in lines if line]


def main() -> None:
    """Writes every lock file."""
    for name, wanted in LOCKS.items():
        lines = resolve(wanted)
        header = f"# Resolved by `make locks` for Python 3.11 on Linux: {' '.join(wanted)}\n"
        (ROOT / name).write_text(header + "\n".join(lines) + "\n")
        print(f"{name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
