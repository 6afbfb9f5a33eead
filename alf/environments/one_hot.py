"""A wrapper that shows numbers of states as vectors."""

from __future__ import annotations

from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from alf.environments import agents

# For messages about numbers that networks take for quantities.
HOW_TO_SHOW_NUMBERS = (
    "have OneHot of alf.environments.wrappers, in suite_gym.load.gym_env_wrappers, show them as vectors, or a layer of your "
    "network"
)


@gin.configurable(module="alf.environments.wrappers")
class OneHot(gymnasium.ObservationWrapper):
    """Shows each Discrete(n) of an observation as uint8 [n], zeros and a one; of MultiDiscrete, those one after another.

    A network takes a bare number for a quantity, as if state 7 lay between 6 and 8. Parts of a Dict or Tuple are shown so
    at any depth; what is not discrete stays as it is.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        """Wraps `env`.

        Args:
          env: some of its observation is Discrete or MultiDiscrete.

        Raises:
          ValueError: none of it is, or the environment has several agents.
        """
        agents.refuse("OneHot", env.observation_space)
        super().__init__(env)
        self.observation_space = one_hot_space(env.observation_space)
        if self.observation_space == env.observation_space:
            raise ValueError(f"OneHot is for discrete observations, and there is none in {env.observation_space}.")

    def observation(self, observation: Any) -> Any:
        """The observation with its numbers as vectors."""
        return _encoded(self.env.observation_space, observation)


def one_hot_space(space: spaces.Space) -> spaces.Space:
    """What `OneHot` makes of an observation space; an equal one where nothing is discrete."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: one_hot_space(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([one_hot_space(part) for part in space.spaces])
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return spaces.Box(0, 1, (int(_sizes(space).sum()),), np.uint8)
    return space


def _sizes(space: spaces.Space) -> np.ndarray:
    return np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)  # type: ignore[attr-defined]


def _encoded(space: spaces.Space, value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _encoded(part, value[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_encoded(part, one) for part, one in zip(space.spaces, value, strict=True))
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return value
    if not space.contains(value):
        raise ValueError(f"The environment's observation {value!r} is not in {space}.")
    sizes = _sizes(space)
    vector = np.zeros(sizes.sum(), np.uint8)
    vector[np.cumsum(sizes) - sizes + np.ravel(value - space.start)] = 1
    return vector
