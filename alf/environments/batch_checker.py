"""Checks of a batched environment: that it keeps to the interface of `BatchedEnvironment`."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.gymnasium_environment import close_quietly
from alf.environments.random_actions import sample_actions
from alf.utils.exits import no_exit

FAIL, WARN, OK = "FAIL", "warn", "ok"

_FIRST, _LAST = 0, 2

# An environment may have several arrays and hand them out in turn.
_REMEMBERED = 16


class Finding(NamedTuple):
    """The outcome of a check: its name, FAIL, WARN or OK, and a sentence."""

    check: str
    level: str
    text: str


def check_batched(build: Callable[[], BatchedEnvironment], num_steps: int) -> list[Finding]:
    """Whether a batched environment keeps to the interface of `BatchedEnvironment`."""
    try:
        env = build()
    except Exception as e:
        return [Finding("batch", FAIL, f"a batch cannot be made: {type(e).__name__}: {e}")]
    rng, given, ended = np.random.default_rng(0), 0, 0
    problems: list[str] = []
    try:
        with no_exit("The environment"):
            before = env.reset()
            problems += _interface(env, before, None)
            first, recent = _arrays(before), collections.deque([_arrays(before)], _REMEMBERED)
            while not problems and given < num_steps:
                step = env.step(sample_actions(env.action_spec(), env.batch_size, rng, before.observation))
                problems += _interface(env, step, before)
                problems += _reuse(step, [first, *recent])
                recent.append(_arrays(step))
                given += 1
                ended += int((np.asarray(step.step_type) == _LAST).sum())
                before = step
    except Exception as e:
        problems.append(f"it raised {type(e).__name__} after {given} steps: {e}")
    finally:
        close_quietly(env)
    if problems:
        return [Finding("batch", FAIL, problem) for problem in problems]
    return [
        Finding("batch", OK, f"a batch of {env.batch_size} keeps to the interface: {given} steps, {ended} episodes")
    ]


def _interface(env: BatchedEnvironment, step: Any, before: Any) -> Iterator[str]:
    size = env.batch_size
    for name, dtype in (("step_type", np.int32), ("reward", np.float32), ("discount", np.float32)):
        value = np.asarray(getattr(step, name))
        if value.shape != (size,) or value.dtype != dtype:
            yield f"{name} must be {np.dtype(dtype).name} [{size}]; it is {value.dtype} {list(value.shape)}."
            return
    for spec, value in zip(tf.nest.flatten(env.observation_spec()), tf.nest.flatten(step.observation), strict=True):
        if np.shape(value) != (size, *spec.shape) or np.asarray(value).dtype != spec.dtype:
            wanted = f"{np.dtype(spec.dtype).name} {[size, *spec.shape]}"
            yield f"{spec.name} must be {wanted}; it is {np.asarray(value).dtype} {list(np.shape(value))}."
    if not np.isfinite(step.reward).all():
        yield f"the reward is {bad_value(np.asarray(step.reward))}: correct the environment."
    first = np.asarray(step.step_type) == _FIRST
    if (np.asarray(step.reward)[first] != 0).any() or (np.asarray(step.discount)[first] != 1).any():
        yield "a row at FIRST must have reward 0 and discount 1."
    if before is None:
        return
    follows = np.asarray(before.step_type) == _LAST
    if (first != follows).any():
        yield f"FIRST must follow LAST and nothing else; rows {np.flatnonzero(first != follows).tolist()} do otherwise."


def _arrays(step: Any) -> list[np.ndarray]:
    return [x for x in tf.nest.flatten(step.observation) if isinstance(x, np.ndarray)]


def _reuse(step: Any, earlier: Iterable[list[np.ndarray]]) -> list[str]:
    new = _arrays(step)
    if any(np.shares_memory(a, b) for old in earlier for a, b in zip(old, new, strict=False)):
        return ["a step writes into arrays of an earlier step: the arrays belong to the caller; hand out copies."]
    return []


def bad_value(array: np.ndarray) -> str:
    """The first value that is not finite."""
    return str(array[~np.isfinite(array)].ravel()[0])
