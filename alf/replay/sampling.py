"""Drawing sequences from rings, inside of traced code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.replay.stream_index import StreamIndex


class View(NamedTuple):
    """What can be drawn at one moment: sizes are values, so that traced code serves a replayer of any fill.

    `runs` int64 [R, 3]: stream, the first step that begins a sequence, and how many sequences begin in this run and
    those before it. `streams` int64 [M, 2], of each stream that has any: how many begin in those before it, and in it.
    `count` int64 [E]: how many steps were ever written to each stream.
    """

    runs: Any
    streams: Any
    count: Any


class Sample(NamedTuple):
    """Sequences that were drawn.

    `experience` [b, L, ...]; `stream` and `step` int64 [b]: where each begins; `weights` float32 [b]: factors of their
    losses, None where all are 1.
    """

    experience: Any
    stream: Any
    step: Any
    weights: Any = None


VIEW_SPEC = View(*(tf.TensorSpec(shape, tf.int64) for shape in ([None, 3], [None, 2], [None])))


def make_view(index: StreamIndex, length: int) -> View:
    """The view of an index for sequences of `length` steps."""
    starts = index.starts(length)
    ends = np.cumsum(starts[:, 2])
    runs = np.stack([starts[:, 0], starts[:, 1], ends], 1)
    stream_ids, at = np.unique(starts[:, 0], return_index=True)
    before = (ends - starts[:, 2])[at]
    total = ends[-1] if len(ends) else 0
    after = np.append(before[1:], total)[: len(stream_ids)]
    streams = np.stack([before, after - before], 1)
    return View(tf.constant(runs), tf.constant(streams), tf.constant(index.count))


def draw(view: View, batch_size: int, seed: tf.Tensor, balanced: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws where sequences begin, with replacement.

    Args:
      view: not empty.
      batch_size: b.
      seed: int32 [2].
      balanced: draw a stream first, each with the same chance, then a place in it; else each place has the same chance.

    Returns:
      streams and steps, int64 [b] each.
    """
    ends = view.runs[:, 2]
    if not balanced:
        at = tf.random.stateless_uniform([batch_size], seed, 0, ends[-1], tf.int64)
    else:
        seeds = tf.random.experimental.stateless_split(seed, 2)
        count = tf.shape(view.streams, tf.int64)[0]
        chosen = tf.gather(view.streams, tf.random.stateless_uniform([batch_size], seeds[0], 0, count, tf.int64))
        # One draw a row, each below its own limit.
        big = tf.random.stateless_uniform([batch_size], seeds[1], 0, 2**62, tf.int64)
        at = chosen[:, 0] + big % chosen[:, 1]
    run = tf.searchsorted(ends, at, side="right", out_type=tf.int64)
    found = tf.gather(view.runs, run)
    begins = tf.gather(tf.concat([[tf.zeros([], tf.int64)], ends[:-1]], 0), run)
    return found[:, 0], found[:, 1] + at - begins
