"""A task that cannot be done without memory is learned from replayed sequences by recurrent networks alone.

Every off-policy algorithm that may be recurrent, in turns with acting and beside it, from every one of three seeds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tensorflow as tf

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.suite_unittest import ActionType, RNNPolicyUnittestEnv
from tests.algorithms import off_policy, recurrent_off_policy
from tests.algorithms.networks import specs_of
from tests.learning.test_off_policy_learns import NOISE, begin_anew

EPISODE, GAP = 6, 2
BEST = EPISODE - 1.0 - GAP  # an action earns in each step after the gap; by guessing, half of it
GOOD = 0.95 * BEST
# At a higher rate a deterministic actor is now and then caught where its output no longer moves.
RATE = {"ddpg": 5e-3, "td3": 1e-3}


def environment(name: str, rows: int, seed: int) -> RNNPolicyUnittestEnv:
    kind = ActionType.Continuous if name in off_policy.CONTINUOUS else ActionType.Discrete
    return RNNPolicyUnittestEnv(rows, EPISODE, GAP, action_type=kind, seed=seed)


def learned(name: str, make: Callable[[int], Any], mode: str, seeds: Sequence[int], iterations: int) -> list[float]:
    """From each seed, the return of the greedy policy of `make(seed)`, after at most so many iterations of 8 updates."""
    envs = [environment(name, 16, i) for i in range(2)]
    algorithm = make(seeds[0])
    algorithm.build_optimizers()
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, EPISODE, 2, exp_replayer="uniform", mode=mode, random_seed=0)
    judge = PolicyDriver(environment(name, 32, 99), algorithm, epsilon_greedy=0.0)
    driver.start()
    found = []
    try:
        for seed in seeds:
            fresh = make(seed)
            fresh.build_optimizers()
            begin_anew(algorithm, fresh)
            for _ in range(4):
                driver.run_async()
            best = 0.0
            for i in range(iterations):
                driver.run_async()
                algorithm.train(8, 32, EPISODE, whole_replay_buffer_training=False)
                if i % 10 == 9:
                    judge.run_episodes(32)
                    best = max(best, float(judge.get_metrics()[2].result()))
                    if best > GOOD:
                        break
            found.append(best)
    finally:
        driver.stop()
    return found


def recurrent(name: str, seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    specs = specs_of(environment(name, 2, 0))
    algorithm = recurrent_off_policy.make(
        name, *specs, gamma=0.3, size=16, lr=RATE.get(name, 1e-2), **NOISE.get(name, {})
    )
    algorithm.use_rollout_state, algorithm.burn_in_length = True, 1
    algorithm.set_seed(seed)
    return algorithm


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", [*recurrent_off_policy.CONTINUOUS, *recurrent_off_policy.DISCRETE])
def test_recurrent_networks_remember(name: str, mode: str) -> None:
    iterations = 60 if name == "dqn" else 200
    found = learned(name, functools.partial(recurrent, name), mode, range(3), iterations)
    assert min(found) > GOOD, found


def test_feed_forward_networks_cannot() -> None:
    def feed_forward(seed: int) -> Any:
        tf.keras.utils.set_random_seed(seed)
        return off_policy.make("dqn", *specs_of(environment("dqn", 2, 0)), gamma=0.3)

    (found,) = learned("dqn", feed_forward, "sync", [0], 30)
    assert found < 0.75 * BEST
