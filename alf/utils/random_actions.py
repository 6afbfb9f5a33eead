"""Actions at random, from the specs of actions alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import Nest
from alf.utils import rng
from alf.utils.action_masks import allowed_of, draw_allowed
from alf.utils.common import are_bounded


def random_actions(action_spec: Nest, rows: tf.Tensor, allowed: tf.Tensor | None = None) -> Nest:
    """Actions [B, ...], uniform within bounds; normal, and within the bounds, where these are not finite.

    Args:
      action_spec: nest of bounded specs of one action.
      rows: int32 [1], B.
      allowed: bool [B, number of actions], or [B, K, number of actions] for an action of shape [K], where there is one
        discrete action and some are forbidden.
    """
    if allowed is None:
        return tf.nest.map_structure(lambda spec: _sample(spec, rows), action_spec)
    return tf.nest.map_structure(lambda spec: _sample_allowed(spec, allowed), action_spec)


def _sample_allowed(spec: Any, allowed: tf.Tensor) -> tf.Tensor:
    """[B, ...] uniform over what `allowed` allows, numbered as networks do, from 0 on."""
    # Where the mask of a row says nothing, not what smaller components do not have.
    there = np.arange(allowed.shape[-1]) <= np.asarray(spec.maximum - spec.minimum)[..., np.newaxis]
    drawn = draw_allowed(allowed_of(allowed, there), rng.next_seed())
    return tf.cast(tf.reshape(drawn, [-1, *spec.shape]), spec.dtype)


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
    finite = are_bounded(low, high)
    uniform = drawn * np.where(finite, width, 0) + np.where(finite, low, 0)
    normal = tf.clip_by_value(tf.random.stateless_normal(shape, rng.next_seed(), dtype=dtype), low, high)
    return tf.where(finite, uniform, normal)
