"""The guard against NaN and infinity in what environments give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

_POLICIES = ("error", "truncate")


def check_policy(policy: str) -> None:
    """Raises ValueError unless `policy` is "error" or "truncate"."""
    if policy not in _POLICIES:
        raise ValueError(f"nonfinite must be one of {_POLICIES}; got {policy!r}.")


def finite_check(observation_spec: Any) -> Callable[[ts.TimeStep], bool]:
    """A cheap function that says whether the rewards and all floating observations of a time step are finite.

    Args:
      observation_spec: a nest of array specs; integer leaves are not looked at.
    """
    floating = [np.issubdtype(spec.dtype, np.floating) for spec in tf.nest.flatten(observation_spec)]
    if len(floating) == 1 and not isinstance(observation_spec, (dict, tuple, list)):
        if floating[0]:
            return lambda step: _is_finite(step.reward) and _is_finite(step.observation)
        return lambda step: _is_finite(step.reward)

    def check(step: ts.TimeStep) -> bool:
        leaves = zip(floating, tf.nest.flatten(step.observation), strict=True)
        return _is_finite(step.reward) and all(_is_finite(leaf) for is_float, leaf in leaves if is_float)

    return check


def _is_finite(values: np.ndarray) -> bool:
    # The sum of squares is finite only where all values are, and costs half; it may overflow, hence the second look.
    return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def nonfinite_error(
    step: ts.TimeStep, observation_spec: Any, first_env_id: int, step_number: int, first: bool = False
) -> FloatingPointError:
    """The error that names the first stream and value of `step` that are not finite.

    Args:
      step: [B] a time step that `finite_check` refused.
      observation_spec: its specs, whose names the error gives.
      first_env_id: the stream of row 0.
      step_number: how many time steps each stream gave before this one.
      first: it begins episodes, where there is nothing to truncate.
    """
    names = [spec.name or "observation" for spec in tf.nest.flatten(observation_spec)]
    values = [("reward", step.reward), *zip(names, tf.nest.flatten(step.observation), strict=True)]
    for name, value in values:
        bad = ~np.isfinite(value).reshape(len(value), -1).all(axis=1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            seen = np.array2string(value[row], threshold=8)
            advice = ": correct the environment, or set nonfinite='truncate' to go on without it."
            if first:
                advice = ", the first of an episode, which cannot be truncated: correct the environment's reset."
            return FloatingPointError(
                f"Stream {first_env_id + row} (row {row} of {len(value)}) gave {name} = {seen} at its step "
                f"{step_number}{advice}"
            )
    return FloatingPointError(f"A value that is not finite came at step {step_number}.")
