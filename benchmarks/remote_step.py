"""One step of an environment on a worker over Ray, beside the same step in this process.

python -m benchmarks.remote_step [--seconds 5] [--rows 16 64 256]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import threading
import time
from typing import Any

from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.ray_engine import RayEngine
from alf.environments import BatchedEnvironment
import numpy as np
import psutil

from benchmarks import _machine, _setup

THREADS = 2


def make_environments(number: int, life: int, rows: int) -> list[BatchedEnvironment]:
    """The environments of a worker."""
    return [_setup.cart_pole(rows, seed=1000 * life + 10 * number + i) for i in range(THREADS)]


def of_rows(rows: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of one batched step: here, on a worker, and on a worker whose environments take turns."""
    local = make_environments(0, 0, rows)
    pool = EnvironmentPool(RayEngine(), 1, THREADS, "benchmarks.remote_step:make_environments", {"rows": rows})
    try:
        remote = pool.start()
        here = _milliseconds(local[:1], seconds)
        one = _milliseconds(remote[:1], seconds)
        worker = psutil.Process(pool.facts()[0]["pid"])
        busy_here, busy_there, begin = time.process_time(), _cpu(worker), time.monotonic()
        turns = _milliseconds(remote, seconds)
        steps = (time.monotonic() - begin) / turns * 1e3
        return {
            "rows": rows,
            "here_ms": here,
            "worker_ms": one,
            "worker_in_turns_ms": turns,
            "learner_cpu_ms": (time.process_time() - busy_here) / steps * 1e3,
            "worker_cpu_ms": (_cpu(worker) - busy_there) / steps * 1e3,
        }
    finally:
        pool.stop()
        for env in local:
            env.close()


def _milliseconds(envs: Sequence[BatchedEnvironment], seconds: float) -> float:
    """Of one step, when each environment is stepped in a thread of its own."""
    steps = [0] * len(envs)
    end = time.monotonic() + seconds

    def play(index: int) -> None:
        env = envs[index]
        action = np.zeros(env.batch_size, np.int64)
        env.reset()
        while time.monotonic() < end:
            env.step(action)
            steps[index] += 1

    threads = [threading.Thread(target=play, args=(i,)) for i in range(len(envs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds / sum(steps) * 1e3


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Prints and keeps the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256])
    args = parser.parse_args()
    head = _machine.announce(f"a step of CartPole-v1 here and on a worker over Ray, {THREADS} environments in turns")
    rows = [of_rows(count, args.seconds) for count in args.rows]
    _machine.save("remote_step", head, rows)


if __name__ == "__main__":
    main()
