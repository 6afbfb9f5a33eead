"""What agents cost: rows of CartPole alone, the same as one agent each, and in groups of agents that share a behavior.

python -m benchmarks.agents [--seconds 8] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.grouped_rows import GroupedRows
from tf_agents.specs import tensor_spec

from benchmarks import _machine, _setup

T, ROWS = 64, 256


def steps_per_second(agents: int, seconds: float) -> float:
    """Agents' steps/s with learning; `agents` in each environment, or 0: without the way through behaviors."""
    env: Any = _setup.cart_pole(ROWS)
    if agents:
        env = GroupedRows(env, agents)
        specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
        algorithm: Any = Behaviors(*specs, {"*": Behavior(_setup.ppo_of)})
    else:
        algorithm = _setup.ppo(env)
    driver = AsyncOffPolicyDriver([env], algorithm, num_actor_queues=0, unroll_length=T)
    driver.start()
    try:
        _setup.learn(driver, 1.0)
        return _setup.learn(driver, seconds)["steps_per_s"] * max(agents, 1)
    finally:
        driver.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    head = _machine.announce(f"what agents cost, CartPole-v1, T={T}, {ROWS} agents in all, in turns")
    counts = (0, 1, 8)
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(flags.rounds):
        for count in counts:
            found[count].append(steps_per_second(count, flags.seconds))
    names = {0: "plain", 1: "one agent in each environment", 8: "eight agents in each environment"}
    rows = [
        {
            "what": names[count],
            "agents' steps/s, median": statistics.median(found[count]),
            "of the plain path, median of rounds": statistics.median(
                mine / plain for mine, plain in zip(found[count], found[0], strict=True)
            ),
        }
        for count in counts
    ]
    _machine.save("agents", head, rows)


if __name__ == "__main__":
    main()
