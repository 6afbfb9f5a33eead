"""What the display says."""

from __future__ import annotations

import io
import sys

import pytest
from absl import logging

from alf.metrics.time_shares import Timings
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


def test_a_run_that_collects_nothing_tells_of_iterations_and_evaluations(monkeypatch, lines):
    clock = _Clock(monkeypatch)
    state = _state(0, 0)
    shown = Progress(lambda: state, "", live=False)
    shown.start()
    clock.now += 5
    state = _state(12, 0, restarts=0.0)._replace(evaluation=(480.0, 20.0, 10), best=500.0)
    shown.update()
    assert lines == ["iteration 12, iterations/s 2.4, evaluation 480.0 ± 20.0 (10 episodes, best 500.0), elapsed 5 s"]


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


def test_live_display_at_most_twice_a_second(monkeypatch):
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
    assert next(states).iteration <= 4
    assert "until 10 iterations" in stderr.getvalue()
    assert "return" in stderr.getvalue()
    shown.stop()


TIMED = [Timings(), Timings(3.0, 1.5, 4.0, 0.5, 0.5, 1), Timings(6.0, 3.0, 8.0, 1.0, 1.0, 1)]
SLOW_LEARNER = Timings(10.9, 3.1, 8.5, 1.5, 5.0, 1)


def test_lines_tell_the_share_done_the_time_and_each_new_verdict_once(monkeypatch, lines):
    clock = _Clock(monkeypatch)
    states = iter(
        _state(i, 1000 * i)._replace(timings=timings, share=0.1 + 0.1 * i)
        for i, timings in enumerate([TIMED[0], *TIMED, SLOW_LEARNER])
    )
    shown = Progress(lambda: next(states), "", live=False)
    shown.start()
    for _ in range(4):
        clock.now += 5.0
        shown.update()
    verdicts = [line for line in lines if line.startswith("Where the time goes")]
    assert [v.partition(":")[2].split(":")[0].strip() for v in verdicts] == [
        "the environment is the bottleneck",
        "the learner is the bottleneck",
    ]
    assert lines[0].startswith("done 20%, 0:00:40 left, iteration 1")
    assert (
        "learner training 60%, waiting 30%, other 10%, collecting environment 80%, inference 10%, waiting 10%"
        in lines[1]
    )


def test_time_left_is_reckoned_from_when_there_was_a_share(monkeypatch, lines):
    """As where a loop of one's own has acted before `improve` plans its ends; what was done by then took no time here."""
    clock = _Clock(monkeypatch)
    shares = iter([None, None, 0.5, 0.6, 0.8])
    shown = Progress(lambda: _state(0, 0)._replace(share=next(shares)), "", live=False)
    shown.start()
    for _ in range(4):
        clock.now += 5.0
        shown.update()
    assert [line.partition(", iteration")[0] for line in lines[1:]] == [
        "done 50%",
        "done 60%, 0:00:20 left",
        "done 80%, 0:00:06 left",
    ]


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_time_left_is_reckoned_anew_for_other_ends(monkeypatch, lines, share):
    clock = _Clock(monkeypatch)
    shares = iter([0.0, 0.5, share, share + 0.05])
    shown = Progress(lambda: _state(0, 0)._replace(share=next(shares)), "", live=False)
    shown.start()
    for _ in range(2):
        clock.now += 5.0
        shown.update()
        shown.plan("")
    clock.now += 5.0
    shown.update()
    assert lines[0].startswith("done 50%, 0:00:05 left")
    assert [" left" in line for line in lines[1:]] == [False, False]


def test_time_left_follows_the_speed_since_the_start(monkeypatch, lines):
    """A resumed run starts at a share above 0, and its time left must not count that as done in no time."""
    clock = _Clock(monkeypatch)
    shares = iter([0.5, 0.5, 0.6])
    shown = Progress(lambda: _state(0, 0)._replace(share=next(shares)), "", live=False)
    shown.start()
    for _ in range(2):
        clock.now += 5.0
        shown.update()
    assert lines[0].startswith("done 50%, iteration")
    assert lines[1].startswith("done 60%, 0:00:40 left")


def _screen(monkeypatch, columns, state):
    """What a terminal of this width shows at the end."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("TERM", "dumb")
    clock = _Clock(monkeypatch)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    times = iter([TIMED[0], TIMED[0], TIMED[1], TIMED[1]])
    shown = Progress(lambda: state._replace(timings=next(times)), "until 10 iterations", live=True)
    shown.start()
    try:
        for _ in range(2):
            clock.now += 5.0
            shown.update()
    finally:
        shown.stop()
    return stderr.getvalue()


@pytest.mark.parametrize("columns", [40, 100])
def test_the_live_display_has_all_of_it(monkeypatch, columns):
    state = _state(7, 60000, 12, (20.5, 3.0, 10), 4, lag_mean=1.25, lag_max=3.0, learn_queue_fill=0.5, restarts=2.0)
    state = state._replace(share=0.42, evaluation=(99.0, 1.5, 5), best=120.0)
    text = _screen(monkeypatch, columns, state)
    flat = " ".join(text.split())
    for part in ("training until 10 iterations", "42%", "60,000", "20.5 ± 3.0", "99.0 ± 1.5", "best 120.0", "1.2 mean"):
        assert part in flat
    assert "environment 80%" in flat
    assert "the environment is the bottleneck" in flat
    assert max(len(line) for line in text.splitlines()) <= columns


def test_the_last_picture_is_of_the_whole_time(monkeypatch):
    state = _state(7, 60000, 12, (20.5, 3.0, 10), 4)
    picture = _screen(monkeypatch, 100, state).rpartition("training until")[2]
    assert "environment 80%" in picture
    clock, stderr = _Clock(monkeypatch), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    steps = iter([0, 1000, 1000, 1000])
    shown = Progress(lambda: _state(1, next(steps)), "", live=True)
    shown.start()
    for _ in range(2):
        clock.now += 2.0
        shown.update()
    clock.now += 6.0
    shown.stop()
    assert "steps/s 100 " in " ".join(stderr.getvalue().rpartition("iteration")[2].split())


def test_a_display_that_never_started_shows_nothing(lines):
    shown = Progress(lambda: _state(0, 0), "", live=False)
    shown.update()
    shown.refresh()
    shown.stop()
    assert lines == []
