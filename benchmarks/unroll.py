"""Environment steps/s that the driver collects without a learner, over batch sizes, lengths and ways to act and step.

python -m benchmarks.unroll
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from alf import _tf
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver

from benchmarks import _machine, _setup

# What differs from N = 2 environment threads that act inline, stepped inside the graph.
_WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_actor_queues": 0, "stepping": "graph"},
    "inline, stepped on the host": {"num_actor_queues": 0, "stepping": "host"},
    "1 actor for both": {"num_actor_queues": 1, "actor_queue_cap": 2, "stepping": "graph"},
    "2 actors": {"num_actor_queues": 2, "actor_queue_cap": 1, "stepping": "graph"},
}


def _row(way: str, suite: str, length: int, batch: int, seconds: float) -> dict[str, Any]:
    envs = [_setup.cart_pole(batch, suite, seed) for seed in range(2)]
    driver = AsyncOffPolicyDriver(envs, _setup.ppo(envs[0]), unroll_length=length, **_WAYS[way])
    try:
        driver.start()
        rate = _setup.collect(driver, seconds)
    finally:
        driver.stop()
    return {"acting": way, "environment": suite, "T": length, "B": batch, "steps/s": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    flags = parser.parse_args()
    head = _machine.announce("collecting CartPole-v1, two environment threads, two 64x64 networks, no learner")
    head["threads"] = _tf.configure_threads()
    suites = ["vector_entry_point"] + (["envpool"] if "envpool" in head["versions"] else [])
    rows = []
    cases = [
        *itertools.product(["inline"], suites, [16, 64], [16, 64, 128, 256]),
        *itertools.product([w for w in _WAYS if w != "inline"], suites[:1], [64], [16, 128]),
    ]
    for way, suite, length, batch in cases:
        rows.append(_row(way, suite, length, batch, flags.seconds))
        _machine.progress(str(rows[-1]))
    _machine.save("unroll", head, rows)


if __name__ == "__main__":
    main()
