"""EnvPool's environments, stepped by its C++ threads, as batched environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alf._extras import how_to_install
from alf.environments.gymnasium_environment import RawStep, VectorEnvironment

# An entry of the configuration that EnvPool's Atari games have, and no other task.
_ATARI_ONLY = "zero_discount_on_life_loss"


class EnvPoolEnvironment(VectorEnvironment):
    """An EnvPool of the Gymnasium kind, in its synchronous mode.

    EnvPool resets a row by the step after its end, as Gymnasium's NEXT_STEP. Its seeds are fixed when it is made. Images
    of its Atari games are turned to channels last. An episode that ends by itself on the very step of its time limit is
    a truncation (discount 1) but for Atari games: EnvPool tells nothing else.
    """

    def __init__(self, env: Any) -> None:
        """Adapts `env`, which is closed with this.

        Args:
          env: what `envpool.make(..., env_type="gymnasium")` or `envpool.make_gymnasium` returns, not yet reset.

        Raises:
          ValueError: it is asynchronous (batch_size < num_envs) or has several players.
        """
        config = env.config
        if env.is_async:
            raise ValueError(
                f"The EnvPool was made with batch_size={config['batch_size']} for num_envs={config['num_envs']}: leave "
                "batch_size out, alf steps all of its rows together."
            )
        if config.get("max_num_players", 1) > 1:
            raise ValueError(f"The EnvPool has {config['max_num_players']} players; alf takes those with one.")
        self._frames_per_step = config["frame_skip"] if _ATARI_ONLY in config else 1
        super().__init__(env, channels_first=_ATARI_ONLY in config)

    @property
    def frames_per_step(self) -> int:
        """The frame skip of an Atari game."""
        return self._frames_per_step

    def _reset_env(self, seeds: list[int] | None) -> Any:
        del seeds
        observation, self._info = self._env.reset()
        return observation

    def _raw_step(self, action: Any) -> RawStep:
        observation, reward, terminated, truncated, done = super()._raw_step(action)
        if _ATARI_ONLY in self._env.config:
            # A game that is over at its very last step is called truncated alone.
            terminated = np.asarray(self._info["terminated"], bool)
        return observation, reward, terminated, truncated, done


def is_envpool(env: Any) -> bool:
    """Whether `env` was made by EnvPool, without importing it."""
    return hasattr(env, "async_reset") and hasattr(env, "config") and hasattr(env, "recv")


def make_envpool(name: str, batch_size: int, seeds: Sequence[int], **kwargs: Any) -> EnvPoolEnvironment:
    """Makes an EnvPool by its task id.

    Args:
      name: a task of `envpool.list_all_envs()`.
      batch_size: B.
      seeds: B integers in [0, 2**31 - 1).
      **kwargs: to `envpool.make`, such as max_episode_steps, num_threads, stack_num.

    Raises:
      ImportError: EnvPool is not installed.
      ValueError: EnvPool has no such task.
    """
    try:
        import envpool
    except ImportError as error:
        raise ImportError(f'vectorization="envpool" needs EnvPool: {how_to_install("envpool")}') from error
    if name not in envpool.list_all_envs():
        raise ValueError(f"EnvPool has no task {name!r}: see envpool.list_all_envs(), or choose another vectorization.")
    return EnvPoolEnvironment(envpool.make(name, env_type="gymnasium", num_envs=batch_size, seed=list(seeds), **kwargs))
