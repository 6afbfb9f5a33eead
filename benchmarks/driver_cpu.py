"""What the driver does with the processors: busy when it should be, idle when held, and never starving the learner.

python -m benchmarks.driver_cpu
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import os
import time
from typing import Any

from alf import _tf
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments import BatchedEnvironment

from benchmarks import _machine, _setup

T, B = 64, 256


def _driver(envs: Sequence[BatchedEnvironment], **options: Any) -> AsyncOffPolicyDriver:
    options = {"num_actor_queues": 0, "unroll_length": T, **options}
    driver = AsyncOffPolicyDriver(envs, _setup.ppo(envs[0]), **options)
    driver.start()
    return driver


def _cart_poles(count: int) -> list[BatchedEnvironment]:
    return [_setup.cart_pole(B, seed=seed) for seed in range(count)]


def busy(seconds: float) -> dict[str, Any]:
    """A compute-bound run: share of all processors in use."""
    driver = _driver(_cart_poles(2))
    try:
        _setup.learn(driver, 1.0)
        with _machine.cpu_use() as used:
            result = _setup.learn(driver, seconds)
    finally:
        driver.stop()
    share = used["processors_busy"] / len(os.sched_getaffinity(0))
    return {
        "what": "compute-bound run: share of the processors in use",
        "value": share,
        "steps/s": result["steps_per_s"],
    }


def idle(seconds: float) -> dict[str, Any]:
    """The learner held: share of one processor that the waiting driver uses."""
    driver = _driver(_cart_poles(2))
    try:
        driver.run_async()
        time.sleep(1.0)
        with _machine.cpu_use() as used:
            time.sleep(seconds)
    finally:
        driver.stop()
    return {"what": "learner held: share of one processor in use", "value": used["processors_busy"]}


def _train_ms(make_envs: Callable[[], list[BatchedEnvironment]], seconds: float) -> tuple[float, AsyncOffPolicyDriver]:
    driver = _driver(make_envs())
    try:
        _setup.learn(driver, 2.0)
        return _setup.learn(driver, seconds)["train_ms"], driver
    finally:
        driver.stop()


def slow_beside_fast(seconds: float) -> list[dict[str, Any]]:
    """The learner's iteration with one fast environment, and with one of 20 ms a step beside it, in turns."""

    def fast() -> list[BatchedEnvironment]:
        return _cart_poles(1)

    def both() -> list[BatchedEnvironment]:
        first, second = _cart_poles(2)
        return [first, _setup.SlowEnvironment(second, 0.02)]

    alone, beside, said = [], [], ""
    for _ in range(3):
        alone.append(_train_ms(fast, seconds)[0])
        milliseconds, driver = _train_ms(both, seconds)
        beside.append(milliseconds)
        said = driver.describe()
    slowdown = min(beside) / min(alone) - 1.0
    return [
        {"what": "learner's iteration, one fast environment, ms", "value": min(alone)},
        {"what": "the same with a 20 ms environment beside it, ms", "value": min(beside), "note": said},
        {"what": "slowdown", "value": slowdown},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    flags = parser.parse_args()
    head = _machine.announce(f"the driver's use of processors, CartPole-v1, T={T}, B={B}")
    head["threads"] = _tf.configure_threads()
    rows = [busy(flags.seconds), idle(flags.seconds), *slow_beside_fast(flags.seconds / 2)]
    _machine.save("driver_cpu", head, rows)


if __name__ == "__main__":
    main()
