"""Histograms of bounded size."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_LARGEST = 1.7e308


@functools.cache
def _limits() -> list[float]:
    """Upper ends of buckets that grow by a tenth, for both signs, around zero."""
    positive = [1e-12 * 1.1**i for i in range(776)]
    return [-_LARGEST, *(-x for x in reversed(positive)), 0.0, *positive, _LARGEST]


class Histogram:
    """Counts of values in buckets, with their exact mean, deviation, minimum and maximum."""

    def __init__(self) -> None:
        self.count = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        # Running moments, as Welford has them (1962): a sum of squares loses the deviation of large values.
        self._mean = 0.0
        self._deviations = 0.0
        self._buckets: dict[tuple[float, float], int] = {}

    @classmethod
    def of_counts(cls, counts: Sequence[int] | np.ndarray) -> Histogram:
        """Of whole numbers: `counts[i]` times the value i."""
        result = cls()
        for value, count in enumerate(np.asarray(counts).tolist()):
            if count:
                result._take(float(value), int(count), (value - 0.5, value + 0.5))
        return result

    def add(self, value: float) -> None:
        """Counts a value; one that is no number is left out."""
        if not math.isnan(value):
            limits = _limits()
            upper = min(max(bisect.bisect_left(limits, value), 1), len(limits) - 1)
            self._take(value, 1, (limits[upper - 1], limits[upper]))

    def _take(self, value: float, count: int, bucket: tuple[float, float]) -> None:
        self.count += count
        self.minimum, self.maximum = min(self.minimum, value), max(self.maximum, value)
        before = value - self._mean
        self._mean += before * count / self.count
        self._deviations += before * (value - self._mean) * count
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    def summary(self) -> dict[str, float]:
        """`mean`, `std`, `min`, `max` of the values; nothing without any. Of very large ones `std` is nan."""
        if not self.count:
            return {}
        std = math.sqrt(self._deviations / self.count) if 0.0 <= self._deviations < math.inf else math.nan
        return {"mean": self._mean, "std": std, "min": self.minimum, "max": self.maximum}

    def proto(self) -> tf.compat.v1.HistogramProto:
        """For TensorBoard."""
        limits: list[float] = []
        counts: list[int] = []
        for lower, upper in sorted(self._buckets):
            # A bucket reaches from the limit before it to its own: where those do not meet, an empty one lies between.
            if not limits or lower > limits[-1]:
                limits.append(lower)
                counts.append(0)
            limits.append(upper)
            counts.append(self._buckets[lower, upper])
        return tf.compat.v1.HistogramProto(
            min=self.minimum,
            max=self.maximum,
            num=self.count,
            sum=self._mean * self.count,
            sum_squares=self._deviations + self._mean * self._mean * self.count,
            bucket_limit=limits,
            bucket=counts,
        )
