"""How the rest of `alf` gets its environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin

from alf.environments import checker, suite_gym
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.crash_isolation import RestartingEnvironment
from alf.environments.random_limits import load_with_random_max_episode_steps as load_with_random_max_episode_steps
from alf.environments.seeding import Seed
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.exits import no_exit


@gin.configurable(module="alf")
def create_environment(
    env_name: str | Callable[..., Any] = "CartPole-v1",
    env_load_fn: Callable[[Any], Any] = suite_gym.load,
    num_parallel_environments: int = 30,
    nonparallel: bool = False,
    seed: Seed = None,
    vectorization: str | None = None,
    step_timeout_secs: float | None = None,
    max_restarts: int = 10,
    max_restarts_per_window: int = 3,
    window_secs: float = 60.0,
    nonfinite: str = "error",
) -> BatchedEnvironment:
    """Makes a batched environment that is rebuilt when it fails.

    A user's own environment takes one line: `create_environment.env_name = "my_package.my_module:MyEnv"`, or a gin
    reference `@MyEnv` to a configurable.

    Args:
      env_name: an id, the path of a callable, or a callable; see `suite_gym.load`.
      env_load_fn: from `env_name` to an `EnvironmentLoader`, or to one environment (made again for each row).
      num_parallel_environments: B.
      nonparallel: one environment instead, B = 1, for evaluation and play.
      seed: an integer, a SeedSequence, or B integers (`spawn_environment_seeds`); None for fresh entropy.
      vectorization: how the B are stepped: None or "auto", "single", "sync", "async", "vector_entry_point", "envpool";
        see `EnvironmentLoader`.
      step_timeout_secs: a step that takes longer counts as failed. None: no limit in this process, 300 s for "async".
      max_restarts: how often the environment may be rebuilt in its life.
      max_restarts_per_window: how often within `window_secs`.
      window_secs: see above.
      nonfinite: "error" or "truncate", for NaN and infinity; see `RestartingEnvironment`.

    Returns:
      A `RestartingEnvironment` of `num_parallel_environments` rows.

    Raises:
      ValueError: there is no such environment, or an argument is out of its range.
    """
    if step_timeout_secs is not None and not step_timeout_secs > 0:
        raise ValueError(
            f"create_environment.step_timeout_secs={step_timeout_secs} must be above 0 seconds, or None for no limit."
        )
    size = 1 if nonparallel else num_parallel_environments
    loader = environment_loader(env_load_fn, env_name)
    scopes = gin.config.current_scope()

    def build(seed: Seed) -> BatchedEnvironment:
        # gin's scopes belong to the thread, and a failed environment is rebuilt in another one.
        with gin.config_scope(scopes):
            return loader(size, seed, vectorization, step_timeout_secs)

    def find_fault() -> str | None:
        with gin.config_scope(scopes):
            return checker.fault_of_first_step(loader)

    # Processes are timed by the adapter itself, without a hand-over between threads.
    return RestartingEnvironment(
        build,
        seed=seed,
        step_timeout_secs=None if vectorization == "async" else step_timeout_secs,
        max_restarts=max_restarts,
        max_restarts_per_window=max_restarts_per_window,
        window_secs=window_secs,
        nonfinite=nonfinite,
        find_fault=find_fault,
    )


@no_exit("The environment")
def environment_loader(env_load_fn: Callable[[Any], Any], env_name: Any) -> EnvironmentLoader:
    """What makes the environments that `create_environment` is asked for; the arguments are those of its.

    Raises:
      RuntimeError: what is called, or imported, asked the program to end.
    """
    loaded = env_load_fn(env_name)
    if isinstance(loaded, EnvironmentLoader):
        return loaded
    unused = [loaded]  # The first environment was made to see what it is: it is used first.
    return EnvironmentLoader(make=lambda: unused.pop() if unused else env_load_fn(env_name))
