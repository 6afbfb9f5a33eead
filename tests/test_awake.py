"""The clock of the tests' limits stands still with the machine, and goes on with it."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import psutil

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from awake import awake_secs
before, began = awake_secs(), time.monotonic()
print("begun", flush=True)
sys.stdin.readline()
print(awake_secs() - before, time.monotonic() - began, flush=True)
"""


def _measured(stopped_secs: float) -> tuple[float, float]:
    """What the clock and a plain one say of a process that is stopped for so long, and runs for a second."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(_ROOT / "tests")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    psutil.Process(process.pid).suspend()
    time.sleep(stopped_secs)
    psutil.Process(process.pid).resume()
    time.sleep(1)
    output, _ = process.communicate("\n", timeout=60)
    awake, plain = map(float, output.split())
    return awake, plain


def test_the_clock_stands_still_while_the_process_does() -> None:
    awake, plain = _measured(3.0)
    assert plain > 4
    assert 0.5 < awake < plain - 2


def test_the_clock_goes_as_any_other_otherwise() -> None:
    awake, plain = _measured(0.0)
    assert 0.5 < awake <= plain + 0.1
