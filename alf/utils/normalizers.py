"""Shifting and scaling by running statistics.

`update` and `normalize` are apart on purpose: where something is acted on and learned from under one version of the
weights, the statistics are part of that version. So they are updated in one place only, by the learner.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import gin
import tensorflow as tf

from alf.utils import averager
from alf.utils.averager import AdaptiveAverager, Averager, EMAverager, WindowAverager

Nest = Any


class Moments(NamedTuple):
    """What is known of a set of rows, float64: their number [], nests of their means and mean squared deviations."""

    count: tf.Tensor
    mean: Nest
    variance: Nest


def batch_moments(tensor: Nest, tensor_spec: Nest, mask: tf.Tensor | None = None) -> Moments:
    """The moments of the rows of a batch; arguments as in `averager.batch_mean`."""
    count, mean = averager.batch_mean(tensor, tensor_spec, mask)
    deviation = tf.nest.map_structure(lambda x, m: tf.math.squared_difference(tf.cast(x, tf.float64), m), tensor, mean)
    return Moments(count, mean, averager.batch_mean(deviation, tensor_spec, mask)[1])


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of two sets of rows together, Chan et al. 1979, "Updating formulae and a pairwise algorithm"."""
    count = a.count + b.count
    share = tf.math.divide_no_nan(b.count, count)

    def mean(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return x + share * (y - x)

    def variance(v: tf.Tensor, w: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return v + share * (w - v) + share * (1.0 - share) * tf.square(y - x)

    return Moments(
        count,
        tf.nest.map_structure(mean, a.mean, b.mean),
        tf.nest.map_structure(variance, a.variance, b.variance, a.mean, b.mean),
    )


class RunningMoments(tf.Module):
    """The moments of everything that was added, in variables."""

    def __init__(self, tensor_spec: Nest, name: str = "RunningMoments") -> None:
        super().__init__(name=name)
        self._count = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._mean = averager.zeros(tensor_spec)
        self._variance = averager.zeros(tensor_spec)

    def get(self) -> Moments:
        """The moments so far."""
        return Moments(*tf.nest.map_structure(tf.convert_to_tensor, (self._count, self._mean, self._variance)))

    def add(self, moments: Moments) -> None:
        """Merges the moments of more rows."""
        self._assign(merge(self.get(), moments))

    def clear(self) -> None:
        """Forgets everything."""
        self._assign(tf.nest.map_structure(tf.zeros_like, self.get()))

    def _assign(self, moments: Moments) -> None:
        variables = tf.nest.flatten((self._count, self._mean, self._variance))
        for variable, value in zip(variables, tf.nest.flatten(tuple(moments)), strict=True):
            variable.assign(value)


def _check_floats(name: str, nest: Nest) -> None:
    """Raises ValueError where a leaf, a tensor or a spec, of what the normaliser called `name` got is not of floats."""
    dtypes = [tf.as_dtype(leaf.dtype) for leaf in tf.nest.flatten(nest)]
    odd = [dtype.name for dtype in dtypes if not dtype.is_floating]
    if odd:
        raise ValueError(f"{name} normalises floats and got {odd}: cast them before, as cast_transformer does.")


class Normalizer(tf.Module, abc.ABC):
    """Gives values mean 0 and standard deviation 1, by the statistics of what it was updated with.

    Before the first update values pass unchanged.
    """

    def __init__(self, tensor_spec: Nest, variance_epsilon: float = 1e-10, name: str = "Normalizer") -> None:
        """Creates the normaliser.

        Args:
          tensor_spec: nest of specs of one row; of floats.
          variance_epsilon: added to the variance.
          name: name of the module.

        Raises:
          ValueError: a leaf of the spec is not of floats.
        """
        super().__init__(name=name)
        _check_floats(name, tensor_spec)
        self._tensor_spec = tensor_spec
        self._variance_epsilon = variance_epsilon

    def update(self, tensor: Nest, mask: tf.Tensor | None = None) -> None:
        """Takes in rows: nest of [..., shape of the spec]; `mask` [...] says which count, None means all."""
        self.update_moments(batch_moments(tensor, self._tensor_spec, mask))

    @abc.abstractmethod
    def update_moments(self, moments: Moments) -> None:
        """Takes in rows of which only the moments are known; none if their count is 0."""

    @abc.abstractmethod
    def moments(self) -> Moments:
        """The statistics in use; a count of 0 means that there are none yet."""

    def normalize(self, tensor: Nest, clip_value: float = -1.0) -> Nest:
        """(tensor - mean) / standard deviation; it updates nothing.

        Args:
          tensor: nest of [..., shape of the spec].
          clip_value: above 0, results are clipped to [-clip_value, clip_value].
        """
        return self._normalized(tensor, clip_value, shift=True)

    def scale(self, tensor: Nest, clip_value: float = -1.0) -> Nest:
        """Divides by the standard deviation: as `normalize` without the shift, for what must keep its sign."""
        return self._normalized(tensor, clip_value, shift=False)

    def _normalized(self, tensor: Nest, clip_value: float, shift: bool) -> Nest:
        # Whole numbers less their mean, by their deviation, would be rounded to nothing.
        _check_floats(self.name, tensor)
        count, means, variances = self.moments()

        def one(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
            variance = tf.where(count > 0.0, variance, tf.ones_like(variance)) + self._variance_epsilon
            factor = tf.cast(tf.math.rsqrt(variance), x.dtype)
            x = (x - tf.cast(mean, x.dtype) if shift else x) * factor
            return tf.clip_by_value(x, -clip_value, clip_value) if clip_value > 0.0 else x

        return tf.nest.map_structure(one, tensor, means, variances)


@gin.configurable(module="alf")
class RunningNormalizer(Normalizer):
    """By the moments of all rows ever taken in, each weighing the same."""

    def __init__(self, tensor_spec: Nest, variance_epsilon: float = 1e-8, name: str = "RunningNormalizer") -> None:
        super().__init__(tensor_spec, variance_epsilon, name)
        self._moments = RunningMoments(tensor_spec)

    def update_moments(self, moments: Moments) -> None:
        self._moments.add(moments)

    def moments(self) -> Moments:
        return self._moments.get()


class _AveragedNormalizer(Normalizer):
    """By averages of the batches' first and second moments."""

    def __init__(self, tensor_spec: Nest, mean: Averager, square: Averager, variance_epsilon: float, name: str) -> None:
        super().__init__(tensor_spec, variance_epsilon, name)
        self._mean = mean
        self._square = square
        self._count = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def update_moments(self, moments: Moments) -> None:
        counts = moments.count > 0.0
        square = tf.nest.map_structure(lambda m, v: tf.square(m) + v, moments.mean, moments.variance)
        self._mean.update_mean(moments.mean, counts)
        self._square.update_mean(square, counts)
        self._count.assign_add(moments.count)

    def moments(self) -> Moments:
        mean = self._mean.get_float64()
        variance = tf.nest.map_structure(
            lambda m, s: tf.maximum(s - tf.square(m), 0.0), mean, self._square.get_float64()
        )
        return Moments(tf.convert_to_tensor(self._count), mean, variance)


@gin.configurable(module="alf")
class WindowNormalizer(_AveragedNormalizer):
    """By the last `window_size` updates."""

    def __init__(
        self,
        tensor_spec: Nest,
        window_size: int = 1000,
        variance_epsilon: float = 1e-10,
        name: str = "WindowNormalizer",
    ) -> None:
        mean, square = (WindowAverager(tensor_spec, window_size) for _ in range(2))
        super().__init__(tensor_spec, mean, square, variance_epsilon, name)


@gin.configurable(module="alf")
class EMNormalizer(_AveragedNormalizer):
    """By exponential moving averages."""

    def __init__(
        self, tensor_spec: Nest, update_rate: float = 1e-3, variance_epsilon: float = 1e-10, name: str = "EMNormalizer"
    ) -> None:
        mean, square = (EMAverager(tensor_spec, update_rate) for _ in range(2))
        super().__init__(tensor_spec, mean, square, variance_epsilon, name)


@gin.configurable(module="alf")
class AdaptiveNormalizer(_AveragedNormalizer):
    """By averages whose window grows with the number of updates, see `AdaptiveAverager`."""

    def __init__(
        self, tensor_spec: Nest, speed: float = 8.0, variance_epsilon: float = 1e-10, name: str = "AdaptiveNormalizer"
    ) -> None:
        mean, square = (AdaptiveAverager(tensor_spec, speed) for _ in range(2))
        super().__init__(tensor_spec, mean, square, variance_epsilon, name)


_SCALAR = tf.TensorSpec([], tf.float32)


@gin.configurable(module="alf")
class ScalarWindowNormalizer(WindowNormalizer):
    """WindowNormalizer of scalars."""

    def __init__(self, window_size: int = 1000, variance_epsilon: float = 1e-10) -> None:
        super().__init__(_SCALAR, window_size, variance_epsilon, "ScalarWindowNormalizer")


@gin.configurable(module="alf")
class ScalarEMNormalizer(EMNormalizer):
    """EMNormalizer of scalars."""

    def __init__(self, update_rate: float = 1e-3, variance_epsilon: float = 1e-10) -> None:
        super().__init__(_SCALAR, update_rate, variance_epsilon, "ScalarEMNormalizer")


@gin.configurable(module="alf")
class ScalarAdaptiveNormalizer(AdaptiveNormalizer):
    """AdaptiveNormalizer of scalars."""

    def __init__(self, speed: float = 8.0, variance_epsilon: float = 1e-10) -> None:
        super().__init__(_SCALAR, speed, variance_epsilon, "ScalarAdaptiveNormalizer")
