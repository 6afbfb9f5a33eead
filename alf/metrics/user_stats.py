"""Numbers that user code reports by name, gathered between two summaries."""

from __future__ import annotations

import enum
import threading
from typing import Any

import gin
import numpy as np

from alf.metrics.histogram import Histogram
from alf.metrics.tables import Value


@gin.constants_from_enum(module="alf")
class Aggregation(enum.Enum):
    """What becomes of several values of one name between two summaries."""

    AVERAGE = 0
    """The mean of all of them, from all sources."""
    MOST_RECENT = 1
    """The last one; where it came from is written beside it."""
    SUM = 2
    """All added up, from all sources."""
    HISTOGRAM = 3
    """Mean, deviation, minimum and maximum; in TensorBoard also their distribution."""


class _Gathered:
    """The values of one name."""

    def __init__(self, how: Aggregation) -> None:
        self.how = how
        self.count = 0
        self.sum = 0.0
        self.last = 0.0
        self.source: int | str | None = None
        self.histogram = Histogram() if how is Aggregation.HISTOGRAM else None

    def take(self, values: list[float], source: int | str | None) -> None:
        self.count += len(values)
        self.sum += sum(values)
        self.last, self.source = values[-1], source
        if self.histogram is not None:
            for value in values:
                self.histogram.add(value)

    def result(self, name: str) -> dict[str, Value]:
        if self.histogram is not None:
            return {f"{name}/{key}": value for key, value in self.histogram.summary().items()}
        if self.how is Aggregation.AVERAGE:
            return {name: self.sum / self.count}
        if self.how is Aggregation.SUM:
            return {name: self.sum}
        if self.source is None:
            return {name: self.last}
        return {name: self.last, f"{name}/source": self.source}


class UserStats:
    """Gathers values from any thread; memory depends on the number of names only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._how: dict[str, Aggregation] = {}
        self._gathered: dict[str, _Gathered] = {}

    def add(
        self,
        name: str,
        value: Any,
        how: Aggregation | str = Aggregation.AVERAGE,
        source: int | str | None = None,
    ) -> None:
        """Adds a value, or several.

        Args:
          name: of the statistic, as it shows in TensorBoard and as a column, such as "Environment/score".
          value: a number, or an array of any shape whose elements all count.
          how: what becomes of several values between two summaries; an `Aggregation` or its name.
          source: where it comes from, such as the number of an environment; told with MOST_RECENT.

        Raises:
          ValueError: `how` is unknown, or the name was added before with another one.
          TypeError: `value` is not numeric.
        """
        if not isinstance(how, Aggregation):
            how = _aggregation(how)
        values = [float(value)] if isinstance(value, (int, float)) else _numbers(name, value)
        with self._lock:
            known = self._how.setdefault(name, how)
            if known is not how:
                raise ValueError(f"{name!r} was added as {known.name} and now as {how.name}: use one of them.")
            if values:
                gathered = self._gathered.get(name)
                if gathered is None:
                    gathered = self._gathered[name] = _Gathered(how)
                gathered.take(values, source)

    def drain(self) -> tuple[dict[str, Value], dict[str, Histogram]]:
        """The results of what was added since the last call, by name, and the histograms among them."""
        with self._lock:
            gathered, self._gathered = self._gathered, {}
        values: dict[str, Value] = {}
        for name, one in gathered.items():
            values.update(one.result(name))
        return values, {n: one.histogram for n, one in gathered.items() if one.histogram and one.histogram.count}


def _aggregation(name: str) -> Aggregation:
    try:
        return Aggregation[str(name)]
    except KeyError:
        known = ", ".join(a.name for a in Aggregation)
        raise ValueError(f"how={name!r} is unknown: use one of {known}.") from None


def _numbers(name: str, value: Any) -> list[float]:
    try:
        return np.asarray(value, np.float64).ravel().tolist()
    except (TypeError, ValueError):
        raise TypeError(f"The value of {name!r} is {value!r}, which is no number.") from None
