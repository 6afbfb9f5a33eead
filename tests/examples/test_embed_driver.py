"""The shortest program around the driver is short, and works."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "embed_driver.py"
MAX_CODE_LINES = 25


def code_lines(path: pathlib.Path) -> int:
    """Lines that hold code: neither blank nor only a comment; a docstring counts."""
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with tokenize.open(path) as file:
        tokens = [t for t in tokenize.generate_tokens(file.readline) if t.type not in skip]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)})


def test_it_is_short() -> None:
    assert code_lines(SCRIPT) <= MAX_CODE_LINES


@pytest.mark.slow
def test_it_solves_cart_pole(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    reached = re.fullmatch(r"average return: (\d+\.\d)", done.stdout.strip().splitlines()[-1])
    assert reached, done.stdout[-3000:]
    assert float(reached.group(1)) >= 475.0
