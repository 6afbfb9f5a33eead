"""A tree of partial sums, to draw from many weights that change."""

from __future__ import annotations

import tensorflow as tf

from alf.utils.devices import on_host

# Children of a node: a million leaves make four levels, where two children would make twenty, each with its own operations.
_FAN_OUT = 32


class SumTree:
    """Weights float64 of leaves 0 .. size - 1, zero at first; setting and drawing take O(log size), in traced code.

    Sums are made anew from their children at each change, so that rounding does not add up.
    """

    def __init__(self, size: int, fan_out: int = _FAN_OUT) -> None:
        """Creates the tree.

        Args:
          size: number of leaves.
          fan_out: children of a node.

        Raises:
          ValueError: a number is too small.
        """
        if size < 1 or fan_out < 2:
            raise ValueError(f"SumTree needs size >= 1 and fan_out >= 2, got {size} and {fan_out}.")
        self._fan_out = fan_out
        # From the leaves up, in blocks of children [n, fan_out].
        self._levels: list[tf.Variable] = []
        with on_host():
            while not self._levels or size > 1:
                size = -(-size // fan_out)
                self._levels.append(tf.Variable(tf.zeros([size, fan_out], tf.float64), trainable=False))

    def total(self) -> tf.Tensor:
        """float64 []: the sum of all weights."""
        return tf.reduce_sum(self._levels[-1].sparse_read([0]))

    def get(self, leaves: tf.Tensor) -> tf.Tensor:
        """float64 [n]: the weights of leaves int64 [n]."""
        return self._levels[0].gather_nd(self._place(leaves))

    def set(self, leaves: tf.Tensor, weights: tf.Tensor) -> None:
        """Sets weights float64 [n], not negative, of leaves int64 [n]; of a leaf that is there twice, one of the two."""
        values = weights
        for level in self._levels:
            level.scatter_nd_update(self._place(leaves), values)
            leaves = leaves // self._fan_out
            values = tf.reduce_sum(level.sparse_read(leaves), 1)

    def draw(self, at: tf.Tensor) -> tf.Tensor:
        """The leaves int64 [n] in whose share of [0, total) the numbers `at` float64 [n] lie.

        A leaf of weight 0 is never drawn, unless all are 0.
        """
        node = tf.zeros_like(at, tf.int64)
        for level in reversed(self._levels):
            block = level.sparse_read(node)
            ends = tf.cumsum(block, axis=1)
            # A number next to the total may come out past it: then it is in the share of the last child that has one.
            at = tf.minimum(at, ends[:, -1] * (1.0 - 2.0**-52))
            child = tf.reduce_sum(tf.cast(ends <= at[:, tf.newaxis], tf.int64), 1)
            child = tf.minimum(child, self._fan_out - 1)
            begin = tf.gather(ends, child, batch_dims=1) - tf.gather(block, child, batch_dims=1)
            # Rounding must not make it negative, which would be the share of the first child.
            at = tf.maximum(at - begin, 0.0)
            node = node * self._fan_out + child
        return node

    def clear(self) -> None:
        """All weights 0."""
        for level in self._levels:
            level.assign(tf.zeros_like(level))

    def _place(self, leaves: tf.Tensor) -> tf.Tensor:
        return tf.stack([leaves // self._fan_out, leaves % self._fan_out], 1)
