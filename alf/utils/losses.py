"""Element-wise losses, to be chosen by name in gin."""

from __future__ import annotations

import gin
import tensorflow as tf


@gin.configurable(module="alf.utils.losses")
def element_wise_huber_loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Huber loss with delta 1, shape of `x`: 0.5 d^2 where |d| <= 1, |d| - 0.5 beyond, d = x - y."""
    difference = tf.abs(x - y)
    quadratic = tf.minimum(difference, 1.0)
    return quadratic * (difference - 0.5 * quadratic)


@gin.configurable(module="alf.utils.losses")
def element_wise_squared_loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """(x - y)^2, shape of `x`."""
    return tf.math.squared_difference(x, y)
