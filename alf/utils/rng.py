"""Random streams for traced code: every draw is stateless and follows from one seed.

The code that builds a graph opens a `scope` with a seed tensor; whatever samples inside asks `next_seed` for a seed of
its own. Draws are numbered while Python runs, that is while tracing, so that a function gives the same numbers for the
same scope seed, whichever thread runs it and whatever else is running. A loop body gives each round its own seed by
opening a scope with a seed that depends on the round.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from alf.utils.devices import on_host


class _Stream:
    """A seed and the number of draws taken from it."""

    def __init__(self, seed: tf.Tensor) -> None:
        self._seed = seed
        self._draws = 0

    def next_seed(self) -> tf.Tensor:
        with on_host():  # where TensorFlow takes it from, also for numbers that are drawn on a GPU
            seed = tf.random.experimental.stateless_fold_in(self._seed, self._draws)
        self._draws += 1
        return seed


class _Streams(threading.local):
    """The open scopes of one thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Stream] = []


_streams = _Streams()


@contextlib.contextmanager
def scope(seed: tf.Tensor) -> Iterator[None]:
    """Makes `next_seed` in this thread draw from `seed` until the block ends; scopes nest, the innermost counts.

    Args:
      seed: int32 or int64 [2], a stateless seed.

    Raises:
      ValueError: `seed` has another shape or dtype.
    """
    seed = tf.convert_to_tensor(seed)
    if seed.dtype not in (tf.int32, tf.int64) or not seed.shape.is_compatible_with([2]):
        raise ValueError(
            f"A stateless seed is an int32 or int64 tensor of shape [2], got {seed.dtype.name} {seed.shape}: "
            "make one with tf.constant([a, b])."
        )
    _streams.stack.append(_Stream(tf.cast(seed, tf.int32)))
    try:
        yield
    finally:
        _streams.stack.pop()


def next_seed() -> tf.Tensor:
    """A fresh stateless seed, int32 [2].

    Inside a `scope` it is derived from the scope's seed and from how many seeds were taken from that scope before.
    Outside it comes from TensorFlow's default generator, which `tf.random.set_seed` makes repeatable.
    """
    if _streams.stack:
        return _streams.stack[-1].next_seed()
    return tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max, dtype=tf.int32)
