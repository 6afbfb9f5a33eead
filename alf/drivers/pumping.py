"""Segments that other processes collect: how they travel, and where they come from.

A worker is an `AsyncOffPolicyDriver` whose learner's side nobody uses: it is given weights by `load` and asked for segments
by `next_segment`. The learner's driver gets them from a `SegmentSource` (`RemoteCollection`), in place of environment
threads of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import Bootstrap
from alf.drivers.threads import LogEntry
from alf.drivers.unroll import Segment
from alf.metrics.time_shares import Timings
from alf.utils.common import add_outer_dims


class WireSegment(NamedTuple):
    """A segment as it travels: `arrays` are the flat leaves of a `Segment`, `thread` the environment thread it is of."""

    thread: int
    arrays: list[np.ndarray]


class SegmentSource(Protocol):
    """Where the segments of a driver come from that collects nothing itself.

    Attributes:
      threads: environment threads, all of its workers together; segments name theirs by a number below it.
    """

    threads: int

    def start(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        """Begins to collect, by weights that are those of `RLAlgorithm.acting_variables`, in that order."""

    def publish(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        """Has what is collected from now on act by newer weights, or at random; does not wait for anybody."""

    def request_batch(self, count: int) -> None:
        """Has the next `count` segments collected by the weights published last; only for a driver in mode "sync"."""

    def fetch(self, timeout: float) -> WireSegment:
        """The next segment, its thread counted over all workers.

        Raises:
          QueueEmpty: none has come within `timeout` seconds.
          QueueClosed: the source was stopped.
          Exception: what has ended it.
        """

    def stop(self) -> None:
        """Ends all workers in bounded time; any number of times, from any thread."""

    def stats(self) -> dict[str, float]:
        """Scalars for displays."""

    def timings(self) -> Timings:
        """What the time of all environment threads together went to so far; the learner's is none of its."""

    def describe(self) -> str:
        """A sentence on who collects, without a full stop."""

    def who_is_waited_for(self) -> str:
        """Who has not answered, for the message of a learner that has waited too long."""


def to_wire(entry: LogEntry) -> WireSegment:
    """A segment of this process as it travels."""
    return WireSegment(entry.thread, [leaf.numpy() for leaf in tf.nest.flatten(entry.segment)])


class Unpacker:
    """Makes segments of an algorithm out of what travelled."""

    def __init__(self, algorithm: RLAlgorithm, batch_size: int, unroll_length: int) -> None:
        """Prepares for segments [T, B, ...].

        Args:
          algorithm: gives their structure; that of the workers has the same specs.
          batch_size: B.
          unroll_length: T.
        """
        self._batch_size, self._length = batch_size, unroll_length
        rows = add_outer_dims(algorithm.experience_spec._replace(bootstrap=()), [unroll_length, batch_size])
        following = Bootstrap(algorithm.transformed_time_step_spec, algorithm.train_state_spec)
        self._spec = Segment(
            experience=rows._replace(bootstrap=add_outer_dims(following, [batch_size])),
            outcome=tf.TensorSpec([unroll_length, 3, batch_size], tf.float32),
            versions=tf.TensorSpec([unroll_length], tf.int64),
        )
        self._expected = [(tuple(s.shape), s.dtype.as_numpy_dtype) for s in tf.nest.flatten(self._spec)]

    def __call__(self, wire: WireSegment) -> LogEntry:
        """The segment, with the ids of the rows of its thread.

        Raises:
          ValueError: it is of another shape than this algorithm's: the worker was configured otherwise.
        """
        seen = [(x.shape, x.dtype.type) for x in wire.arrays]
        if seen != self._expected:
            at, (mine, theirs) = next(
                ((i, pair) for i, pair in enumerate(zip(self._expected, seen, strict=False)) if pair[0] != pair[1]),
                (min(len(seen), len(self._expected)), (len(self._expected), len(seen))),
            )
            raise ValueError(
                f"A segment of environment thread {wire.thread} does not fit the learner's algorithm (array {at}: {theirs} "
                f"instead of {mine}): workers and learner need the same configuration and the same version of alf."
            )
        segment: Segment = tf.nest.pack_sequence_as(self._spec, [tf.constant(x) for x in wire.arrays])
        ids = wire.thread * self._batch_size + np.arange(self._batch_size, dtype=np.int32)
        exp = segment.experience
        following = exp.bootstrap.time_step._replace(env_id=tf.constant(ids))
        exp = exp._replace(
            env_id=tf.constant(np.broadcast_to(ids, (self._length, self._batch_size))),
            bootstrap=exp.bootstrap._replace(time_step=following),
        )
        return LogEntry(wire.thread, segment._replace(experience=exp))
