"""Resolves the lock files anew: a fresh virtual environment each, what pip chooses, written down."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Every lock installs on it, whichever 3.11 resolved the lock.
OLDEST_PYTHON = "3.11.0"

# Lock file: what is asked of pip on top of the package itself.
LOCKS = {
    "requirements.lock": [".", "setuptools>=78.1.1,<82"],
    "requirements-dev.lock": [
        ".[dev,envpool,onnx,atari,mujoco,box2d,multiagent,distributed,notebook]",
        "setuptools>=78.1.1,<82",
    ],
    # pymdown-extensions 13 asks for Python 3.11.5, and Debian 12 has 3.11.2. ruff breaks the lines of signatures.
    "requirements-docs.lock": ["mkdocs-material>=9.5", "mkdocstrings[python]", "pymdown-extensions<13", "ruff"],
    "requirements-oldest.lock": [".", "tensorflow==2.15.1", "setuptools>=78.1.1,<82"]
    + ["hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist"],
}


def too_new(installed: list[dict[str, Any]]) -> list[str]:
    """Those of `pip inspect`'s packages that do not install on `OLDEST_PYTHON`, each with the Python it asks for."""
    metadata = [package["metadata"] for package in installed]
    return [
        f"{each['name']} {each['version']} asks for Python {each['requires_python']}"
        for each in metadata
        if OLDEST_PYTHON not in SpecifierSet(each.get("requires_python") or "")
    ]


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
        inspected = subprocess.run([python, "-m", "pip", "inspect"], check=True, capture_output=True, text=True).stdout
    if refused := too_new(json.loads(inspected)["installed"]):
        raise SystemExit(f"{'; '.join(refused)}: ask for an older one in LOCKS, with the reason.")
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
