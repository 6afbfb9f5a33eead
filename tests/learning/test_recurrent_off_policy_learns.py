"""A task that cannot be done without memory is learned from replayed sequences by recurrent networks, and only by them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.suite_unittest import ActionType, RNNPolicyUnittestEnv
from tests.algorithms import off_policy, recurrent_off_policy
from tests.algorithms.networks import specs_of

EPISODE, GAP = 6, 2
BEST = EPISODE - 1.0 - GAP  # an action earns in each step after the gap; by guessing, half of it


def environment(name: str, rows: int, seed: int) -> RNNPolicyUnittestEnv:
    kind = ActionType.Continuous if name in off_policy.CONTINUOUS else ActionType.Discrete
    return RNNPolicyUnittestEnv(rows, EPISODE, GAP, action_type=kind, seed=seed)


def greedy_return(name: str, algorithm: Any) -> float:
    judge = PolicyDriver(environment(name, 32, 99), algorithm, epsilon_greedy=0.0)
    judge.run_episodes(32)
    return float(judge.get_metrics()[2].result())


def learned(name: str, algorithm: Any, seed: int, iterations: int, mode: str = "sync") -> float:
    """The return of the greedy policy, after at most so many iterations of 8 updates."""
    envs = [environment(name, 16, 10 * seed + i) for i in range(2)]
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, EPISODE, 2, exp_replayer="uniform", mode=mode, random_seed=seed)
    driver.start()
    best = 0.0
    try:
        for _ in range(4):
            driver.run_async()
        for i in range(iterations):
            driver.run_async()
            algorithm.train(8, 32, EPISODE, whole_replay_buffer_training=False)
            if i % 10 == 9:
                best = max(best, greedy_return(name, algorithm))
                if best > 0.95 * BEST:
                    break
    finally:
        driver.stop()
    return best


def recurrent(name: str, seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    specs = specs_of(environment(name, 2, 0))
    algorithm = recurrent_off_policy.make(name, *specs, gamma=0.3, size=16, lr=1e-2)
    algorithm.use_rollout_state, algorithm.burn_in_length = True, 1
    algorithm.set_seed(seed)
    return algorithm


def test_dqn_remembers() -> None:
    assert learned("dqn", recurrent("dqn", 0), 0, 60) > 0.95 * BEST


def test_feed_forward_dqn_cannot() -> None:
    tf.keras.utils.set_random_seed(0)
    algorithm = off_policy.make("dqn", *specs_of(environment("dqn", 2, 0)), gamma=0.3)
    assert learned("dqn", algorithm, 0, 30) < 0.75 * BEST


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["sac", "discrete_sac", "dqn"])
def test_others_remember_too(name: str, mode: str, seed: int) -> None:
    assert learned(name, recurrent(name, seed), seed, 200, mode) > 0.95 * BEST
