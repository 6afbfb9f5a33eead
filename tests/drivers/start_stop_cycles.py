"""Starts and stops a driver as often as the argument says and prints, as JSON, by how much threads, file handles and memory grew.

A process of its own: in one that ran other tests the allocator's own movements (34 MB were seen) hide a leak.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading

import psutil

import alf  # noqa: F401  (sets TensorFlow up)
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from tests.drivers.counting import CountingAlgorithm, make_envs

WARM_UP = 50


def _cycle(algorithm: CountingAlgorithm) -> None:
    driver = AsyncOffPolicyDriver(make_envs(2, 1), algorithm, 0, 2, 1, stepping="host", random_seed=1)
    driver.start()
    driver.run_async()
    algorithm.train()
    driver.stop()
    algorithm.batches.clear()


def _resources() -> dict[str, int]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # only what is held, not what the allocator keeps for later
    process = psutil.Process()
    return {"threads": threading.active_count(), "handles": process.num_fds(), "memory": process.memory_info().rss}


def main(cycles: int) -> None:
    algorithm = CountingAlgorithm(make_envs(1, 1)[0])
    for _ in range(WARM_UP):  # TensorFlow's own pools and caches fill up first
        _cycle(algorithm)
    before = _resources()
    for _ in range(cycles):
        _cycle(algorithm)
    after = _resources()
    print(json.dumps({name: after[name] - before[name] for name in before}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
