"""A driver whose process is stopped for longer than any limit, and goes on."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import psutil
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Batches of a second each, limits of three.
_DRIVER = """
from alf.utils import standstill
standstill._LONGEST_GAP_SECS = 1.5
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.testing import CountingEnvironment, FaultyEnvironment
from tests.drivers.counting import CountingAlgorithm
env = FaultyEnvironment(CountingEnvironment(2), sleep_per_step=0.5)
driver = AsyncOffPolicyDriver([env], CountingAlgorithm(env), 0, 2, 1, random_seed=1, stall_timeout_secs=3.0)
driver.start()
for _ in range(6):
    driver.run_async()
    print("batch", flush=True)
driver.stop()
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_goes_on_where_it_was() -> None:
    command = [sys.executable, "-c", _DRIVER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(2):
                assert process.stdout.readline() == "batch\n"
            psutil.Process(process.pid).suspend()
            time.sleep(6.0)
            psutil.Process(process.pid).resume()
            said, errors = process.stdout.read(), process.stderr.read()
            process.wait(60)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert said == "batch\n" * 4
