"""The off-policy algorithms find the best policy of the old unit-test environment, in turns and asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from alf.algorithms.exploration import GaussianNoise
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import CONTINUOUS, DISCRETE, make

SEEDS = range(3)
EPISODE = 9  # time steps, so that eight actions earn
GOOD = 0.93 * (EPISODE - 1)
# Deterministic actors have to be shaken well: each observation has its best action at an end of the range.
NOISE: dict[str, dict[str, Any]] = {
    "ddpg": {"ou_stddev": 0.3, "ou_damping": 0.5},
    "sarsa": {"ou_stddev": 0.3, "ou_damping": 0.5},
    "td3": {"exploration": GaussianNoise(0.6)},
}


def environment(name: str, rows: int, seed: int) -> PolicyUnittestEnv:
    kind = ActionType.Continuous if name in CONTINUOUS else ActionType.Discrete
    return PolicyUnittestEnv(rows, EPISODE, action_type=kind, seed=seed)


def algorithm_of(name: str, seed: int) -> Any:
    tf.random.set_seed(seed)
    algorithm = make(name, *specs_of(environment(name, 2, 0)), gamma=0.5, lr=5e-3, **NOISE.get(name, {}))
    algorithm.build_optimizers()
    return algorithm


def begin_anew(algorithm: Any, fresh: Any) -> None:
    """Makes `algorithm` what `fresh` is, keeping what it has traced."""
    algorithm.exp_replayer.clear()
    for variable, new in zip(algorithm.variables, fresh.variables, strict=True):
        if variable is not algorithm.iterations:
            variable.assign(new)
    for (optimizer, _), (other, _) in zip(algorithm.optimized_variables(), fresh.optimized_variables(), strict=True):
        for variable, new in zip(optimizer.variables(), other.variables(), strict=True):
            variable.assign(new)


def check_learning(
    name: str, algorithm: Any, collect: Callable[[], Any], fresh: Callable[[str, int], Any] = algorithm_of
) -> None:
    """From each of the seeds, with `fresh(name, seed)`, a greedy policy is nearly the best after at most 120 iterations."""
    judge = PolicyDriver(environment(name, 16, 99), algorithm, epsilon_greedy=0.0)
    for seed in SEEDS:
        begin_anew(algorithm, fresh(name, seed))
        for i in range(120):
            collect()
            algorithm.train(num_updates=8, mini_batch_length=2, mini_batch_size=64, whole_replay_buffer_training=False)
            if i % 10 == 9:
                judge.run_episodes(16)
                if judge.get_metrics()[2].result() > GOOD:
                    break
        assert judge.get_metrics()[2].result() > GOOD, (name, seed)


_FAST = ("sac", "dqn")
_NAMES = [pytest.param(n, marks=() if n in _FAST else pytest.mark.slow) for n in (*CONTINUOUS, *DISCRETE)]


@pytest.mark.parametrize("name", _NAMES)
def test_in_turns(name: str) -> None:
    algorithm = algorithm_of(name, 0)
    driver = SyncOffPolicyDriver(environment(name, 32, 0), algorithm, 8, exp_replayer="uniform", random_seed=1)
    try:
        check_learning(name, algorithm, driver.run)
    finally:
        driver.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_asynchronously(name: str) -> None:
    algorithm = algorithm_of(name, 0)
    envs = [environment(name, 16, i) for i in range(2)]
    # A deterministic actor may be caught where its output no longer moves: whether it is must not hang on the threads.
    mode = "lockstep" if name == "ddpg" else "async"
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 8, 2, exp_replayer="uniform", random_seed=1, mode=mode)
    driver.start()
    try:
        check_learning(name, algorithm, driver.run_async)
    finally:
        driver.stop()
