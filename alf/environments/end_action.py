"""A wrapper that lets an algorithm end its episodes."""

from __future__ import annotations

from typing import Any

import gin
import gymnasium
from gymnasium import spaces


@gin.configurable(module="alf.environments.wrappers")
class EndAction(gymnasium.Wrapper):
    """Adds an action, the last one, that ends the episode at once, by truncation.

    The environment does not see it: the observation stays as it was, the reward is `reward`. What is learned bootstraps
    from there, as at a time limit; `info["ended_by_agent"]` is True.
    """

    def __init__(self, env: gymnasium.Env, reward: float = 0.0) -> None:
        """Wraps `env`.

        Args:
          env: its actions are Discrete.
          reward: of the step that ends an episode so.

        Raises:
          ValueError: the actions are of another kind.
        """
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"EndAction adds an action to Discrete ones; the environment's are {space}.")
        self._end = int(space.start) + int(space.n)
        self._reward = reward
        self._observation: Any = None
        self._info: dict[str, Any] = {}
        self.action_space = spaces.Discrete(int(space.n) + 1, start=int(space.start))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._observation, self._info = self.env.reset(seed=seed, options=options)
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step, or ends the episode."""
        if int(action) == self._end:
            return self._observation, self._reward, False, True, {**self._info, "ended_by_agent": True}
        self._observation, reward, terminated, truncated, self._info = self.env.step(action)
        return self._observation, reward, terminated, truncated, self._info
