"""Acting at random, to warm up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.unroll import Call, Policy
from alf.utils import rng
from alf.utils.action_masks import draw_allowed


def random_policy(
    policy: Policy, action_spec: Nest, allowed: Callable[[ActionTimeStep], tf.Tensor | None] | None = None
) -> Policy:
    """Acts at random within the specs; what else acting gives and records is that of `policy`.

    Args:
      policy: gives the rest.
      action_spec: nest of bounded specs of one action.
      allowed: which actions a time step [B, ...] allows, bool [B, number of actions], where there is one discrete action
        of shape [] or [1]; None for all.
    """

    def act(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
        policy_step, version = policy(call, time_step, state, t)
        rows = tf.shape(time_step.step_type)[:1]
        with rng.scope(call.seed + tf.stack([1, t])):
            mask = allowed(time_step) if allowed else None
            if mask is None:
                action = tf.nest.map_structure(lambda spec: _sample(spec, rows), action_spec)
            else:
                action = tf.nest.map_structure(lambda spec: _sample_allowed(spec, mask), action_spec)
        return policy_step._replace(action=action), version

    return act


def _sample_allowed(spec: Any, allowed: tf.Tensor) -> tf.Tensor:
    """[B, ...] uniform over what `allowed` allows, numbered as networks do, from 0 on."""
    return tf.cast(tf.reshape(draw_allowed(allowed, rng.next_seed()), [-1, *spec.shape]), spec.dtype)


def _sample(spec: Any, rows: tf.Tensor) -> tf.Tensor:
    """[B, ...] uniform within a bounded spec; normal, and within the bounds, where these are not finite."""
    shape = tf.concat([rows, spec.shape.as_list()], 0)
    # Integers in floats too, since every element has bounds of its own.
    dtype = tf.float64 if spec.dtype.is_integer else spec.dtype
    low, high = (
        np.broadcast_to(np.asarray(bound, dtype.as_numpy_dtype), spec.shape) for bound in (spec.minimum, spec.maximum)
    )
    drawn = tf.random.stateless_uniform(shape, rng.next_seed(), dtype=dtype)
    if spec.dtype.is_integer:
        return tf.cast(tf.floor(drawn * (high - low + 1)) + low, spec.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    finite = np.isfinite(width)
    uniform = drawn * np.where(finite, width, 0) + np.where(finite, low, 0)
    normal = tf.clip_by_value(tf.random.stateless_normal(shape, rng.next_seed(), dtype=dtype), low, high)
    return tf.where(finite, uniform, normal)
