"""Prioritised experience replay, proportional variant (Schaul et al., 2016, https://arxiv.org/abs/1511.05952)."""

from __future__ import annotations

import math
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from alf.data_structures import Experience
from alf.replay.sampling import Sample, View
from alf.replay.stream_index import StreamIndex, ranges
from alf.replay.sum_tree import SumTree
from alf.replay.uniform_replay import UniformReplay
from alf.utils.devices import for_host, on_host
from alf.utils.tracing import Traced
from alf.utils.value_kinds import is_scalar

# Setting a row takes room for its node's children.
_ROWS_AT_ONCE = 1 << 14


@gin.configurable(module="alf")
class PrioritizedReplay(UniformReplay):
    """`prioritized`: a sequence i is drawn with a chance P(i) that goes with its priority p_i ** alpha.

    A new sequence has the highest priority seen so far; then it has what `LossInfo.priority` said last, plus `epsilon`.
    Its loss is weighted by (N * P(i)) ** -beta over the largest such factor of its batch, N sequences being there. The
    draws of a batch are stratified: one from each of b equal shares of the sum.
    """

    def __init__(
        self,
        experience_spec: Experience,
        num_streams: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_iterations: int = 100_000,
        epsilon: float = 1e-6,
    ) -> None:
        """Creates an empty replayer.

        Args:
          experience_spec: specs of one step.
          num_streams: E, single environments.
          alpha: how much priorities count; 0 draws uniformly.
          beta: how much of the bias is taken back at first; 1 is all of it.
          beta_iterations: `train` calls after which it is 1, growing linearly; 0 keeps it as it is.
          epsilon: added to every priority, so that no sequence is lost.

        Raises:
          ValueError: a number is out of its range.
        """
        # Said here, so that a binding of UniformReplay's is not taken, and is listed as without use.
        super().__init__(experience_spec, num_streams, balanced=False)
        given = (alpha, beta, beta_iterations, epsilon)
        if (
            not all(is_scalar(number, float) for number in given)
            or not 0 <= alpha < math.inf
            or not 0 <= beta <= 1
            or not 0 <= beta_iterations < math.inf
            or not 0 < epsilon < math.inf
        ):
            raise ValueError(
                f"PrioritizedReplay needs alpha >= 0, beta in [0, 1], beta_iterations >= 0 and epsilon > 0; got "
                f"{alpha!r}, {beta!r}, {beta_iterations!r} and {epsilon!r}."
            )
        self._alpha, self._beta, self._beta_iterations, self._epsilon = alpha, beta, beta_iterations, epsilon
        self._priorities = _Priorities(num_streams, self.buffer.max_length)

    @property
    def priorities(self) -> _Priorities:
        """The priorities, to the power of alpha."""
        return self._priorities

    def view(self, mini_batch_length: int) -> View:
        """What can be drawn now; sequences that are new since the last view get their first priority.

        Raises:
          ValueError: the length is another one than before, or what was learned from the last view gave no priorities.
        """
        index = self.buffer.index
        self.check_learned()
        self._priorities.follow(index, mini_batch_length)
        return super().view(mini_batch_length)

    @for_host
    def sample(
        self, view: View, batch_size: int, mini_batch_length: int, seed: tf.Tensor, clock: tf.Tensor | int = 0
    ) -> Sample:
        """See `UniformReplay.sample`; `clock` is that of beta."""
        tree, total = self._priorities.tree, self._priorities.tree.total()
        u = tf.random.stateless_uniform([batch_size], seed, dtype=tf.float64)
        share = (tf.range(batch_size, dtype=tf.float64) + u) / batch_size
        rows = tree.draw(share * total)
        stream, place = rows // self.buffer.max_length, rows % self.buffer.max_length
        # The newest step that lies in this place.
        behind = (tf.gather(view.count, stream) - 1 - place) % self.buffer.max_length
        step = tf.gather(view.count, stream) - 1 - behind
        sequences = self.buffer.sequences(stream, step, mini_batch_length)
        chance = tree.get(rows) / total
        factor = (tf.cast(view.runs[-1, 2], tf.float64) * chance) ** -self._beta_at(clock)
        return Sample(sequences, stream, step, tf.cast(factor / tf.reduce_max(factor), tf.float32))

    def _beta_at(self, clock: tf.Tensor | int) -> tf.Tensor:
        if not self._beta_iterations:
            return tf.constant(self._beta, tf.float64)
        done = tf.minimum(tf.cast(clock, tf.float64) / self._beta_iterations, 1.0)
        return self._beta + (1.0 - self._beta) * done

    @for_host
    def learned(self, sample: Sample, priority: Any) -> None:
        """Sets the priorities of the sequences of a sample of the present view; traceable.

        Those that are negative or not finite are left as they were, and refused by `check_learned` and the next `view`.

        Raises:
          ValueError: the loss gives no priority, or one of a wrong shape.
        """
        if isinstance(priority, tuple):
            raise ValueError(
                "exp_replayer='prioritized' needs LossInfo.priority, float32 [batch], from calc_loss, such as the absolute "
                "temporal difference error of each sequence: for an algorithm that gives none, set it to 'uniform'."
            )
        if not tf.TensorShape(priority.shape).is_compatible_with(sample.stream.shape):
            raise ValueError(
                f"LossInfo.priority has shape {tuple(priority.shape)}, but it takes one number a sequence: "
                f"{tuple(sample.stream.shape)}."
            )
        rows = sample.stream * self.buffer.max_length + sample.step % self.buffer.max_length
        priorities, given = self._priorities, tf.cast(priority, tf.float64)
        fit = tf.math.is_finite(given) & (given >= 0)
        # Raised behind the traced call: where the loss is not finite either, that is what the trainer tells.
        unfit = tf.gather(given, tf.argmin(tf.cast(fit, tf.int32)))
        priorities.unfit.assign(tf.where(tf.reduce_all(fit), priorities.unfit, unfit))
        weight = tf.where(fit, (given + self._epsilon) ** self._alpha, priorities.tree.get(rows))
        priorities.highest.assign(tf.maximum(priorities.highest, tf.reduce_max(weight)))
        priorities.tree.set(rows, weight)

    def check_learned(self) -> None:
        """Raises ValueError where a loss gave what is no priority."""
        self._priorities.check_given()

    def clear(self) -> None:
        """Forgets all steps and their priorities."""
        super().clear()
        self._priorities.clear(self.buffer.index.count)

    def state(self) -> dict[str, np.ndarray]:
        """See `UniformReplay.state`."""
        return {**super().state(), **self._priorities.state(), "alpha": np.array(self._alpha)}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """See `UniformReplay.load_state`."""
        super().load_state(state)
        self._priorities.load(state)
        # What is stored are priorities to the power of the alpha of that time.
        before = float(state.get("alpha", self._alpha))
        if before != self._alpha:
            self._priorities.raise_to(self._alpha / before if before else 0.0)

    def row_specs(self) -> list[tf.TensorSpec]:
        """See `UniformReplay.row_specs`; the last one is of the priority."""
        return [*super().row_specs(), tf.TensorSpec([], tf.float64)]

    def read_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """See `UniformReplay.read_rows`."""
        return [*super().read_rows(rows), self._priorities.tree.get(tf.constant(rows)).numpy()]

    def write_rows(self, rows: np.ndarray, values: list[np.ndarray]) -> None:
        """See `UniformReplay.write_rows`."""
        super().write_rows(rows, values[:-1])
        self._priorities.tree.set(tf.constant(rows), tf.constant(values[-1]))


