"""Two levels of one agent through every driver and vectorisation: the same segments for each."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tf_agents.specs import tensor_spec

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment, suite_gym
from alf.environments.hierarchy import Goals, Hierarchy
from tests.drivers.test_agents_in_drivers import FIRST, LAST, RecordingAlgorithm, T, _run, _streams

_ENVIRONMENTS, _ROWS = 2, 2
_LIMIT = 3


class Walk(gymnasium.Env):
    """Episodes of a random number of steps, which tell their number, the step, and what was done before."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(5)
        self._episode = self._clock = self._length = 0

    def _observe(self, action: int) -> np.ndarray:
        return np.array([self._episode, self._clock, action], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode, self._clock, self._length = self._episode + 1, 0, int(self.np_random.integers(2, 12))
        return self._observe(0), {}

    def step(self, action: Any) -> Any:
        self._clock += 1
        over = self._clock == self._length
        reward = 0.1 * self._clock + int(action)
        return self._observe(int(action)), reward, over and self._length % 2 == 0, over and self._length % 2 == 1, {}


class Numbers(Goals):
    """A goal is a number, reached by the action of that number; the lower one sees it beside episode and step."""

    def space(self, env: gymnasium.Env) -> spaces.Space:
        return spaces.Discrete(5)

    def reached(self, observation: Any, goal: Any) -> bool:
        return bool(observation[2] == goal)

    def reward(self, observation: Any, goal: Any, next_observation: Any) -> float:
        return 10.0 * float(goal)

    def view(self, observation: Any, goal: Any) -> Any:
        return np.array([observation[0], observation[1], 10.0 * float(goal) + observation[2]], np.float32)

    def view_space(self, env: gymnasium.Env) -> spaces.Space:
        return env.observation_space


def _hierarchy(goal_is_episode: bool) -> gymnasium.Env:
    return Hierarchy(Walk(), Numbers(), _LIMIT, goal_is_episode=goal_is_episode)


def _environments(goal_is_episode: bool, vectorization: str) -> list[Any]:
    make = functools.partial(_hierarchy, goal_is_episode)
    return [
        create_environment(make, suite_gym.load, _ROWS, seed=50 + i, vectorization=vectorization)
        for i in range(_ENVIRONMENTS)
    ]


def _algorithm(env: Any) -> Behaviors:
    specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    return Behaviors(*specs, {"*": Behavior(RecordingAlgorithm)})


@functools.cache
def _reference(goal_is_episode: bool) -> Any:
    """What both levels of each environment go through in turns with the learner, one environment after the other."""
    found = {}
    for i, env in enumerate(_environments(goal_is_episode, "sync")):
        alone = _algorithm(env)
        _run(SyncOffPolicyDriver(env, alone, unroll_length=T, random_seed=1), alone, 40)
        found |= {(name, row + i * _ROWS): steps for (name, row), steps in _streams(alone).items()}
    return found


def _check(streams: Any) -> None:
    """The upper one decides after a reset, every third step, or where its number was done; the lower one in between."""
    assert set(streams) == {(level, row) for level in ("upper", "lower") for row in range(_ENVIRONMENTS * _ROWS)}
    for (level, _), steps in streams.items():
        before = None
        for step in steps:
            if before is None or before["step_type"] == LAST:
                assert (step["step_type"], step["state"], step["prev_action"]) == (FIRST, 0.0, 0)
            else:
                assert step["serial"] == before["serial"], "one episode of the environment"
                assert (step["state"], step["prev_action"]) == (before["state"] + 1, before["action"])
                passed = step["seen"] - before["seen"]
                assert 1 <= passed <= _LIMIT if level == "upper" else passed in (0, 1)
            before = step


@pytest.mark.parametrize(
    ("vectorization", "options"),
    [
        ("sync", {"mode": "lockstep"}),
        ("sync", {"num_actor_queues": 1}),
        ("sync", {"learn_queue_cap": 2, "stepping": "host"}),
        pytest.param("async", {"mode": "async"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("goal_is_episode", [False, True])
def test_every_driver_gives_both_levels_the_same_segments(vectorization, options, goal_is_episode):
    envs = _environments(goal_is_episode, vectorization)
    algorithm = _algorithm(envs[0])
    driver = AsyncOffPolicyDriver(
        envs, algorithm, **{"num_actor_queues": 0, "unroll_length": T, "random_seed": 1, **options}
    )
    _run(driver, algorithm, 20)
    streams, reference = _streams(algorithm), _reference(goal_is_episode)
    _check(reference)
    assert sum(len(steps) for steps in streams.values()) > 80
    for key, steps in streams.items():
        shared = min(len(steps), len(reference[key]))
        assert shared > 0
        assert steps[:shared] == reference[key][:shared]
