"""The clock of limits, by a plain clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from alf.utils import standstill
from alf.utils.standstill import Standstill


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The present moment, to be set."""
    moment = [100.0]
    monkeypatch.setattr(standstill, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


def test_while_looks_follow_each_other_it_is_the_systems_clock(now: list[float]) -> None:
    awake = Standstill()
    assert awake.secs_since(40.0) == 60.0
    now[0] = 5000.0
    since = awake.begin()
    assert since == 5000.0
    for second in range(1, 1000):
        now[0] = since + second
        awake.look()
        assert awake.secs_since(since) == second
    assert awake.secs_since(since - 3.0) == 1002.0


def test_what_was_awaited_in_a_standstill_begins_anew(now: list[float]) -> None:
    awake = Standstill()
    since = awake.begin()
    now[0] = 105.0
    awake.look()
    assert awake.secs_since(since) == 5.0
    now[0] = 3705.0
    awake.look()
    assert awake.secs_since(since) == 0.0
    now[0] = 3709.0
    awake.look()
    assert awake.secs_since(since) == 4.0
    assert awake.secs_since(3707.0) == 2.0


def test_what_lies_between_two_waits_is_no_standstill(now: list[float]) -> None:
    """A training step may take long, and an environment that hangs meanwhile hangs."""
    awake = Standstill()
    awake.begin()
    awake.look()
    now[0] = 500.0
    assert awake.begin() == 500.0
    now[0] = 501.0
    awake.look()
    assert awake.secs_since(100.0) == 401.0