class _Priorities:
    """The priorities of all rows, by where sequences begin; not for TensorFlow to track.

    Attributes:
      tree: of the priorities, 0 where no sequence begins.
      highest: float64 [], that of new sequences.
      unfit: float64 [], what a loss gave last that is no priority; 0 for none.
    """

    def __init__(self, num_streams: int, max_length: int) -> None:
        self.tree = SumTree(num_streams * max_length)
        with on_host():
            self.highest = tf.Variable(1.0, dtype=tf.float64, trainable=False)
            self.unfit = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._max_length = max_length
        self._length: int | None = None
        # Weights came from elsewhere, where other rows may have begun sequences.
        self._loaded = False
        # Of each stream, the steps that are known to be overwritten or new, and the starts that have a priority.
        self._seen = np.zeros(num_streams, np.int64)
        self._begun = np.zeros(num_streams, np.int64)
        rows = tf.TensorSpec([None], tf.int64)
        self._reset = Traced(self._set_first, rows, rows)

    def check(self, length: int) -> None:
        """Raises ValueError where the priorities are of sequences of another length."""
        if self._length not in (None, length):
            raise ValueError(
                f"Priorities are of sequences of {self._length} steps and cannot be used for {length}: a prioritised "
                "replayer is for one mini_batch_length. Keep that, or clear the memory (in a run that is resumed: set "
                "checkpoint_replay=False)."
            )

    def check_given(self) -> None:
        """Raises ValueError where a loss gave what is no priority."""
        unfit = float(self.unfit.numpy())
        if unfit != 0:
            raise ValueError(
                f"LossInfo.priority has {unfit:g}; it takes finite numbers of at least 0: give the absolute error."
            )

    def follow(self, index: StreamIndex, length: int) -> None:
        """Takes out what begins nothing any more since the last call, and puts sequences in that were completed.

        Args:
          index: what is held.
          length: of the sequences.

        Raises:
          ValueError: the length is another one than before.
        """
        self.check(length)
        self._length = length
        starts, count, size = index.starts(length), index.count, self._max_length
        from_step = np.maximum(self._seen, count - size)
        streams = np.arange(len(count))
        written = _rows(streams, from_step, count - from_step, size)
        # The oldest ones lack the steps before them.
        bare = _rows(streams, index.oldest, np.minimum(index.history, count - index.oldest), size)
        written = np.concatenate([written, bare])
        stream, last = starts[:, 0], starts[:, 1] + starts[:, 2]
        if self._loaded:
            begun = _rows(stream, starts[:, 1], starts[:, 2], size)
            written = np.setdiff1d(np.arange(len(count) * size), begun)
            self._loaded = False
        first = np.maximum(starts[:, 1], self._begun[stream])
        new = _rows(stream, first, np.maximum(last - first, 0), size)
        np.maximum.at(self._begun, stream, last)
        self._seen = count.copy()
        if len(written) or len(new):
            self._reset(tf.constant(written), tf.constant(new))

    def raise_to(self, power: float) -> None:
        """Raises what new sequences have, and every weight of the tree, to a power."""
        self.highest.assign(self.highest**power)
        size = len(self._seen) * self._max_length
        for begin in range(0, size, _ROWS_AT_ONCE):
            rows = tf.range(begin, min(begin + _ROWS_AT_ONCE, size), dtype=tf.int64)
            weights = self.tree.get(rows)
            self.tree.set(rows, tf.where(weights > 0, weights**power, 0.0))

    def _set_first(self, written: tf.Tensor, new: tf.Tensor) -> None:
        self.tree.set(written, tf.zeros_like(written, tf.float64))
        self.tree.set(new, tf.fill(tf.shape(new), self.highest.read_value()))

    def clear(self, count: np.ndarray) -> None:
        """No sequence is there; those of steps before `count` never come back."""
        self.tree.clear()
        self.unfit.assign(0.0)
        self._length = None
        self._seen[:] = count
        self._begun[:] = count

    def state(self) -> dict[str, np.ndarray]:
        """What `load` takes, but for the weights in the tree."""
        return {
            "seen": self._seen.copy(),
            "begun": self._begun.copy(),
            "highest": self.highest.numpy(),
            "length": np.array(self._length or 0),
        }

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Takes over what `state` gave."""
        self._seen[:], self._begun[:] = state["seen"], state["begun"]
        self.highest.assign(state["highest"])
        self._length = int(state["length"]) or None
        self._loaded = True


def _rows(streams: np.ndarray, first: np.ndarray, sizes: np.ndarray, max_length: int) -> np.ndarray:
    return np.repeat(streams, sizes) * max_length + ranges(first, sizes) % max_length
