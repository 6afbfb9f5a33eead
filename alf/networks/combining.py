"""Layers that make one tensor of a nest, for `preprocessing_combiner`."""

from __future__ import annotations

import gin
import tensorflow as tf

from alf.data_structures import Nest


@gin.configurable(module="alf.networks")
class FlattenAndConcatenate(tf.keras.layers.Layer):
    """Flattens each tensor [B, ...] of a nest and puts them side by side, in the order of the nest: float32 [B, n]."""

    def call(self, inputs: Nest) -> tf.Tensor:
        """Returns [B, n] of a nest of [B, ...]."""
        leaves = [tf.cast(x, tf.float32) for x in tf.nest.flatten(inputs)]
        return tf.concat([tf.reshape(x, [tf.shape(x)[0], x.shape[1:].num_elements()]) for x in leaves], -1)
