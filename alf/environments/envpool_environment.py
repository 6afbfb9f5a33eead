"""EnvPool's environments, stepped by its C++ threads, as batched environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alf.environments.gymnasium_environment import VectorEnvironment


class EnvPoolEnvironment(VectorEnvironment):
    """An EnvPool of the Gymnasium kind, in its synchronous mode.

    EnvPool resets a row by the step after its end, as Gymnasium's NEXT_STEP. Its seeds are fixed when it is made.
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
        super().__init__(env)

    def _reset_env(self, seeds: list[int] | None) -> Any:
        del seeds
        return self._env.reset()[0]


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
        raise ImportError('vectorization="envpool" needs EnvPool: pip install "alf[envpool]".') from error
    if name not in envpool.list_all_envs():
        raise ValueError(f"EnvPool has no task {name!r}: see envpool.list_all_envs(), or choose another vectorization.")
    return EnvPoolEnvironment(envpool.make(name, env_type="gymnasium", num_envs=batch_size, seed=list(seeds), **kwargs))
