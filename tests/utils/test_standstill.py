"""The clock of limits, by plain clocks that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from alf.utils import standstill
from alf.utils.standstill import Standstill


class _Clocks(SimpleNamespace):
    """The present moment, and how long the process was busy by then, to be set."""

    now, worked = 100.0, 7.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.worked


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> _Clocks:
    made = _Clocks()
    monkeypatch.setattr(standstill, "time", made)
    return made


def test_while_looks_follow_each_other_it_is_the_systems_clock(clocks: _Clocks) -> None:
    awake = Standstill()
    assert awake.secs_since(40.0) == 60.0
    for second in range(1, 1000):
        clocks.now = 100.0 + second
        awake.look()
        assert awake.secs_since(100.0) == second
    assert awake.secs_since(97.0) == 1002.0


def test_what_was_awaited_in_a_standstill_begins_anew(clocks: _Clocks) -> None:
    awake = Standstill()
    clocks.now = 105.0
    awake.look()
    assert awake.secs_since(100.0) == 5.0
    clocks.now, clocks.worked = 3705.0, 7.5
    awake.look()
    assert awake.secs_since(100.0) == 0.0
    clocks.now = 3709.0
    awake.look()
    assert awake.secs_since(100.0) == 4.0
    assert awake.secs_since(3707.0) == 2.0
    assert awake.secs_since(3707.0, now=3800.0) == 93.0


def test_a_process_that_works_for_long_does_not_stand_still(clocks: _Clocks) -> None:
    """A training step may take long, and an environment that hangs meanwhile hangs."""
    awake = Standstill()
    clocks.now, clocks.worked = 500.0, 207.0
    awake.look()
    assert awake.secs_since(100.0) == 400.0
