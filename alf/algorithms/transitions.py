"""Which recorded rows a critic's loss trains, and which row each of them looks at."""

from __future__ import annotations

import tensorflow as tf

from alf.algorithms.one_step_loss import ALL_STEPS, look_ahead
from alf.data_structures import Nest, TrainingInfo
from alf.utils.common import flat


class Transitions:
    """The rows [T, B] that are trained, the first K = T - n_step, each with the one row that its target is made of.

    With `ALL_STEPS` they are the first T - 1, and that row is the last of the episode, or of the sequence.

    What a loss needs of them it computes in batches [K * B, ...], and nothing for other rows.
    """

    def __init__(self, training_info: TrainingInfo, n_step: int) -> None:
        """Finds them.

        Args:
          training_info: reward, discount, step_type [T, B], T above `n_step` (see `one_step_loss.row_weights`).
          n_step: how many steps targets look ahead; ALL_STEPS for as many as there are.
        """
        self._like = training_info.step_type
        self._trained = self._like.shape[0] - (1 if n_step == ALL_STEPS else n_step)
        # With one step it is the next row, which slicing finds too.
        self._index = None if n_step == 1 else self._places(look_ahead(training_info, 1.0, n_step).row[: self._trained])

    @staticmethod
    def _places(row: tf.Tensor) -> tf.Tensor:
        """Row and column of each, int32 [K * B, 2]; `row` [K, B]."""
        columns = tf.broadcast_to(tf.range(tf.shape(row)[1]), tf.shape(row))
        return tf.reshape(tf.stack([row, columns], -1), [-1, 2])

    @property
    def look_at_next(self) -> bool:
        """Whether each trained row looks at the row behind it."""
        return self._index is None

    def now(self, rows: Nest) -> Nest:
        """Those of [T, B, ...] that are trained, [K * B, ...]."""
        return flat(tf.nest.map_structure(lambda x: x[: self._trained], rows))

    def following(self, rows: Nest) -> Nest:
        """Those of [T, B, ...] that the trained ones look at, [K * B, ...]."""
        if self._index is None:
            return flat(tf.nest.map_structure(lambda x: x[1:], rows))
        return tf.nest.map_structure(lambda x: tf.gather_nd(x, self._index), rows)

    def as_now(self, x: tf.Tensor) -> tf.Tensor:
        """Values float32 [K * B] of the trained rows as [T, B], with zeros in the others."""
        return tf.pad(self._as_rows(x), [[0, self._like.shape[0] - self._trained], [0, 0]])

    def as_following(self, x: tf.Tensor) -> tf.Tensor:
        """Values float32 [K * B] of the rows looked at as [T, B], with zeros in the others; the same for the same row."""
        if self._index is None:
            return tf.pad(self._as_rows(x), [[1, 0], [0, 0]])
        return tf.tensor_scatter_nd_update(tf.zeros_like(self._like, x.dtype), self._index, x)

    def _as_rows(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [self._trained, -1])
