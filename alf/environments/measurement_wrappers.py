"""A wrapper that lets an algorithm observe what an episode has earned so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from alf.environments import agents
from alf.environments.gymnasium_environment import earned


@gin.configurable(module="alf.environments.wrappers")
class AccumulatedReward(gymnasium.Wrapper):
    """Adds the return of the episode so far as the last entry of a vector of measurements in the observation.

    An observation that is no Dict becomes {"observation": it, "measurements": float32 [1]}; a Dict without the field gets
    it. At the start of an episode the entry is 0.
    """

    def __init__(
        self, env: gymnasium.Env, field: str = "measurements", reward_shaping_fn: Callable[[float], float] | None = None
    ) -> None:
        """Wraps `env`.

        Args:
          env: any environment of a single agent.
          field: name of the vector.
          reward_shaping_fn: from the reward of a step to what is added up; the environment's reward stays as it is.

        Raises:
          ValueError: the field is there and is no Box of one axis, or the environment has several agents.
        """
        agents.refuse("AccumulatedReward", env.observation_space)
        super().__init__(env)
        self._field = field
        self._shape = reward_shaping_fn or float
        self._total = 0.0
        space = env.observation_space
        self._nested = isinstance(space, spaces.Dict)
        parts: dict[str, spaces.Space] = (
            dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        )
        there = parts.get(field)
        if there is not None and not (isinstance(there, spaces.Box) and len(there.shape) == 1):
            raise ValueError(
                f"AccumulatedReward adds to a Box of one axis, but {field!r} is {there}: name another field."
            )
        low, high = (there.low, there.high) if isinstance(there, spaces.Box) else (np.zeros(0), np.zeros(0))
        parts[field] = spaces.Box(
            np.append(low, -np.inf).astype(np.float32), np.append(high, np.inf).astype(np.float32), dtype=np.float32
        )
        self.observation_space = spaces.Dict(parts)

    def _with_total(self, observation: Any) -> dict[str, Any]:
        parts = dict(observation) if self._nested else {"observation": observation}
        parts[self._field] = np.append(parts.get(self._field, ()), self._total).astype(np.float32)
        return parts

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, which has earned nothing."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._total = 0.0
        return self._with_total(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step; the observation after it knows of its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += self._shape(earned(reward))
        return self._with_total(observation), reward, terminated, truncated, info
