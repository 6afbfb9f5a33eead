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


def of_runs(scores: Sequence[float], level: float = 0.95) -> Estimate:
    """The interquartile mean of the scores of runs, one of each seed, with the percentile interval.

    Raises:
      ValueError: there are no scores.
    """
    return of_difference(scores, [0.0] * len(scores), level)


def of_difference(scores: Sequence[float], others: Sequence[float], level: float = 0.95) -> Estimate:
    """How much larger the interquartile mean of `scores` is than that of `others`, with the percentile interval.

    Args:
      scores: of runs, one of each seed.
      others: of the same seeds, from each of which both systems were evaluated: seeds are drawn, with the pair of each.
      level: of the interval.

    Raises:
      ValueError: there are no scores, or not as many of both.
    """
    pairs = np.array([scores, others], float) if len(scores) == len(others) else np.empty([2, 0])
    if not pairs.size:
        raise ValueError(
            f"There are {len(scores)} and {len(others)} scores: run at least one seed, and the same of both."
        )
    runs = pairs.shape[1]
    drawn = np.random.default_rng(0).integers(0, runs, (REPEATS, runs))
    own, other = interquartile_mean(pairs[:, drawn])
    low, high = np.percentile(own - other, [50 * (1 - level), 50 * (1 + level)])
    value, less = interquartile_mean(pairs)
    return Estimate(float(value - less), float(low), float(high))
