"""The memory of a replayer: rings of steps, one for each stream, every step stored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from alf.data_structures import Experience, Nest, StepType
from alf.replay.experience_replayer import NOTHING_TO_REPLAY
from alf.replay.frame_stacks import FrameStacks
from alf.replay.stream_index import StreamIndex
from alf.utils import nest_utils
from alf.utils.devices import for_host, on_host
from alf.utils.tracing import Traced
from alf.utils.value_kinds import is_scalar

# TensorFlow makes empty tensors by sizes of int32.
_LONGEST = 2**31 - 1


@gin.configurable(module="alf")
class ReplayBuffer:
    """Rings of the last `max_length` steps of each stream, in host memory, which is taken as it fills.

    A stream is what one single environment (`env_id`) goes through. Each step is stored once; what follows a step is the
    next row. Not a tf.Module: what it holds does not belong into the checkpoints of an algorithm.

    Attributes:
      index: what the rings hold.
      num_environments: E.
      max_length: C.
    """

    def __init__(
        self,
        data_spec: Experience,
        num_environments: int,
        max_length: int = 1024,
        *,
        frame_stack: int = 1,
        frame_axis: int = -1,
        frame_stack_fields: Sequence[str] | None = None,
        store_transitions_only_when_episodes_are_terminated: bool = False,
        before_storing: Callable[[Experience], Experience] | None = None,
    ) -> None:
        """Creates empty rings.

        Args:
          data_spec: Experience of specs of one step, without a bootstrap.
          num_environments: E, single environments; ids are 0 .. E - 1.
          max_length: C, steps kept of each environment.
          frame_stack: k: observations of rank 3 are stacks of the last k frames, of which only the newest is stored; they
            are put together again when they are read. 1 stores observations as they are.
          frame_axis: along which they are stacked, -1 or -3 for the channels of an image.
          frame_stack_fields: dotted paths of those that are stacks, in a nested observation. None: the only one whose
            frames are a multiple of k.
          store_transitions_only_when_episodes_are_terminated: the steps of an episode are held from its end on, truncated
            or not, all at once and in order; those of one that never ends are not. Until then they take their place in the
            ring.
          before_storing: alters what is stored: of experience with any leading axes, without a bootstrap, it gives the
            same with other values, in TensorFlow. Step types and ids stay what they are.

        Raises:
          ValueError: a size is no whole number, below 1 or larger than the machine takes, there are no such stacks, or it
            is not said which.
        """
        if not all(is_scalar(size, int) and size >= 1 for size in (num_environments, max_length)):
            raise ValueError(
                "ReplayBuffer needs num_environments and max_length, whole numbers of at least 1, got "
                f"{num_environments!r} and {max_length!r}."
            )
        num_environments, max_length = int(num_environments), int(max_length)
        if max(num_environments, max_length) > _LONGEST:
            raise ValueError(f"ReplayBuffer.max_length={max_length} must be at most {_LONGEST}.")
        self.num_environments, self.max_length = num_environments, max_length
        self._spec = data_spec._replace(bootstrap=())
        self._frames = FrameStacks(frame_stack, frame_axis, self._spec, frame_stack_fields)
        self._until_ends = store_transitions_only_when_episodes_are_terminated
        self._before_storing = before_storing
        self.index = StreamIndex(num_environments, max_length, self._frames.size - 1, self._until_ends)
        try:
            with on_host():
                self._storage = [_rings(num_environments, max_length, s) for s in self._frames.stored_specs()]
        except tf.errors.ResourceExhaustedError:
            raise ValueError(
                f"ReplayBuffer.max_length={max_length} of {num_environments} environments takes "
                f"{num_environments * max_length * self.step_bytes / 2**30:.1f} GiB, which this machine does not have: lower it; "
                "of stacked pictures ReplayBuffer.frame_stack stores each frame once."
            ) from None
        # Which rows hold the end of an episode.
        self._ends = np.zeros(num_environments * max_length, bool)
        # By the leading axes of a batch, of which a run has few.
        self._writer = Traced(for_host(self._scatter))
        # What must come next in each stream, flat leaves [E, ...]: the last bootstrap, where there was one.
        self._next: list[np.ndarray] = []
        self._next_known = np.zeros(num_environments, bool)
        self._last_type = np.full(num_environments, -1)
        self._bootstraps: Nest = ()

    @property
    def stored_specs(self) -> list[tf.TensorSpec]:
        """Specs of the leaves of one step as they are stored, flat."""
        return self._frames.stored_specs()

    @property
    def waits_for_ends(self) -> bool:
        """Whether steps are held from the end of their episode on only."""
        return self._until_ends

    @property
    def num_episodes(self) -> int:
        """Episodes whose end is held, of all streams."""
        return int(np.count_nonzero(self._ends))

    @property
    def total_steps(self) -> int:
        """Steps held, of all streams."""
        runs = self.index.runs()
        return int((runs[:, 2] - runs[:, 1]).sum())

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes."""
        return sum(s.dtype.size * int(np.prod(s.shape)) for s in self.stored_specs)

    # ---- writing ----

    def add(self, exp: Experience) -> None:
        """Stores experience [Q, T, B, ...] with bootstrap [Q, B, ...], or single steps [B, ...] without one.

        A segment goes on a run of its stream where its first step is the bootstrap of the segment before; a single step,
        where its step type may follow. Anything else begins a new run: sequences never reach over such a gap.

        Raises:
          ValueError: an id is out of range, or twice in one row.
        """
        if exp.step_type.shape.rank == 1:
            following = exp.bootstrap
            exp = tf.nest.map_structure(lambda x: x[tf.newaxis, tf.newaxis], exp._replace(bootstrap=()))
            exp = exp._replace(bootstrap=tf.nest.map_structure(lambda x: x[tf.newaxis], following))
        # Rows of all streams together may be more than an int32 counts.
        ids = np.asarray(exp.env_id)[:, 0].astype(np.int64)
        self._check_ids(ids)
        self._frames.check(exp)
        queue, time = exp.step_type.shape[:2]
        first_rows = [np.asarray(x)[:, 0] for x in tf.nest.flatten(_time_step(exp))]
        step_types = np.asarray(exp.step_type)
        steps = np.empty((queue, time, ids.shape[1]), np.int64)
        for q in range(queue):
            continues = self._continues(ids[q], [x[q] for x in first_rows])
            steps[q] = self.index.append(ids[q], time, continues) + np.arange(time)[:, np.newaxis]
            self._expect(ids[q], exp.bootstrap, q, step_types[q, -1])
            if self._until_ends:
                self._commit(ids[q], steps[q], step_types[q] == StepType.LAST)
        streams = np.broadcast_to(ids[:, np.newaxis], steps.shape)
        rows = self.index.rows(streams, steps)
        alive = steps >= self.index.oldest[streams]
        self._ends[rows[alive]] = (step_types == StepType.LAST)[alive]
        exp = exp._replace(bootstrap=())
        if alive.all():
            self._write(rows, exp)
        else:
            kept = np.flatnonzero(alive)
            flat = tf.nest.map_structure(lambda x: tf.gather(tf.reshape(x, [-1, *x.shape[3:]]), kept), exp)
            self._write(rows.reshape(-1)[kept], flat)

    def _commit(self, streams: np.ndarray, steps: np.ndarray, ends: np.ndarray) -> None:
        """Has the index hold the episodes [T, B] that have ended."""
        ended = np.flatnonzero(ends.any(0))
        last = len(ends) - 1 - np.argmax(ends[::-1, ended], 0)
        self.index.commit(streams[ended], steps[last, ended] + 1)

    def _check_ids(self, ids: np.ndarray) -> None:
        if ids.min() < 0 or ids.max() >= self.num_environments:
            raise ValueError(
                f"env_id {ids.min()} .. {ids.max()} does not fit a replayer of {self.num_environments} environments."
            )
        for row in ids:
            if len(np.unique(row)) != len(row):
                raise ValueError(f"Each row of a segment is another stream, got env_id {row.tolist()}.")

    def _continues(self, streams: np.ndarray, first: list[np.ndarray]) -> np.ndarray:
        """Whether the time steps `first`, flat leaves [B, ...], are what must come next: bool [B]."""
        step_type, last_type = first[0], self._last_type[streams]
        fits = (last_type >= 0) & ((step_type == StepType.FIRST) == (last_type == StepType.LAST))
        known = self._next_known[streams]
        if not known.any():
            return fits
        # Where an agent is lost, the step that was handed out as its next is its end.
        lost = (step_type == StepType.LAST) & (self._next[0][streams] == StepType.MID)
        same = lost | (step_type == self._next[0][streams])
        for value, expected in zip(first[1:], self._next[1:], strict=True):
            same &= (value == expected[streams]).reshape(len(streams), -1).all(1)
        return np.where(known, same, fits)

    def _expect(self, streams: np.ndarray, bootstrap: Any, q: int, last_type: np.ndarray) -> None:
        self._last_type[streams] = last_type
        self._next_known[streams] = bootstrap != ()
        if bootstrap == ():
            return
        given = [np.asarray(x)[q] for x in tf.nest.flatten(bootstrap)]
        if not self._next:
            kept = [np.zeros((self.num_environments, *x.shape[1:]), x.dtype) for x in given]
            self._bootstraps = tf.nest.pack_sequence_as(bootstrap, kept)
            self._next = tf.nest.flatten(self._bootstraps.time_step)
        for kept_leaf, x in zip(tf.nest.flatten(self._bootstraps), given, strict=True):
            kept_leaf[streams] = x

    def _write(self, rows: np.ndarray, exp: Experience) -> None:
        self._writer(tf.constant(rows), exp)

    def _scatter(self, rows: tf.Tensor, exp: Experience) -> None:
        flat = tf.reshape(rows, [-1])
        if self._before_storing is not None:
            exp = _altered(self._before_storing, exp)
        tf.nest.assert_same_structure(exp, self._spec)
        for variable, x in zip(self._storage, self._frames.stored(exp), strict=True):
            variable.scatter_update(tf.IndexedSlices(tf.reshape(x, [-1, *variable.shape[1:]]), flat))

    @property
    def before_storing(self) -> Callable[[Experience], Experience] | None:
        """What alters experience on its way into the memory, None for nothing."""
        return self._before_storing

    def write_rows(self, rows: np.ndarray, values: list[np.ndarray]) -> None:
        """Puts flat leaves [n, ...] into rows [n]; the index is not changed."""
        self._ends[rows] = values[0] == StepType.LAST
        for variable, x in zip(self._storage, values, strict=True):
            variable.scatter_update(tf.IndexedSlices(tf.constant(x), tf.constant(rows)))

    def end_streams(self) -> None:
        """Whatever comes next begins new runs: the environments are others."""
        self._next_known[:] = False
        self._last_type[:] = -1

    def clear(self) -> None:
        """Forgets all steps."""
        self._ends[:] = False
        self.index.clear()
        self.end_streams()

    # ---- reading ----

    def read_rows(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """The flat leaves [n, ...], as stored, of rows int64 [n]."""
        return [v.sparse_read(rows) for v in self._storage]

    def sequences(self, streams: tf.Tensor, first: tf.Tensor, length: int) -> Experience:
        """Sequences of `length` steps; traceable.

        Args:
          streams: int64 [b].
          first: int64 [b], the numbers of the steps that they begin at.
          length: L.

        Returns:
          Experience [b, L, ...].
        """
        before = self._frames.size - 1
        rows = self._rows(streams, first, length)
        longer = self._rows(streams, first - before, length + before) if before else rows
        leaves = [
            _read(v, longer if stack else rows) for v, stack in zip(self._storage, self._frames.stacked, strict=True)
        ]
        if before:
            step_type = _read(self._storage[0], longer)
            leaves = [
                self._frames.stacks(x, step_type) if stack else x
                for x, stack in zip(leaves, self._frames.stacked, strict=True)
            ]
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def step_types(self, streams: tf.Tensor, first: tf.Tensor, length: int) -> tf.Tensor:
        """int32 [b, L]: the step types alone of `sequences`, whose arguments these are; rows not written are arbitrary."""
        return _read(self._storage[0], self._rows(streams, first, length))

    def _rows(self, streams: tf.Tensor, first: tf.Tensor, length: int) -> tf.Tensor:
        steps = first[:, tf.newaxis] + tf.range(length, dtype=tf.int64)
        return streams[:, tf.newaxis] * self.max_length + steps % self.max_length

    def check_whole(self) -> None:
        """Raises ValueError where what is held cannot be handed out as a whole, because of a setting."""
        settings = {
            "frame_stack=1": self._frames.size > 1,
            "store_transitions_only_when_episodes_are_terminated=False": self._until_ends,
            "before_storing=None": self._before_storing is not None,
        }
        for needed, missing in settings.items():
            if missing:
                raise ValueError(
                    f"Training on the whole replay buffer needs ReplayBuffer.{needed}, or exp_replayer='one_time'."
                )

    def gather_all(self) -> Experience:
        """All steps in order [E', n, ...] with the bootstraps [E', ...] of the E' streams that hold some.

        A step that nothing follows on, since the environments were others from there, is made LAST: values bootstrap from
        it, as from any that ends no episode truly, and its action is not learned from. The step behind it is made FIRST, so
        that recurrent networks begin anew there.

        Raises:
          ValueError: there are none, streams hold different numbers of steps, or some between others are not held.
        """
        self.check_whole()
        runs = self.index.runs()
        if not len(runs):
            raise ValueError(NOTHING_TO_REPLAY)
        # The runs of a stream follow each other: of all but the last the next step is not known.
        streams, begin = np.unique(runs[:, 0], return_index=True)
        first, sizes = runs[begin, 1], np.add.reduceat(runs[:, 2] - runs[:, 1], begin)
        if len(set(sizes)) > 1:
            raise ValueError(
                f"Training on the whole replay buffer needs streams of equal length, and they have {sizes.min()} to "
                f"{sizes.max()} steps: train on samples (whole_replay_buffer_training=False), or use "
                "exp_replayer='one_time'."
            )
        if (np.maximum.reduceat(runs[:, 2], begin) != first + sizes).any():
            raise ValueError(
                "Training on the whole replay buffer needs all steps of its streams, and of those that were kept by whole "
                "episodes some are missing in between: train on samples (whole_replay_buffer_training=False)."
            )
        exp = self.sequences(tf.constant(streams), tf.constant(first), int(sizes[0]))
        ended = np.delete(runs, np.append(begin[1:], len(runs)) - 1, axis=0)
        if len(ended):
            row = np.searchsorted(streams, ended[:, 0])
            behind = ended[:, 2] - first[row]
            step_type = np.array(exp.step_type)
            begins = step_type[row, behind] != StepType.LAST
            step_type[row[begins], behind[begins]] = StepType.FIRST
            step_type[row, behind - 1] = StepType.LAST
            exp = exp._replace(step_type=tf.constant(step_type))
        if not self._next_known[streams].all():
            return exp
        return exp._replace(bootstrap=tf.nest.map_structure(lambda x: tf.constant(x[streams]), self._bootstraps))


def _time_step(exp: Experience) -> tuple[Nest, ...]:
    """The fields that a time step has too, in its order."""
    return (exp.step_type, exp.reward, exp.discount, exp.observation, exp.prev_action, exp.env_id)


def _altered(alter: Callable[[Experience], Experience], exp: Experience) -> Experience:
    """What `alter` makes of experience; ValueError when that is of other specs."""
    altered = alter(exp)
    if not nest_utils.same_structure(exp, altered) or _specs(exp) != _specs(altered):
        raise ValueError(
            f"ReplayBuffer.before_storing made {altered} of {exp}: fields, shapes and dtypes must stay what they are."
        )
    return altered._replace(step_type=exp.step_type, env_id=exp.env_id)


def _specs(exp: Experience) -> list[tuple[tf.DType, tf.TensorShape]]:
    return [(x.dtype, x.shape) for x in map(tf.convert_to_tensor, tf.nest.flatten(exp))]


def _read(variable: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """The rows [b, L] of a ring: [b, L, ...]."""
    flat = variable.sparse_read(tf.reshape(rows, [-1]))
    return tf.reshape(flat, [-1, rows.shape[1], *variable.shape[1:]])


def _rings(streams: int, length: int, spec: tf.TensorSpec) -> tf.Variable:
    """The rows of all rings, one behind the other, [streams * length, shape of the spec]."""
    # Memory that is not filled is not taken from the machine before it is written.
    empty = tf.raw_ops.Empty(shape=[streams, length, *spec.shape], dtype=spec.dtype)
    return tf.Variable(tf.reshape(empty, tf.constant([streams * length, *spec.shape], tf.int64)), trainable=False)
