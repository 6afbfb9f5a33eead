"""Averages of streams of batches, kept in variables that are checkpointed with the model that owns them.

Sums are float64 inside, whatever the spec's dtype, so that averages of long runs do not drift.
"""

from __future__ import annotations

import abc
from typing import Any

import gin
import tensorflow as tf

Nest = Any


def batch_mean(tensor: Nest, tensor_spec: Nest, mask: tf.Tensor | None = None) -> tuple[tf.Tensor, Nest]:
    """The mean of the rows of a batch.

    Args:
      tensor: nest of [..., shape of the spec]; the leading axes are rows.
      tensor_spec: nest of specs, one for each row.
      mask: bool or float 0/1 [...], which rows count; None means all.

    Returns:
      (number of rows float64 [], nest of float64 means in the shape of the spec; 0 where there is no row).
    """
    leaf, spec = tf.nest.flatten(tensor)[0], tf.nest.flatten(tensor_spec)[0]
    rows = tf.convert_to_tensor(leaf).shape.rank - spec.shape.rank
    if mask is None:
        mask = tf.ones(tf.shape(leaf)[:rows], tf.float64)
    weights = tf.reshape(tf.cast(mask, tf.float64), [-1])
    count = tf.reduce_sum(weights)

    def mean(x: tf.Tensor, spec: tf.TypeSpec) -> tf.Tensor:
        flat = tf.reshape(tf.cast(x, tf.float64), [tf.size(weights), spec.shape.num_elements()])
        total = tf.linalg.matvec(flat, weights, transpose_a=True)
        return tf.reshape(tf.math.divide_no_nan(total, count), spec.shape)

    return count, tf.nest.map_structure(mean, tensor, tensor_spec)


def zeros(tensor_spec: Nest, outer: tuple[int, ...] = ()) -> Nest:
    """Variables float64 [*outer, shape of the spec] that begin at 0 and are not trained."""
    return tf.nest.map_structure(
        lambda s: tf.Variable(tf.zeros([*outer, *s.shape], tf.float64), trainable=False), tensor_spec
    )


class Averager(tf.Module, abc.ABC):
    """The average of a stream of batches; each update counts as one, whatever the number of its rows."""

    def __init__(self, tensor_spec: Nest, name: str = "Averager") -> None:
        """Creates the averager.

        Args:
          tensor_spec: nest of specs of one row.
          name: name of the module.
        """
        super().__init__(name=name)
        self._tensor_spec = tensor_spec

    def update(self, tensor: Nest, mask: tf.Tensor | None = None) -> None:
        """Takes in the mean over the rows of `tensor` (nest of [..., shape of the spec]); nothing if `mask` has no row."""
        count, mean = batch_mean(tensor, self._tensor_spec, mask)
        self.update_mean(mean, count > 0.0)

    @abc.abstractmethod
    def update_mean(self, mean: Nest, counts: tf.Tensor) -> None:
        """Takes in one value (nest, float64, shape of the spec) where the bool [] `counts` holds."""

    @abc.abstractmethod
    def get_float64(self) -> Nest:
        """As `get`, in float64."""

    def get(self) -> Nest:
        """The average so far, dtype and shape of the spec; 0 before the first update."""
        return tf.nest.map_structure(lambda x, s: tf.cast(x, s.dtype), self.get_float64(), self._tensor_spec)

    def average(self, tensor: Nest, mask: tf.Tensor | None = None) -> Nest:
        """`update`, then `get`."""
        self.update(tensor, mask)
        return self.get()


