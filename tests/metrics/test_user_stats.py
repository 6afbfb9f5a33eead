"""Statistics that user code adds, and histograms."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.metrics.histogram import Histogram
from alf.metrics.user_stats import Aggregation, UserStats


def test_each_aggregation():
    stats = UserStats()
    for i, value in enumerate([1.0, 2.0, 6.0]):
        stats.add("mean", value, source=i)
        stats.add("last", value, Aggregation.MOST_RECENT, source=i)
        stats.add("plain_last", value, "MOST_RECENT")
        stats.add("sum", value, "SUM", source=i)
        stats.add("spread", value, "HISTOGRAM")
    stats.add("array", np.array([[1, 2], [3, 6]]))
    values, histograms = stats.drain()
    assert values["mean"] == 3.0
    assert (values["last"], values["last/source"]) == (6.0, 2)
    assert values["plain_last"] == 6.0
    assert "plain_last/source" not in values
    assert values["sum"] == 9.0
    assert values["array"] == 3.0
    assert values["spread/mean"] == 3.0
    assert values["spread/std"] == pytest.approx(np.std([1, 2, 6]))
    assert (values["spread/min"], values["spread/max"]) == (1.0, 6.0)
    assert list(histograms) == ["spread"]


def test_cleared_at_each_summary():
    stats = UserStats()
    stats.add("sum", 5, "SUM")
    assert stats.drain()[0] == {"sum": 5.0}
    assert stats.drain() == ({}, {})
    stats.add("sum", 2, "SUM")
    assert stats.drain()[0] == {"sum": 2.0}


def test_all_values_of_all_threads_count():
    stats = UserStats()
    seen = []

    def work(source):
        for i in range(2000):
            stats.add("mean", i, source=source)
            stats.add("sum", 1, "SUM", source=source)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        seen.append(stats.drain()[0].get("sum", 0.0))
    for thread in threads:
        thread.join()
    seen.append(stats.drain()[0].get("sum", 0.0))
    assert sum(seen) == 8000


def test_mistakes_are_told():
    stats = UserStats()
    stats.add("x", 1.0)
    with pytest.raises(ValueError, match="added as AVERAGE and now as SUM"):
        stats.add("x", 1.0, "SUM")
    with pytest.raises(ValueError, match="use one of AVERAGE, MOST_RECENT, SUM, HISTOGRAM"):
        stats.add("y", 1.0, "MEAN")
    with pytest.raises(TypeError, match="is no number"):
        stats.add("z", "text")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_a_histogram_counts_every_value_in_its_bucket(values):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    proto = histogram.proto()
    assert sum(proto.bucket) == len(values) == proto.num
    limits = list(proto.bucket_limit)
    assert limits == sorted(limits)
    for i, limit in enumerate(limits):
        lower = limits[i - 1] if i else -np.inf
        assert proto.bucket[i] == sum(lower < v <= limit for v in values)
    summary = histogram.summary()
    assert summary["mean"] == pytest.approx(np.mean(values), abs=1e-3, rel=1e-6)
    assert (summary["min"], summary["max"]) == (min(values), max(values))


def test_the_deviation_of_large_values():
    """Time stamps or money: their squares need more digits than a float64 has."""
    values = [1.7e9 + x for x in (-1.0, 1.0, 0.5, -0.25)] * 500
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    assert histogram.summary()["std"] == pytest.approx(np.std(np.array(values) - 1.7e9), rel=1e-6)
    assert histogram.summary()["mean"] == pytest.approx(np.mean(values), rel=1e-15)
    small = Histogram.of_counts(np.array([3, 0, 5])).proto()
    assert (small.sum, small.sum_squares) == (pytest.approx(10.0), pytest.approx(20.0))


def test_a_histogram_of_counts():
    histogram = Histogram.of_counts(np.array([3, 0, 5]))
    proto = histogram.proto()
    assert dict(zip(proto.bucket_limit, proto.bucket, strict=True)) == {-0.5: 0, 0.5: 3, 1.5: 0, 2.5: 5}
    assert histogram.summary()["mean"] == pytest.approx(10 / 8)
    assert Histogram.of_counts(np.zeros(4)).summary() == {}


def test_a_value_that_is_no_number_is_not_counted():
    histogram = Histogram()
    histogram.add(float("nan"))
    assert histogram.count == 0


@pytest.mark.parametrize(("values", "mean"), [([1e160, 2e160], 1.5e160), ([-1.7e308, 1.7e308], None)])
def test_very_large_values_leave_a_histogram_without_a_deviation(values, mean):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = histogram.summary()
    assert np.isnan(found["std"])
    assert (found["min"], found["max"]) == (min(values), max(values))
    if mean:
        assert found["mean"] == pytest.approx(mean)
    assert histogram.proto().num == len(values)
