"""Time limits that differ from environment to environment, so that those of a batch do not end together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import gymnasium
import numpy as np

from alf.environments import suite_gym
from alf.environments.gymnasium_environment import flag
from alf.environments.vectorization import EnvironmentLoader

_LIMITS = 2


class RandomTimeLimit(gymnasium.Wrapper):
    """Truncates every episode after a number of steps that is drawn once, at the first reset."""

    def __init__(self, env: gymnasium.Env, min_steps: int, max_steps: int) -> None:
        """Wraps `env`.

        Args:
          env: any environment.
          min_steps: the least number of steps, at least 1.
          max_steps: the largest one, itself included.

        Raises:
          ValueError: there is no number between the two.
        """
        super().__init__(env)
        if not 1 <= min_steps <= max_steps:
            raise ValueError(
                f"A random time limit needs 1 <= min_steps <= max_steps; got min_steps={min_steps}, max_steps={max_steps}."
            )
        self._range = (min_steps, max_steps)
        self._limit: int | None = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the first seed also draws the limit."""
        if self._limit is None:
            # Not the environment's own random numbers, which are those of the seed alone.
            rng = np.random.default_rng(None if seed is None else [seed, _LIMITS])
            self._limit = int(rng.integers(*self._range, endpoint=True))
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return observation, reward, terminated, flag(truncated) or self._steps == self._limit, info


@gin.configurable(module="alf")
def load_with_random_max_episode_steps(
    env_name: str,
    env_load_fn: Callable[..., Any] = suite_gym.load,
    min_steps: int = 200,
    max_steps: int = 250,
) -> EnvironmentLoader:
    """An `env_load_fn` of `create_environment` that gives each environment a time limit of its own.

    Args:
      env_name: see `suite_gym.load`.
      env_load_fn: loads it, and takes `max_episode_steps`, which is 0: this limit takes the place of the registered one.
      min_steps: the limits are drawn evenly from `min_steps` to `max_steps`, both included.
      max_steps: see above.

    Raises:
      ValueError: `env_load_fn` does not give an `EnvironmentLoader`.
    """
    loader = env_load_fn(env_name, max_episode_steps=0)
    if not isinstance(loader, EnvironmentLoader):
        raise ValueError(
            f"load_with_random_max_episode_steps.env_load_fn must give an EnvironmentLoader, as suite_gym.load does; got "
            f"{type(loader).__name__}."
        )
    make = suite_gym.wrapped_maker(loader.make, (lambda env: RandomTimeLimit(env, min_steps, max_steps),))
    # Those that step by themselves know one limit only.
    return dataclasses.replace(loader, make=make, make_vector=None, make_envpool=None)
