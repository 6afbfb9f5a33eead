"""From what a user gives, an id or a callable, to a batched environment, vectorised as the user chooses."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from absl import logging
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from tf_agents.environments import py_environment, tf_environment

from alf.environments import wrapper_lists
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.envpool_environment import EnvPoolEnvironment, is_envpool
from alf.environments.gymnasium_environment import SingleEnvironment, ToldInfo, VectorEnvironment, close_quietly
from alf.environments.process_environment import ProcessEnvironment, make_process_environment
from alf.environments.seeding import Seed, distinct_seeds
from alf.environments.spaces import FRAMES_PER_STEP, frames_per_step
from alf.utils.exits import no_exit

VECTORIZATIONS = ("auto", "single", "sync", "async", "vector_entry_point", "envpool")


@dataclasses.dataclass(frozen=True)
class EnvironmentLoader:
    """Knows how to make one environment, and makes batches of it.

    Attributes:
      make: makes a `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, an EnvPool or a `BatchedEnvironment`. One that
        takes `num_envs` or `batch_size` gets B by that name, and where it takes `seed` too, an integer seed; but for
        classes of `gymnasium.Env`, whose arguments are their own.
      make_vector: makes an environment that is vectorised by itself, of B rows, from B and B seeds; None where there is
        no such thing.
      make_envpool: makes an EnvPool of B rows from B and B seeds; None where there is no task id.
      env_wrappers: functions from BatchedEnvironment to BatchedEnvironment, applied in order.
    """

    make: Callable[..., Any]
    make_vector: Callable[[int, list[int]], BatchedEnvironment] | None = None
    make_envpool: Callable[[int, list[int]], EnvPoolEnvironment] | None = None
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = ()

    def __post_init__(self) -> None:
        wrapper_lists.check(wrapper_lists.BATCHES, self.env_wrappers)

    @no_exit("The environment")
    def __call__(
        self,
        batch_size: int,
        seed: Seed = None,
        vectorization: str | None = None,
        step_timeout_secs: float | None = None,
    ) -> BatchedEnvironment:
        """Makes a batched environment.

        Args:
          batch_size: B.
          seed: an integer, a SeedSequence, the B seeds themselves, or None for fresh entropy.
          vectorization: "single" (B = 1 without a vector environment; "sync" for more), "sync" (a loop), "async" (a
            process each, shared memory), "vector_entry_point" (Gymnasium's numpy-vectorised), "envpool"; None or
            "auto": the numpy-vectorised where there is one and B > 1, else "single" or "sync".
          step_timeout_secs: bounds a step of "async"; see `ProcessEnvironment`.

        Raises:
          ValueError: an unknown vectorization, one that this environment does not have, or a wrapper that returns
            something else.
          TypeError: `make` returned something else.
          RuntimeError: the environment asked the program to end.
        """
        kind = vectorization or "auto"
        if kind not in VECTORIZATIONS:
            raise ValueError(f"vectorization must be one of {VECTORIZATIONS}; got {vectorization!r}.")
        if batch_size < 1:
            raise ValueError(f"A batched environment has at least one row; got batch size {batch_size}.")
        env = self._make(batch_size, row_seeds(seed, batch_size), kind, step_timeout_secs)
        try:
            return wrapper_lists.wrap(wrapper_lists.BATCHES, env, self.env_wrappers)
        except BaseException:
            env.close()
            raise

    @no_exit("The environment")
    def make_one(self, seed: int) -> Any:
        """What `make` gives for one row, not adapted; RuntimeError where that asks the program to end."""
        return _call(self.make, 1, seed)

    def _make(self, size: int, seeds: list[int], kind: str, step_timeout_secs: float | None) -> BatchedEnvironment:
        if kind == "envpool":
            if self.make_envpool is None:
                raise ValueError(
                    'vectorization="envpool" needs the id of an EnvPool task, not a callable, and a loader that makes all rows '
                    "at once, not one by one as load_with_random_max_episode_steps does: leave "
                    'create_environment.vectorization out, or set it to "sync" or "async".'
                )
            return self.make_envpool(size, seeds)
        if kind == "vector_entry_point" and self.make_vector is None:
            # Where it is not there at all, that is what there is to be said.
            _call(self.make, size, seeds[0]).close()
            raise ValueError(
                "This environment has no numpy-vectorised form (or wrappers that it cannot take): leave "
                'create_environment.vectorization out, or set it to "sync" or "async".'
            )
        if self.make_vector is not None and (kind == "vector_entry_point" or (kind == "auto" and size > 1)):
            return self.make_vector(size, seeds)
        return self._adapt(_call(self.make, size, seeds[0]), size, seeds, kind, step_timeout_secs)

    def _adapt(
        self, made: Any, size: int, seeds: list[int], kind: str, step_timeout_secs: float | None
    ) -> BatchedEnvironment:
        """A batched environment around what `make` gave, which is closed if that fails."""
        _warn_of_statistics(made)
        try:
            if isinstance(made, (BatchedEnvironment, VectorEnv)) or is_envpool(made):
                if is_envpool(made) and "seed" not in _parameters(self.make):
                    logging.warning(
                        "%s makes an EnvPool and takes no seed: all of its environments, of any random_seed, play the same "
                        "games. Give it an argument seed, and that to envpool.make.",
                        _inner(self.make),
                    )
                if kind != "auto":
                    raise ValueError(f"{type(made).__name__} is a batch already: leave vectorization={kind!r} out.")
                return _check_size(_adapt_batch(made, seeds, step_timeout_secs), size)
            if not isinstance(made, gymnasium.Env):
                raise TypeError(
                    "An environment must be a gymnasium.Env, a gymnasium.vector.VectorEnv, an EnvPool or an alf "
                    f"BatchedEnvironment; got {type(made).__name__} from {_inner(self.make)}{_what_else(made)}"
                )
            # A vector environment shows the metadata of its environments, but not their wrappers.
            if (frames := frames_per_step(made)) > 1:
                made.metadata = {**made.metadata, FRAMES_PER_STEP: frames}
            if kind == "async":
                return make_process_environment(self._again(size, seeds), size, seeds, step_timeout_secs, probe=made)
            if size == 1 and kind in ("auto", "single"):
                return SingleEnvironment(made, seeds)
            return _sync(made, self._again(size, seeds), size, seeds)
        except BaseException:
            if hasattr(made, "close"):
                close_quietly(made)
            raise

    def _again(self, size: int, seeds: list[int]) -> Callable[[], gymnasium.Env]:
        return lambda: _call(self.make, size, seeds[0])


def _what_else(made: Any) -> str:
    """The end of the sentence on what is no environment here."""
    if isinstance(made, (py_environment.PyEnvironment, tf_environment.TFEnvironment)):
        return ": have it return the gymnasium.Env that the environment of TF-Agents is made of."
    return ". One of several agents is loaded by create_environment.env_load_fn = @suite_agents.load."


def row_seeds(seed: Seed, batch_size: int) -> list[int]:
    """B different integers for the rows: `seed` itself where it is B of them.

    Args:
      seed: see `EnvironmentLoader`.
      batch_size: B.
    """
    if isinstance(seed, Sequence) and len(seed) == batch_size:
        return [int(value) for value in seed]
    return distinct_seeds(seed, batch_size)


def _call(make: Callable[..., Any], batch_size: int, seed: int) -> Any:
    takes = {} if _is_single(make) else _parameters(make)
    kwargs = {name: batch_size for name in ("num_envs", "batch_size") if name in takes}
    if kwargs and "seed" in takes:
        kwargs["seed"] = seed
    return make(**kwargs)


def _is_single(make: Callable[..., Any]) -> bool:
    """Whether it is a class of single environments, with arguments bound or wrappers around or without."""
    inner = _inner(make)
    return isinstance(inner, type) and issubclass(inner, gymnasium.Env)


def _inner(make: Callable[..., Any]) -> Callable[..., Any]:
    """The callable of the user's below arguments that are bound and wrappers around."""
    inner = inspect.unwrap(make)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except ValueError:  # Some builtins have no signature.
        return {}


def _warn_of_statistics(made: Any) -> None:
    """Warns of wrappers whose averages are part of what is learned, and stay with the environment."""
    kinds = (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.vector.NormalizeObservation)
    while isinstance(made, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        if isinstance(made, kinds):
            logging.warning(
                "NormalizeObservation keeps its averages in each environment: no checkpoint has them, and evaluation, playing, a "
                "resumed run and exported models begin without. Leave it out, and bind Agent.observation_normalizer = "
                "@ObservationNormalizer(), which is saved with the weights."
            )
            return
        made = made.env


def _adapt_batch(made: Any, seeds: list[int], step_timeout_secs: float | None) -> BatchedEnvironment:
    if isinstance(made, BatchedEnvironment):
        return made
    if is_envpool(made):
        return EnvPoolEnvironment(made)
    if made.num_envs != len(seeds):
        seeds = distinct_seeds(seeds, made.num_envs)
    if isinstance(made.unwrapped, AsyncVectorEnv):
        return ProcessEnvironment(made, seeds, step_timeout_secs)
    return VectorEnvironment(made, seeds)


def _check_size(env: BatchedEnvironment, size: int) -> BatchedEnvironment:
    if env.batch_size != size:
        raise ValueError(
            f"The environment has {env.batch_size} rows where {size} are wanted: let its callable take num_envs (or "
            "batch_size) and make as many, since evaluation and play ask for fewer rows than training; where there is "
            f"neither, num_parallel_environments={env.batch_size} is enough."
        )
    return env


def _sync(
    first: gymnasium.Env, make_env: Callable[[], gymnasium.Env], size: int, seeds: list[int]
) -> BatchedEnvironment:
    made = [first]
    try:
        made.extend(make_env() for _ in range(size - 1))
        rows = [functools.partial(ToldInfo, env) for env in made]
        return VectorEnvironment(SyncVectorEnv(rows, copy=False), seeds)
    except BaseException:
        for env in made[1:]:
            close_quietly(env)
        raise
