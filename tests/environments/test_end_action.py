"""An algorithm ends its episode by an action: a truncation, from which is bootstrapped, and a new episode after it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from alf.data_structures import StepType
from alf.environments.end_action import EndAction
from alf.environments.gymnasium_environment import SingleEnvironment
from tests.environments.toy_environments import LivesEnv


class Clock(gymnasium.Env):
    """Observes the steps of the episode; the reward is the action; it never ends."""

    observation_space = spaces.Box(0, 1000, (1,), np.float32)

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space
        self._clock = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._clock += 1
        return np.full(1, self._clock, np.float32), float(action), False, False, {}


@pytest.mark.parametrize("start", [0, 5])
def test_the_last_action_ends_the_episode_by_truncation(start: int) -> None:
    env = SingleEnvironment(EndAction(Clock(spaces.Discrete(3, start=start)), reward=-7.0))
    spec = env.action_spec()
    assert (int(spec.minimum), int(spec.maximum)) == (0, 3)
    env.reset()
    seen = [env.step(np.array([a])) for a in (2, 1, 3, 0, 1)]
    assert [int(s.step_type[0]) for s in seen] == [
        StepType.MID,
        StepType.MID,
        StepType.LAST,
        StepType.FIRST,
        StepType.MID,
    ]
    assert [float(s.reward[0]) for s in seen] == [start + 2, start + 1, -7.0, 0.0, start + 1]
    assert [float(s.discount[0]) for s in seen] == [1.0] * 5
    assert [float(s.observation[0, 0]) for s in seen] == [1.0, 2.0, 2.0, 0.0, 1.0]


def test_infos_tell_who_ended_it() -> None:
    env = EndAction(Clock(spaces.Discrete(2)))
    env.reset()
    assert env.step(1)[4] == {}
    _, _, terminated, truncated, info = env.step(2)
    assert (terminated, truncated, info) == (False, True, {"ended_by_agent": True})


def test_what_infos_say_of_the_environment_goes_on() -> None:
    """Such as the lives of a game, which others count."""
    env = EndAction(LivesEnv())
    first = env.reset()[1]
    assert env.step(env.action_space.n - 1)[4] == {**first, "ended_by_agent": True}


def test_other_actions_are_an_error() -> None:
    with pytest.raises(ValueError, match="adds an action to Discrete ones"):
        EndAction(Clock(spaces.Box(-1, 1, (1,), np.float32)))
