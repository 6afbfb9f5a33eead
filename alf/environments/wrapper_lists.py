"""Lists of wrappers: each stands where its kind belongs, or is refused in a sentence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium

from alf.environments.batched_environment import BatchedEnvironment

# The arguments of `suite_gym.load` that the lists are given by, and what their wrappers wrap.
SINGLE, BATCHES = "gym_env_wrappers", "env_wrappers"
_WRAPPED: dict[str, tuple[type, str]] = {
    SINGLE: (gymnasium.Env, "gymnasium.Env"),
    BATCHES: (BatchedEnvironment, "BatchedEnvironment"),
}


def by_kind(gym_env_wrappers: Sequence[Any], env_wrappers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Both lists; classes of Gymnasium wrappers among `env_wrappers` come behind `gym_env_wrappers`.

    Files of ALF's earlier releases, which had one kind of wrappers, bind them to `env_wrappers`.

    Args:
      gym_env_wrappers: of single environments.
      env_wrappers: of batches or of single environments.

    Raises:
      ValueError: one of them is no list.
    """
    _check_list(SINGLE, gym_env_wrappers)
    _check_list(BATCHES, env_wrappers)
    moved = [wrapper for wrapper in env_wrappers if _is_class(wrapper, gymnasium.Wrapper)]
    return [*gym_env_wrappers, *moved], [wrapper for wrapper in env_wrappers if wrapper not in moved]


def check(argument: str, wrappers: Sequence[Any], before: str = "") -> None:
    """Refuses what surely is no wrapper of the kind that `argument`, SINGLE or BATCHES, is for.

    Args:
      argument: SINGLE or BATCHES.
      wrappers: the list.
      before: what to do before `suite_gym.load` takes a wrapper of the other kind.

    Raises:
      ValueError: there is such an entry, or it is no list.
    """
    _check_list(argument, wrappers)
    (kind, name), other = _WRAPPED[argument], BATCHES if argument == SINGLE else SINGLE
    for wrapper in wrappers:
        if _is_class(wrapper, _WRAPPED[other][0]):
            raise ValueError(
                f"{_name(wrapper)} in {argument} wraps no {name}: {before}put it into suite_gym.load.{other}."
            )
        if not callable(wrapper) or (_is_class(wrapper, object) and not _is_class(wrapper, kind)):
            raise ValueError(
                f"{_name(wrapper)} in {argument} is neither a class nor a function that wraps a {name}: correct the list."
            )


def _check_list(argument: str, wrappers: Any) -> None:
    if not isinstance(wrappers, Sequence) or isinstance(wrappers, str):
        raise ValueError(f"{argument} must be a list; got {_name(wrappers)}: put it in brackets.")


def wrap(argument: str, env: Any, wrappers: Sequence[Any]) -> Any:
    """`env` in the wrappers of the list `argument`, in order.

    Raises:
      ValueError: one of them returns something else.
    """
    kind, name = _WRAPPED[argument]
    for wrapper in wrappers:
        env = wrapper(env)
        if not isinstance(env, kind):
            raise ValueError(
                f"{_name(wrapper)} in {argument} must return a {name}; it returned a {type(env).__name__}: correct it."
            )
    return env


def _is_class(wrapper: Any, of: type) -> bool:
    """Whether it is a class, or a partial of one, that derives from `of`."""
    while isinstance(wrapper, functools.partial):
        wrapper = wrapper.func
    return isinstance(wrapper, type) and issubclass(wrapper, of)


def _name(wrapper: Any) -> str:
    return getattr(wrapper, "__name__", None) or repr(wrapper)
