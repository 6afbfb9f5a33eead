"""The memory holds actions as the algorithm chose them; what wrappers make of them only the environment sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.data_structures import StepType
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.recording import record_episodes
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.gymnasium_environment import SingleEnvironment
from alf.environments.testing import CountingEnvironment
from tests.algorithms.off_policy import make

# What an action number means to the environment below the discretising wrapper.
FORCES = np.array([[-5.0], [-1.0], [0.0], [4.0]], np.float32)


class Recording(gymnasium.Env):
    """Remembers the actions that it gets; observes the last one. An episode takes four."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-5.0, 5.0, (1,), np.float32)
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.full(1, 9.0, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.time += 1
        return action.copy(), 0.0, self.time == 4, False, {}


def rescaled(env: gymnasium.Env) -> gymnasium.Env:
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))


def discretised(env: gymnasium.Env) -> gymnasium.Env:
    return gymnasium.wrappers.TransformAction(env, lambda number: FORCES[number], gymnasium.spaces.Discrete(4))


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("wrapper", "algorithm_name", "meaning"),
    [
        (rescaled, "sac", lambda a: 5.0 * a),
        (discretised, "dqn", lambda a: FORCES[a]),
    ],
)
def test_actions_are_stored_as_chosen_and_played_as_meant(
    kind: str, wrapper: Callable[..., Any], algorithm_name: str, meaning: Callable[..., Any]
) -> None:
    tf.keras.utils.set_random_seed(3)
    env = SingleEnvironment(wrapper(Recording()))
    specs = [tensor_spec.from_spec(s) for s in (env.observation_spec(), env.action_spec())]
    noise = {"epsilon_greedy": 0.9} if algorithm_name == "dqn" else {}
    algorithm = make(algorithm_name, *specs, **noise)
    driver: Any
    if kind == "sync":
        driver = SyncOffPolicyDriver(env, algorithm, 40, exp_replayer="uniform", random_seed=1)
        driver.run()
    else:
        driver = AsyncOffPolicyDriver([env], algorithm, 0, 40, exp_replayer="uniform", random_seed=1)
        driver.start()
        driver.run_async()
    driver.stop()
    memory: Any = algorithm.exp_replayer
    exp = tf.nest.map_structure(lambda x: x[0].numpy(), memory.replay_all()._replace(bootstrap=(), state=()))
    played = exp.step_type[:-1] != StepType.LAST
    # What it was given it shows at the next step.
    np.testing.assert_allclose(exp.observation[1:][played], meaning(exp.action[:-1])[played], rtol=1e-6)
    np.testing.assert_array_equal(exp.prev_action[1:][played], exp.action[:-1][played])
    assert len(np.unique(exp.action)) > 2
    assert exp.action.dtype == specs[1].dtype.as_numpy_dtype


class Spoiling(CountingEnvironment):
    """Changes the array of actions that it is given, as simulators do that rescale in place."""

    def _step(self, action: Any) -> Any:
        time_step = super()._step(action)
        action -= 100
        return time_step


@pytest.mark.parametrize("stepping", ["graph", "host"])
def test_an_environment_that_changes_its_actions_in_place_changes_none_that_is_stored(stepping: str) -> None:
    env = Spoiling(3, num_actions=3)
    algorithm = make("dqn", *(tensor_spec.from_spec(s) for s in (env.observation_spec(), env.action_spec())))
    driver = SyncOffPolicyDriver(env, algorithm, 24, exp_replayer="uniform", random_seed=1, stepping=stepping)
    driver.run()
    driver.run()
    driver.stop()
    memory: Any = algorithm.exp_replayer
    exp = tf.nest.map_structure(lambda x: x.numpy(), memory.replay_all()._replace(bootstrap=(), state=()))
    assert exp.action.min() >= 0
    assert exp.prev_action.min() >= 0
    led = exp.step_type[:, 1:] != StepType.FIRST
    steps = exp.observation[:, 1:, 2]
    rewards = CountingEnvironment.expected_reward(steps, exp.action[:, :-1])
    np.testing.assert_array_equal(exp.reward[:, 1:][led], rewards[led])


def test_recorded_episodes_have_the_actions_that_were_chosen() -> None:
    env = Spoiling(2, num_actions=3)
    algorithm = make("dqn", *(tensor_spec.from_spec(s) for s in (env.observation_spec(), env.action_spec())))
    assert np.min(record_episodes(algorithm, env, 12, epsilon_greedy=0.5, random_seed=0).action) >= 0
