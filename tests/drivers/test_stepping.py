"""Whether environments are stepped inside the graph or outside is a matter of speed alone."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.data_structures import Experience
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.collector import FreshObservations
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.batch_wrappers import BatchWrapper
from tests.algorithms import networks


def segments(env: Any, algorithm: PPOAlgorithm, stepping: str) -> list[Experience]:
    """What is recorded of acting before each of four updates."""
    found: list[Experience] = []
    algorithm.add_experience_observer(found.append)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=11, stepping=stepping)
    try:
        for _ in range(4):
            driver.run()
            algorithm.train(mini_batch_size=6)
    finally:
        driver.stop()
    return found


def check_identical(inside: list[Experience], outside: list[Experience]) -> None:
    """Fails where two records differ in a bit."""
    for mine, theirs in zip(inside, outside, strict=True):
        tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a.numpy(), b.numpy()), mine, theirs)


def _segments(stepping: str, rnn: bool) -> list[Experience]:
    env = create_environment("CartPole-v1", num_parallel_environments=12, seed=7)
    tf.keras.utils.set_random_seed(3)
    algorithm = networks.ppo(env, rnn=rnn)
    algorithm.use_rollout_state = rnn
    return segments(env, algorithm, stepping)


@pytest.mark.parametrize("rnn", [False, True])
def test_what_is_recorded_is_bit_identical(rnn):
    check_identical(_segments("graph", rnn), _segments("host", rnn))


class Drifting(BatchWrapper):
    """Keeps to its specs for a while."""

    def __init__(self, change: Callable[[np.ndarray], Any]) -> None:
        super().__init__(create_environment("CartPole-v1", num_parallel_environments=3, seed=7))
        self._change = change
        self._left = 21

    def _step(self, action: Any) -> Any:
        time_step = self._env.step(action)
        self._left -= 1
        return time_step if self._left else time_step._replace(observation=self._change(time_step.observation))


@pytest.mark.parametrize("stepping", ["graph", "host", "evaluation"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.astype(np.float64), r"observation is float64 \[3, 4\]; its spec says float32 \[3, 4\]: correct"),
        (lambda x: x[:1], r"observation is float32 \[1, 4\]; its spec says float32 \[3, 4\]: correct"),
        (lambda x: {"a": x, "b": x}, "has 2 arrays, and its specs are 1: correct"),
        (lambda x: [None], "An observation has a NoneType where its spec has an array of 3 rows: correct"),
    ],
)
def test_an_observation_that_is_not_as_specified_is_an_error_that_says_so(stepping, change, message):
    env = Drifting(change)
    algorithm = networks.ppo(env)
    driver: Any
    if stepping == "evaluation":
        driver = PolicyDriver(env, algorithm)
    else:
        driver = SyncOffPolicyDriver(env, algorithm, unroll_length=4, stepping=stepping)
    with pytest.raises(ValueError, match=message):
        for _ in range(10):
            driver.run(12)
    env.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.ones((2, 1), np.float32)}, r"The reward of a time step has shape \[2, 1\], .* a row, \[2\]"),
        ({"reward": None}, r"The reward of a time step has shape \[\]"),
        ({"step_type": np.ones(1, np.int32)}, r"The step type of a time step has shape \[1\]"),
        ({"discount": 1.0}, r"The discount of a time step has shape \[\]"),
        (
            {"observation": {"a": np.zeros((2, 3)), "x": np.zeros((2, 3))}},
            r"parts \['a', 'x'\], and its spec \['a', 'b'\]",
        ),
    ],
)
def test_a_time_step_that_is_not_as_specified_is_an_error_that_says_so(change, message):
    env = mock_env({"a": array_spec.ArraySpec((3,), np.float64), "b": array_spec.ArraySpec((3,), np.float64)})
    observation = {"a": np.zeros((2, 3)), "b": np.zeros((2, 3))}
    good = ts.TimeStep(np.zeros(2, np.int32), np.zeros(2, np.float32), np.ones(2, np.float32), observation)
    fresh = FreshObservations(env)
    fresh(good)
    with pytest.raises(ValueError, match=message):
        fresh(good._replace(**change))


def mock_env(spec: Any) -> Any:
    """As much of an environment as is asked for its specs."""
    return types.SimpleNamespace(batch_size=2, observation_spec=lambda: spec)


@pytest.mark.parametrize("make", [SyncOffPolicyDriver, AsyncOffPolicyDriver])
def test_another_way_of_stepping_is_refused(make):
    env = create_environment("CartPole-v1", num_parallel_environments=2)
    with pytest.raises(ValueError, match=r"stepping='grpah' is not one of auto, graph, host\."):
        make([env] if make is AsyncOffPolicyDriver else env, networks.ppo(env), stepping="grpah")
    env.close()
