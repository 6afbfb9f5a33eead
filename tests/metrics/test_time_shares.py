"""Where the time goes: shares by plain arithmetic, and what the verdict blames."""

from __future__ import annotations

import pytest

from alf.metrics.time_shares import TimeShares, Timings, shares


def test_shares_of_two_environment_threads():
    before = Timings(10.0, 5.0, 100.0, 50.0, 7.0, 2)
    after = Timings(16.0, 8.0, 108.0, 54.0, 11.0, 2)
    found = shares(before, after, 10.0)
    assert found == pytest.approx((0.6, 0.3, 0.1, 0.4, 0.2, 0.2, 2))
    assert set(found.scalars()) == {
        "learner_training",
        "learner_waiting",
        "learner_other",
        "environment",
        "inference",
        "collecting_waiting",
    }


def test_shares_in_turns_add_up_to_one():
    found = shares(Timings(), Timings(training=2.0, environment=5.0, inference=1.0), 10.0)
    assert found.learner_other == pytest.approx(0.2)
    assert sum(found.scalars().values()) == pytest.approx(1.0)
    assert "learner_waiting" not in found.scalars()


def test_nothing_measured_is_no_share():
    assert shares(Timings(), Timings(threads=1), 5.0) is None
    assert shares(Timings(), Timings(1.0), 0.0) is None


def test_shares_stay_in_bounds():
    # A step that began before the stretch is counted where it ends.
    found = shares(Timings(threads=1), Timings(0.0, 0.0, 50.0, 0.0, 0.0, 1), 10.0)
    assert found.environment == 1.0


@pytest.mark.parametrize(
    ("found", "blamed"),
    [
        (TimeShares(0.9, 0.02, 0.08, 0.2, 0.2, 0.6, 2), "the learner is the bottleneck"),
        (TimeShares(0.3, 0.65, 0.05, 0.8, 0.15, 0.05, 2), "the environment is the bottleneck"),
        (TimeShares(0.3, 0.65, 0.05, 0.2, 0.75, 0.05, 2), "inference is the bottleneck"),
        (TimeShares(0.3, 0.1, 0.6, 0.2, 0.2, 0.6, 2), "the service is the bottleneck"),
        (TimeShares(0.85, 0.1, 0.05, 0.4, 0.5, 0.1, 2), "balanced"),
        (TimeShares(0.2, 0.0, 0.1, 0.6, 0.1, 0.0, 0), "the environment takes 60%"),
        (TimeShares(0.2, 0.0, 0.1, 0.1, 0.6, 0.0, 0), "inference takes 60%"),
        (TimeShares(0.7, 0.0, 0.1, 0.1, 0.1, 0.0, 0), "learning takes 70%"),
        (TimeShares(0.1, 0.0, 0.7, 0.1, 0.1, 0.0, 0), "the service is the bottleneck"),
    ],
)
def test_the_verdict_names_the_cause_and_what_to_try(found, blamed):
    verdict = found.verdict()
    assert verdict.startswith(blamed)
    assert "try" in verdict or blamed == "balanced"
    assert "\n" not in verdict
