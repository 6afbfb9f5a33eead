"""Interquartile means of runs, with bootstrap intervals (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

REPEATS = 10_000


class Estimate(NamedTuple):
    """A number and the bounds of its interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean without the lowest and the highest quarter, rounded down to whole scores, of each row [..., n] -> [...]."""
    ordered = np.sort(scores, -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def _resampled(scores: Sequence[float], generator: np.random.Generator) -> np.ndarray:
    """The interquartile means of `REPEATS` samples of the runs, drawn with replacement."""
    given = np.asarray(scores, float)
    return interquartile_mean(given[generator.integers(0, len(given), (REPEATS, len(given)))])


def _estimate(value: float, resampled: np.ndarray, level: float) -> Estimate:
    low, high = np.percentile(resampled, [50 * (1 - level), 50 * (1 + level)])
    return Estimate(value, float(low), float(high))


def of_runs(scores: Sequence[float], level: float = 0.95) -> Estimate:
    """The interquartile mean of the scores of runs, one of each seed, with the percentile interval.

    Raises:
      ValueError: there are no scores.
    """
    if not scores:
        raise ValueError("There are no scores to take a mean of: run at least one seed.")
    value = float(interquartile_mean(np.asarray(scores, float)))
    return _estimate(value, _resampled(scores, np.random.default_rng(0)), level)


def of_difference(scores: Sequence[float], others: Sequence[float], level: float = 0.95) -> Estimate:
    """How much larger the interquartile mean of `scores` is; the two systems are resampled independently."""
    generator = np.random.default_rng(0)
    value = of_runs(scores).value - of_runs(others).value
    return _estimate(value, _resampled(scores, generator) - _resampled(others, generator), level)