@gin.configurable(module="alf")
class WindowAverager(Averager):
    """The mean of the last `window_size` updates."""

    def __init__(self, tensor_spec: Nest, window_size: int, name: str = "WindowAverager") -> None:
        """Creates the averager.

        Args:
          tensor_spec: nest of specs of one row.
          window_size: updates that count.
          name: name of the module.

        Raises:
          ValueError: `window_size` is below 1.
        """
        super().__init__(tensor_spec, name)
        if window_size < 1:
            raise ValueError(f"WindowAverager.window_size must be at least 1, got {window_size}.")
        self._window_size = window_size
        self._kept = zeros(tensor_spec, (window_size,))
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)

    def update_mean(self, mean: Nest, counts: tf.Tensor) -> None:
        place = self._updates % self._window_size
        for kept, x in zip(tf.nest.flatten(self._kept), tf.nest.flatten(mean), strict=True):
            x = tf.where(counts, x, tf.gather(kept, place))
            kept.scatter_nd_update([[place]], x[tf.newaxis])
        self._updates.assign_add(tf.cast(counts, tf.int64))

    def get_float64(self) -> Nest:
        count = tf.cast(tf.minimum(self._updates, self._window_size), tf.float64)
        return tf.nest.map_structure(lambda kept: tf.math.divide_no_nan(tf.reduce_sum(kept, 0), count), self._kept)


@gin.configurable(module="alf")
class EMAverager(Averager):
    """The exponential moving average, corrected for its start from 0."""

    def __init__(self, tensor_spec: Nest, update_rate: float, name: str = "EMAverager") -> None:
        """Creates the averager.

        Args:
          tensor_spec: nest of specs of one row.
          update_rate: share of a new value, in (0, 1].
          name: name of the module.

        Raises:
          ValueError: `update_rate` is outside of (0, 1].
        """
        super().__init__(tensor_spec, name)
        if not 0.0 < update_rate <= 1.0:
            raise ValueError(f"EMAverager.update_rate is a share in (0, 1], got {update_rate}.")
        self._update_rate = update_rate
        self._total = zeros(tensor_spec)
        # The share of the total that comes from values and not from the 0 it began with.
        self._mass = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def _rate(self) -> tf.Tensor:
        return tf.constant(self._update_rate, tf.float64)

    def update_mean(self, mean: Nest, counts: tf.Tensor) -> None:
        rate = tf.where(counts, self._rate(), tf.constant(0.0, tf.float64))
        for total, x in zip(tf.nest.flatten(self._total), tf.nest.flatten(mean), strict=True):
            total.assign_add(rate * (x - total))
        self._mass.assign_add(rate * (1.0 - self._mass))

    def get_float64(self) -> Nest:
        return tf.nest.map_structure(lambda total: tf.math.divide_no_nan(total, self._mass), self._total)


@gin.configurable(module="alf")
class AdaptiveAverager(EMAverager):
    """A moving average whose window grows with the number of updates.

    The n-th update (from 0) has the share speed / (speed + n). With speed 1 all updates weigh the same; the larger the
    speed, the less what is long ago.
    """

    def __init__(self, tensor_spec: Nest, speed: float = 10.0, name: str = "AdaptiveAverager") -> None:
        """Creates the averager.

        Args:
          tensor_spec: nest of specs of one row.
          speed: above 0, see above.
          name: name of the module.

        Raises:
          ValueError: `speed` is not above 0.
        """
        super().__init__(tensor_spec, 1.0, name)
        if speed <= 0.0:
            raise ValueError(f"AdaptiveAverager.speed must be above 0, got {speed}.")
        self._speed = speed
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)

    def _rate(self) -> tf.Tensor:
        return self._speed / (self._speed + tf.cast(self._updates, tf.float64))

    def update_mean(self, mean: Nest, counts: tf.Tensor) -> None:
        super().update_mean(mean, counts)
        self._updates.assign_add(tf.cast(counts, tf.int64))


_SCALAR = tf.TensorSpec([], tf.float32)


@gin.configurable(module="alf")
class ScalarWindowAverager(WindowAverager):
    """WindowAverager of scalars."""

    def __init__(self, window_size: int, name: str = "ScalarWindowAverager") -> None:
        super().__init__(_SCALAR, window_size, name)


@gin.configurable(module="alf")
class ScalarEMAverager(EMAverager):
    """EMAverager of scalars."""

    def __init__(self, update_rate: float, name: str = "ScalarEMAverager") -> None:
        super().__init__(_SCALAR, update_rate, name)


@gin.configurable(module="alf")
class ScalarAdaptiveAverager(AdaptiveAverager):
    """AdaptiveAverager of scalars."""

    def __init__(self, speed: float = 10.0, name: str = "ScalarAdaptiveAverager") -> None:
        super().__init__(_SCALAR, speed, name)
