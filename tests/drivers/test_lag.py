"""Lag statistics against a plain list of all lags."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.drivers.lag import LagStats

_SEGMENTS = st.lists(
    st.tuples(st.integers(0, 100), st.lists(st.integers(0, 100), min_size=1, max_size=5)), min_size=1, max_size=8
)


@given(_SEGMENTS)
def test_mean_maximum_and_histogram_are_those_of_all_lags(segments: list[tuple[int, list[int]]]) -> None:
    stats, lags = LagStats(), []
    for base, ages in segments:
        learner = base + max(ages)
        largest = stats.add(learner, np.array([learner - age for age in ages]))
        assert largest == max(ages)
        lags += ages
    told = stats.stats()
    assert told["lag_max"] == max(lags)
    # The last bucket holds all that are as old or older.
    capped = [min(lag, 63) for lag in lags]
    assert told["lag_mean"] == pytest.approx(np.mean(lags))
    assert stats.histogram.tolist() == [capped.count(lag) for lag in range(64)]
    recent = 0.0
    for _, ages in segments:
        recent += 0.05 * (np.mean(ages) - recent)
    assert told["lag_recent"] == pytest.approx(recent)


def test_without_a_segment_all_is_zero() -> None:
    assert LagStats().stats() == {"lag_mean": 0.0, "lag_recent": 0.0, "lag_max": 0.0}
