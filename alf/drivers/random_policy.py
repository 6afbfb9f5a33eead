"""Acting at random, to warm up."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.unroll import Call, Policy
from alf.utils import rng


def random_policy(policy: Policy, action_spec: Nest) -> Policy:
    """Acts at random within the specs; what else acting gives and records is that of `policy`."""

    def act(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
        policy_step, version = policy(call, time_step, state, t)
        rows = tf.shape(time_step.step_type)[:1]
        with rng.scope(call.seed + tf.stack([1, t])):
            action = tf.nest.map_structure(lambda spec: _sample(spec, rows), action_spec)
        return policy_step._replace(action=action), version

    return act


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
