"""What the figures of the off-policy benchmark rest on."""

from __future__ import annotations

import pytest

from benchmarks import _off_policy_run, off_policy


def test_rates_leave_out_the_warm_up() -> None:
    watch = _off_policy_run.Watch(250)
    watch()
    # Updates, wall and processor seconds: the first 500 updates take 100 s, those behind them 2 s a thousand.
    watch.marks = [(250, 0.0, 0.0), (500, 100.0, 150.0), (1000, 101.0, 151.5), (1500, 102.0, 153.0)]
    assert watch.rates() == pytest.approx({"updates_per_s": 500.0, "cpu_ms": 3.0, "processors_busy": 1.5})


def test_updates_are_counted_call_by_call() -> None:
    watch = _off_policy_run.Watch(8)
    for _ in range(3):
        watch()
    assert [updates for updates, _, _ in watch.marks] == [8, 16, 24]


def test_the_fastest_setting_is_quoted_and_a_failed_one_is_kept() -> None:
    failed = {"setting": "a", "updates_per_s": 0.0, "cpu_ms": None, "mean_return": None, "failed": "no memory"}
    slow, fast = (
        {"setting": s, "updates_per_s": r, "cpu_ms": 1.0, "mean_return": -150.0} for s, r in (("b", 5), ("c", 9))
    )
    row = off_policy._best("alf", "sac", [failed, slow, fast])
    assert (row["setting"], row["updates_per_s"], row["mean_return"]) == ("c", 9, -150.0)
    assert row["runs"][0]["failed"] == "no memory"
