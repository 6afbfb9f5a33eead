"""Small mathematical functions: activations for gin, and statistics over the valid entries of a batch."""

from __future__ import annotations

import gin
import tensorflow as tf

_EPSILON = 1e-8


@gin.configurable
def clipped_exp(value: tf.Tensor, clip_value_min: float = -20, clip_value_max: float = 2) -> tf.Tensor:
    """The exponential of `value` clipped to [clip_value_min, clip_value_max]; usual between a network and a scale."""
    return tf.exp(tf.clip_by_value(value, clip_value_min, clip_value_max))


@gin.configurable
def swish(x: tf.Tensor) -> tf.Tensor:
    """The activation x * sigmoid(x), Ramachandran et al. 2017, https://arxiv.org/abs/1710.05941."""
    return x * tf.sigmoid(x)


def masked_mean(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """The mean of the entries of `x` where `mask` holds, [] float32; 0 where it holds nowhere.

    Args:
      x: float32 [...].
      mask: bool or float32 0/1 of the same shape; None means all.
    """
    if mask is None:
        return tf.reduce_mean(x)
    mask = tf.cast(mask, x.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(x * mask), tf.reduce_sum(mask))


def _centred(x: tf.Tensor, mask: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """`x` minus its mean over the mask, 0 outside it."""
    return (x - tf.math.divide_no_nan(tf.reduce_sum(x * mask), count)) * mask


def normalize_advantages(advantages: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Shifts and scales to mean 0 and standard deviation 1 over the valid entries.

    Args:
      advantages: float32 [...].
      mask: bool or float32 0/1 of the same shape; None means all valid.

    Returns:
      float32, the same shape, 0 at invalid entries. A single valid entry has no spread and stays as it is.
    """
    mask = tf.ones_like(advantages) if mask is None else tf.cast(mask, advantages.dtype)
    count = tf.reduce_sum(mask)
    centred = _centred(advantages, mask, count)
    variance = tf.math.divide_no_nan(tf.reduce_sum(tf.square(centred)), count)
    return tf.where(count > 1.0, centred / (tf.sqrt(variance) + _EPSILON), advantages * mask)


def explained_variance(ypred: tf.Tensor, y: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """1 - Var(y - ypred) / Var(y) over the valid entries, [] float32; 0 where y does not vary.

    1 is a perfect prediction, 0 as good as a constant, below 0 worse than that.

    Args:
      ypred: float32 [...], predictions.
      y: float32, same shape, what was to be predicted.
      mask: bool or float32 0/1 of the same shape; None means all valid.
    """
    mask = tf.ones_like(y) if mask is None else tf.cast(mask, y.dtype)
    count = tf.reduce_sum(mask)
    variance = tf.reduce_sum(tf.square(_centred(y, mask, count)))
    residual = _centred(y - ypred, mask, count)
    return tf.where(variance > 0.0, 1.0 - tf.math.divide_no_nan(tf.reduce_sum(tf.square(residual)), variance), 0.0)
