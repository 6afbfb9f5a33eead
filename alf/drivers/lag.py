"""How old the weights were that acted, in versions."""

from __future__ import annotations

import numpy as np

_BUCKETS = 64


class LagStats:
    """Mean, maximum and histogram of lag = learner's version - version that acted, over all acting steps.

    The last bucket of the histogram holds all that are as old or older.
    """

    def __init__(self) -> None:
        self.histogram = np.zeros(_BUCKETS, np.int64)
        self._sum = 0
        self._recent_mean = 0.0
        self._max = 0

    def add(self, learner_version: int, versions: np.ndarray) -> int:
        """Takes in the versions [T] of a segment that the learner takes now; returns its largest lag."""
        lags = learner_version - versions
        largest = int(lags.max())
        self.histogram += np.bincount(np.clip(lags, 0, _BUCKETS - 1), minlength=_BUCKETS)
        self._sum += int(lags.sum())
        self._recent_mean += 0.05 * (float(lags.mean()) - self._recent_mean)
        self._max = max(self._max, largest)
        return largest

    def stats(self) -> dict[str, float]:
        """`lag_mean` of the run, `lag_recent` as a moving average over segments, `lag_max` of the run."""
        count = int(self.histogram.sum())
        mean = self._sum / count if count else 0.0
        return {"lag_mean": mean, "lag_recent": self._recent_mean, "lag_max": float(self._max)}
