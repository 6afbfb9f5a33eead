"""What the display says."""

from __future__ import annotations

import io
import sys

import pytest
from absl import logging

from alf.trainers import progress
from alf.trainers.progress import Progress, State


class _Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def lines(monkeypatch):
    found = []
    monkeypatch.setattr(logging, "info", lambda text, *args: found.append(text % args))
    return found


def _state(iteration, env_steps, episodes=0, returns=None, longest_open=0, **stats):
    return State(iteration, env_steps, episodes, returns, longest_open, stats)


def test_lines_every_five_seconds(monkeypatch, lines):
    clock = _Clock(monkeypatch)
    state = _state(0, 1000)
    shown = Progress(lambda: state, "until 10 iterations", live=False)
    shown.start()
    clock.now += 4.9
    shown.update()
    assert lines == []
    clock.now += 0.1
    state = _state(7, 6000, 12, (20.5, 3.0, 10), 4, lag_mean=1.25, lag_max=3.0, learn_queue_fill=0.5, restarts=2.0)
    shown.update()
    shown.update()
    assert lines == [
        "iteration 7, env steps 6,000, steps/s 1,000, episodes 12, return 20.5 ± 3.0 (last 10), lag 1.2 mean, 3 max, "
        "queue 50%, restarts 2, elapsed 5 s"
    ]


def test_a_period_without_an_episode_is_told(monkeypatch, lines):
    clock = _Clock(monkeypatch)
    state = _state(1, 10, longest_open=17)
    shown = Progress(lambda: state, "", live=False)
    shown.start()
    clock.now += 5
    shown.update()
    assert "0 episodes, longest open episode 17 steps" in lines[0]
    state = _state(2, 20, 3, (1.0, 0.0, 3), 18)
    clock.now += 5
    shown.update()
    assert "longest open" not in lines[1]
    clock.now += 5
    shown.update()
    assert "episodes 3 (0 new, longest open 18 steps)" in lines[2]


def test_state_is_read_only_when_something_is_shown(monkeypatch, lines):
    clock = _Clock(monkeypatch)
    reads = []
    shown = Progress(lambda: reads.append(1) or _state(0, 0), "", live=False)
    shown.start()
    for _ in range(1000):
        shown.update()
    assert len(reads) == 1
    clock.now += 5
    shown.update()
    assert len(reads) == 2


def test_live_display_at_most_four_times_a_second(monkeypatch):
    clock = _Clock(monkeypatch)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    states = iter(_state(i, i * 100, i, (float(i), 0.5, 10)) for i in range(100))
    shown = Progress(lambda: next(states), "until 10 iterations", live=True)
    shown.start()
    try:
        for _ in range(10):
            clock.now += 0.1
            shown.update()
    finally:
        shown.stop()
    assert next(states).iteration <= 5
    assert "until 10 iterations" in stderr.getvalue()
    assert "return" in stderr.getvalue()
    shown.stop()
