"""What agents cost: rows of CartPole alone, the same as one agent each, and in groups of agents that share a behavior.

All three live side by side and learn in turns of about a second, so that a machine whose speed changes from minute to
minute changes it for all. Who has no turn waits at its full queue and costs nothing.

python -m benchmarks.agents [--seconds 1] [--rounds 30]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.grouped_rows import GroupedRows
import numpy as np
from tf_agents.specs import tensor_spec

from benchmarks import _machine, _setup

T, ROWS = 64, 256


NAMES = {0: "plain", 1: "one agent in each environment", 8: "eight agents in each environment"}
# Seconds until a driver that nobody learns from has filled its queue.
UNTIL_FULL = 0.5


def driver_of(agents: int) -> AsyncOffPolicyDriver:
    """A driver, running, of `agents` in each environment, or 0: without the way through behaviors."""
    env: Any = _setup.cart_pole(ROWS)
    if agents:
        env = GroupedRows(env, agents)
        specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
        algorithm: Any = Behaviors(*specs, {"*": Behavior(_setup.ppo_of)})
    else:
        algorithm = _setup.ppo(env)
    driver = AsyncOffPolicyDriver([env], algorithm, num_actor_queues=0, unroll_length=T)
    driver.start()
    return driver


def steps_per_second(driver: AsyncOffPolicyDriver, seconds: float) -> float:
    """Steps/s of environments with learning, in one turn."""
    # What has waited in the queue does not count.
    _setup.learn(driver, 0.3)
    found = _setup.learn(driver, seconds)["steps_per_s"]
    time.sleep(UNTIL_FULL)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each")
    flags = parser.parse_args()
    head = _machine.announce(f"what agents cost, CartPole-v1, T={T}, {ROWS} agents in all, in turns")
    drivers = {count: driver_of(count) for count in NAMES}
    found: dict[int, list[float]] = {count: [] for count in NAMES}
    try:
        for _ in range(flags.rounds):
            for count, driver in drivers.items():
                found[count].append(steps_per_second(driver, flags.seconds) * max(count, 1))
    finally:
        for driver in drivers.values():
            driver.stop()
    rows = []
    for count, name in NAMES.items():
        shares = [mine / plain for mine, plain in zip(found[count], found[0], strict=True)]
        low, middle, high = np.percentile(shares, (25, 50, 75))
        rows.append(
            {
                "what": name,
                "agents' steps/s, median": statistics.median(found[count]),
                "of the plain path, median of rounds": middle,
                "a quarter of rounds below": low,
                "a quarter above": high,
            }
        )
    _machine.save("agents", head, rows)


if __name__ == "__main__":
    main()
