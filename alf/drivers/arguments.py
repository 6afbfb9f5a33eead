"""Checks of what the asynchronous driver is given."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.drivers.base import batched, check_env
from alf.drivers.collector import check_stepping
from alf.drivers.pacing import MODES
from alf.environments.batched_environment import BatchedEnvironment


def check_options(stepping: str, mode: str, max_policy_lag: int | None, stall_timeout_secs: float) -> None:
    """Raises ValueError when one of these is none of its choices, or they do not go together."""
    check_stepping(stepping)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}.")
    if max_policy_lag is not None and max_policy_lag < 0:
        raise ValueError(f"max_policy_lag must be 0 or more, got {max_policy_lag}.")
    if max_policy_lag is not None and mode != "async":
        raise ValueError(f"max_policy_lag={max_policy_lag} is for mode 'async': in mode {mode!r} the lag is fixed.")
    if not isinstance(stall_timeout_secs, numbers.Real) or not float(stall_timeout_secs) > 0:
        raise ValueError(
            f"stall_timeout_secs={stall_timeout_secs!r} must be a number of seconds above 0, math.inf for no limit."
        )


def count_environments(envs: Sequence[Any] | None, env_f: Callable[[], Any] | None, num_envs: int | None) -> int:
    """How many environments there are to be; ValueError unless they are given in one of the two ways."""
    if (envs is None) == (env_f is None):
        raise ValueError("Give the environments either as envs=[...] or as env_f=... with num_envs=...")
    if envs is None and (not num_envs or num_envs < 1):
        raise ValueError(f"env_f needs num_envs of at least 1, got {num_envs}.")
    if callable(envs):
        raise ValueError(
            f"AsyncOffPolicyDriver takes a list of batched environments, got {envs!r}: a function that makes one is given by "
            "name, as env_f=..., with num_envs=..."
        )
    if envs is not None and not isinstance(envs, Sequence):
        raise ValueError(f"AsyncOffPolicyDriver takes a list of batched environments, got {envs!r}: write [env].")
    if envs is not None and not envs:
        raise ValueError("AsyncOffPolicyDriver needs at least one environment, got none.")
    return num_envs if envs is None else len(envs)  # type: ignore[return-value]


@contextlib.contextmanager
def closed_if_it_fails(envs: Sequence[BatchedEnvironment]) -> Iterator[None]:
    """Closes `envs` where the block raises."""
    try:
        yield
    except BaseException:
        for env in envs:
            env.close()
        raise


def make_environments(
    envs: Sequence[Any] | None, env_f: Callable[[], Any] | None, count: int, algorithm: OffPolicyAlgorithm
) -> list[BatchedEnvironment]:
    """The environments, checked; those made here are closed again when one does not fit."""
    made: list[BatchedEnvironment] = []
    given: list[Any] = []
    with closed_if_it_fails(made if envs is None else []):
        for i in range(count):
            given.append(envs[i] if env_f is None else env_f())  # type: ignore[index]
            _check_own(given)
            env = batched(given[i])
            made.append(env)
            if env.batch_size != made[0].batch_size:
                raise ValueError(
                    f"Environment {i} has batch size {env.batch_size} and environment 0 has {made[0].batch_size}; "
                    "make them equal."
                )
            check_env(env, algorithm, f"Environment {i}")
            env.first_env_id = i * env.batch_size
    return made


def _check_own(envs: Sequence[Any]) -> None:
    """Raises ValueError where the last environment is one of those before, as in `[env] * 4`."""
    for i, env in enumerate(envs[:-1]):
        if env is envs[-1]:
            raise ValueError(
                f"Environment {len(envs) - 1} is the same object as environment {i}, and each is stepped by a thread of its "
                "own: make one for each, as in [make() for _ in range(4)]."
            )


def check_mode(mode: str, num_envs: int, learn_queue_cap: int, actor_queue_cap: int, num_actor_queues: int) -> None:
    """Raises ValueError when the sizes do not give every forward pass the same rows in a reproducible mode."""
    if mode == "async" or num_actor_queues == 0:
        return
    if actor_queue_cap * num_actor_queues != num_envs or learn_queue_cap % num_envs:
        raise ValueError(
            f"mode={mode!r} with actor threads needs actor_queue_cap * num_actor_queues == num_envs and learn_queue_cap a "
            f"multiple of num_envs, so that every forward pass has the same rows; got {actor_queue_cap} * {num_actor_queues}, "
            f"num_envs={num_envs}, learn_queue_cap={learn_queue_cap}. Set num_actor_queues=0, or change the sizes."
        )


def check_workers(mode: str, threads: int, learn_queue_cap: int, taught: bool) -> None:
    """Raises ValueError when workers with so many environment threads cannot collect in a mode, or by a teacher."""
    if taught:
        raise ValueError("A teacher is asked in this process, and workers act in theirs: leave out one of the two.")
    if mode == "lockstep":
        raise ValueError("mode='lockstep' is for environments of this process: with workers use 'async' or 'sync'.")
    if mode == "sync" and learn_queue_cap % threads:
        raise ValueError(
            f"mode='sync' with workers needs a learn_queue_cap that is a multiple of their {threads} environment threads, "
            f"so that all collect the same; got {learn_queue_cap}."
        )
