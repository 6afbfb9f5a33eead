"""The return so far, as part of the observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from alf.environments.gymnasium_environment import SingleEnvironment
from alf.environments.measurement_wrappers import AccumulatedReward
from alf.environments.wrappers import FrameSkip


class Paying(gymnasium.Env):
    """The reward of step t of an episode is t; it ends after three."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = space
        self._clock = 0

    def _observation(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {k: np.full(s.shape, self._clock, s.dtype) for k, s in self.observation_space.spaces.items()}
        return np.full(self.observation_space.shape, self._clock, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._clock = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._clock += 1
        return self._observation(), float(self._clock), self._clock == 3, False, {}


BOX = spaces.Box(0, 9, (2,), np.float32)


def totals(env: gymnasium.Env, episodes: int = 2) -> list[list[float]]:
    found = []
    for _ in range(episodes):
        seen = [env.reset()[0]]
        done = False
        while not done:
            observation, _, done, _, _ = env.step(0)
            seen.append(observation)
        assert all(env.observation_space.contains(o) for o in seen)
        found.append([float(o["measurements"][-1]) for o in seen])
    return found


@pytest.mark.parametrize("space", [BOX, spaces.Dict(image=BOX), spaces.Dict(measurements=BOX)])
def test_the_return_so_far_begins_at_zero_in_every_episode(space: spaces.Space) -> None:
    env = AccumulatedReward(Paying(space))
    assert totals(env) == [[0.0, 1.0, 3.0, 6.0]] * 2
    # One more than there was.
    before = space["measurements"].shape[0] if isinstance(space, spaces.Dict) and "measurements" in space.spaces else 0
    assert env.observation_space["measurements"].shape == (before + 1,)  # type: ignore[index]


def test_what_is_added_up_may_be_shaped() -> None:
    assert totals(AccumulatedReward(Paying(BOX), reward_shaping_fn=lambda r: -r), 1) == [[0.0, -1.0, -3.0, -6.0]]


class _Put(gymnasium.RewardWrapper):
    """Gives rewards in another form."""

    def __init__(self, env: gymnasium.Env, put: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self._put = put

    def reward(self, reward: Any) -> Any:
        return self._put(reward)


@pytest.mark.filterwarnings("error:Conversion of an array with ndim > 0:DeprecationWarning")
@pytest.mark.parametrize("put", [lambda x: [x], lambda x: ((x,),), lambda x: np.full((1, 1), x), np.float32])
def test_rewards_that_are_added_up_may_have_axes_of_one(put: Callable[[Any], Any]) -> None:
    env = _Put(Paying(BOX), put)
    assert totals(AccumulatedReward(env), 1) == [[0.0, 1.0, 3.0, 6.0]]
    env.reset()
    assert FrameSkip(env, 3).step(0)[1] == 6.0


def test_specs_follow() -> None:
    env = SingleEnvironment(AccumulatedReward(Paying(BOX)))
    spec = env.observation_spec()
    assert {k: s.shape for k, s in spec.items()} == {"observation": (2,), "measurements": (1,)}
    env.reset()
    np.testing.assert_array_equal(env.step(np.zeros(1, np.int64)).observation["measurements"], [[1.0]])


def test_a_field_that_is_no_vector_is_an_error() -> None:
    with pytest.raises(ValueError, match="'image' is Discrete"):
        AccumulatedReward(Paying(spaces.Dict(image=spaces.Discrete(3))), field="image")
