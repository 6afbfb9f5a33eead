"""The model of a run with workers, against what can be said without it."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks._scale_model import Costs, limits, sharing, simulate, store_bytes, store_workers

COSTS = Costs(
    steps=1000,
    queue=2,
    collect_secs=0.09,
    send_secs=0.01,
    unpack_secs=0.001,
    learn_secs=0.05,
    segment_bytes=100_000,
    weights_bytes=50_000,
)


def test_limits_by_hand() -> None:
    found = limits(COSTS)
    assert found.worker == pytest.approx(10_000)
    assert found.learner == pytest.approx(2000 / 0.05)
    assert found.unpacking == pytest.approx(1_000_000)
    assert found.link == pytest.approx(2000 * 1.25e9 / 250_000)
    assert found.workers()["learner"] == pytest.approx(4.0)
    assert store_bytes(COSTS, 3) == 3 * 2 * 100_000 + 100_000
    assert store_workers(COSTS, store_bytes(COSTS, 3)) == 3


def test_few_workers_give_what_they_have() -> None:
    for workers in (1, 2, 3):
        outcome = simulate(COSTS, workers, processors=2, machines=workers)
        assert outcome.steps_per_sec == pytest.approx(workers * 10_000, rel=0.03)


def test_many_workers_give_what_the_learner_takes() -> None:
    outcome = simulate(COSTS, 20, processors=2, machines=20)
    assert outcome.steps_per_sec == pytest.approx(limits(COSTS).learner, rel=0.05)
    assert outcome.learner_busy > 0.95


def test_a_thin_link_holds_everything_up() -> None:
    thin = dataclasses.replace(COSTS, link_bytes_per_sec=1e6)
    outcome = simulate(thin, 20, processors=2, machines=4, seconds=300.0)
    assert outcome.steps_per_sec == pytest.approx(limits(thin, nodes=4).link, rel=0.05)


def test_one_machine_is_shared_by_all() -> None:
    # A batch takes 2 * (0.09 + 0.01 + 0.001) + 0.05 processor seconds, of which there are two.
    outcome = simulate(COSTS, 4, processors=2)
    assert outcome.steps_per_sec == pytest.approx(2 * 2000 / (2 * 0.101 + 0.05), rel=0.05)


def test_processors_are_worth_less_to_parts_that_share_them() -> None:
    # A batch needs 2 * 0.09 + 0.05 processor seconds for collecting and learning; 0.46 went by on two processors.
    assert sharing(COSTS, 2000 / 0.23, processors=2) == pytest.approx(0.5)
    shared = dataclasses.replace(COSTS, sharing=0.5)
    both, one = (simulate(c, 4, processors=2).steps_per_sec for c in (shared, COSTS))
    assert both == pytest.approx(0.5 * one, rel=0.05)
    # Who is alone on a machine has it to itself.
    assert simulate(shared, 1, processors=2, machines=1).steps_per_sec == pytest.approx(10_000, rel=0.03)


def test_lag_grows_with_what_is_under_way() -> None:
    lags = [
        simulate(dataclasses.replace(COSTS, in_flight=k), 16, processors=2, machines=16).lag_mean for k in (1, 2, 4)
    ]
    assert lags[0] < lags[1] < lags[2]
    # All that can be under way, in batches, and the one that is being trained on.
    assert lags[1] <= 16 * (2 + 2 + 1) / 2 + 1
