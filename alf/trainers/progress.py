"""What a person who watches the run sees: a live display on a terminal or in a notebook, else a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from absl import logging

from alf.metrics.time_shares import TimeShares, Timings, shares
from alf.trainers import live_display
from alf.trainers.live_display import LiveDisplay

_LIVE_SECS = 0.5
_LINE_SECS = 5.0
# Shares and verdict are of a stretch that long at least.
_SHARES_SECS = 2.0
_MOST_BEHAVIORS = 8


class State(NamedTuple):
    """A moment of training.

    `returns` is None before an episode ended, else mean, standard deviation and how many episodes they are over;
    `longest_open` the actions of the longest episode that goes on; `stats` what the driver tells; `timings` what its
    time went to. `phase` is what the run is doing, `share` how much of its schedule is done, in [0, 1] or None where
    that cannot be told; `evaluation` the last one, as `returns`, and `best` the highest mean of all; `behaviors` the
    episodes of single agents, as `returns`, where there are several.
    """

    iteration: int
    env_steps: int
    episodes: int
    returns: tuple[float, float, int] | None
    longest_open: int
    stats: Mapping[str, float]
    timings: Timings | None = None
    phase: str = "training"
    share: float | None = None
    evaluation: tuple[float, float, int] | None = None
    best: float | None = None
    behaviors: Mapping[str, tuple[float, float, int]] = {}


class Progress:
    """Shows states, at most twice a second to who watches and every five seconds in a log."""

    def __init__(self, describe: Callable[[], State], goal: str, live: bool | None = None) -> None:
        """Creates the display; nothing is shown before `start`.

        Args:
          describe: gives the present state; called only when something is shown.
          goal: what ends the run, for the title.
          live: True for the live display, False for lines; by default whether somebody watches.
        """
        self._describe = describe
        self._goal = goal
        self._live_wanted = live_display.wanted() if live is None else live
        self._live: LiveDisplay | None = None
        self._next = 0.0
        self._began = 0.0
        # The moment, and the share done then, from which the time left is reckoned.
        self._base: tuple[float, float] | None = None
        self._shown: tuple[float, State] | None = None
        self._first: tuple[float, State] | None = None
        self._timings: tuple[float, Timings] | None = None
        self._first_timings: tuple[float, Timings] | None = None
        self._shares: TimeShares | None = None
        self._last_cause = ""

    def start(self) -> None:
        """Begins the clock, and the live display where there is one."""
        self._began = time.monotonic()
        state = self._describe()
        self._shown = self._first = (self._began, state)
        self._base = None if state.share is None else (self._began, state.share)
        self._next = self._began + (_LIVE_SECS if self._live_wanted else _LINE_SECS)
        if self._live_wanted:
            with self._until_lost():
                self._live = live_display.open_display()

    def plan(self, goal: str) -> None:
        """Shows other ends from now on, for which shares and time left count anew.

        Args:
          goal: what ends the run, for the title.
        """
        self._goal, self._base = goal, None

    def refresh(self) -> None:
        """Shows the state now on a live display; a log waits for its time."""
        if self._live is not None:
            self._show(time.monotonic())

    def update(self) -> None:
        """Shows the state when it is time to; nothing before `start`."""
        now = time.monotonic()
        if now < self._next or self._shown is None:
            return
        self._next = now + (_LIVE_SECS if self._live is not None else _LINE_SECS)
        self._show(now)

    def _show(self, now: float) -> None:
        state = self._describe()
        self._take_timings(now, state)
        rows = self._rows(now, state)
        if self._live is not None:
            left = self._time_left(now, state)
            with self._until_lost():
                self._live.show(_picture(self._goal, state, left, rows, self.verdict))
            return
        if state.share is not None:
            rows.insert(0, ("done", _done(state.share, self._time_left(now, state))))
        logging.info("%s", ", ".join(f"{name} {value}" for name, value in rows))
        self._log_verdict()

    def stop(self) -> None:
        """Shows the last state, with speed and shares of the whole time, and ends the live display."""
        if self._live is not None:
            try:
                self._shown, self._timings = self._first, self._first_timings
                self._show(time.monotonic())
            finally:
                self._end_live()

    @contextlib.contextmanager
    def _until_lost(self) -> Iterator[None]:
        """Around what is written to the display: where the terminal is gone, as when a connection is lost, lines follow."""
        try:
            yield
        except OSError as e:
            self._end_live()
            logging.warning("The display is lost (%s); training goes on.", e)

    def _end_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.close()

    @property
    def verdict(self) -> str:
        """What holds the run up, by the last seconds; empty before anything was measured."""
        return self._shares.verdict() if self._shares else ""

    # ---- what is said ----

    def _take_timings(self, now: float, state: State) -> None:
        if state.timings is None:
            return
        if self._timings is None:
            self._timings = self._first_timings = (now, state.timings)
        elif now - self._timings[0] >= _SHARES_SECS:
            then, before = self._timings
            self._shares = shares(before, state.timings, now - then) or self._shares
            self._timings = (now, state.timings)

    def _time_left(self, now: float, state: State) -> float | None:
        """Seconds until the schedule is done, at the mean speed since there is a share of it."""
        if state.share is None:
            return None
        if self._base is None:
            self._base = (now, state.share)
        since, before = self._base
        done = state.share - before
        return (1.0 - state.share) * (now - since) / done if done > 0.0 else None

    def _log_verdict(self) -> None:
        """Logs the verdict when its cause is another one than before."""
        verdict = self.verdict
        cause = verdict.partition(":")[0].partition(" takes ")[0]
        if cause != self._last_cause:
            self._last_cause = cause
            logging.info("Where the time goes: %s", verdict)

    def _rows(self, now: float, state: State) -> list[tuple[str, str]]:
        then, before = self._shown or (self._began, state)
        # The live display compares with a moment some seconds ago, so that its numbers do not flicker.
        if now - then >= (1.0 if self._live is not None else 0.0):
            self._shown = (now, state)
        rows = [("iteration", f"{state.iteration:,}" if self._live is not None else f"{state.iteration}")]
        secs = max(now - then, 1e-9)
        # An iteration has steps, unless training is on a dataset.
        collects = bool(state.env_steps or not state.iteration)
        per_second = ("iterations/s", f"{(state.iteration - before.iteration) / secs:.1f}")
        rows += _collected_rows(state, before, secs) if collects else [per_second]
        if state.evaluation is not None:
            best = "" if state.best is None else f", best {state.best:.1f}"
            mean, std, episodes = state.evaluation
            rows.append(("evaluation", f"{mean:.1f} ± {std:.1f} ({episodes} episodes{best})"))
        rows += _driver_rows(state.stats) if collects else []
        if self._shares is not None:
            rows += _share_rows(self._shares)
        return [
            *rows,
            ("elapsed", _clock(now - self._began) if self._live is not None else f"{now - self._began:.0f} s"),
        ]


def _collected_rows(state: State, before: State, secs: float) -> list[tuple[str, str]]:
    silent = "" if state.episodes > before.episodes else f" (0 new, longest open {state.longest_open} steps)"
    return [
        ("env steps", f"{state.env_steps:,}"),
        ("steps/s", f"{(state.env_steps - before.env_steps) / secs:,.0f}"),
        ("episodes", f"{state.episodes:,}{silent}"),
        ("return", _returns(state)),
        *behavior_rows(state),
    ]


def _driver_rows(stats: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = []
    if "workers" in stats:
        rows.append(("workers", _workers(stats)))
    if "lag_mean" in stats:
        rows.append(("lag", f"{stats['lag_mean']:.1f} mean, {stats.get('lag_max', 0):.0f} max"))
    if "learn_queue_fill" in stats:
        rows.append(("queue", f"{stats['learn_queue_fill']:.0%}"))
    rows.append(("restarts", f"{stats.get('restarts', 0):.0f}"))
    return rows


def _workers(stats: Mapping[str, float]) -> str:
    told = f"{stats.get('workers_alive', 0):.0f} of {stats['workers']:.0f} alive"
    counts = (
        ("worker_restarts", "restarts"),
        ("lost_requests", "requests lost"),
        ("skipped_evaluations", "evaluations skipped"),
    )
    return told + "".join(f", {stats[name]:.0f} {what}" for name, what in counts if stats.get(name))


def _share_rows(s: TimeShares) -> list[tuple[str, str]]:
    collecting = f"environment {s.environment:.0%}, inference {s.inference:.0%}"
    if not s.threads:
        return [("time", f"{collecting}, learning {s.learner_training:.0%}, other {s.learner_other:.0%}")]
    return [
        ("learner", f"training {s.learner_training:.0%}, waiting {s.learner_waiting:.0%}, other {s.learner_other:.0%}"),
        ("collecting", f"{collecting}, waiting {s.collecting_waiting:.0%}"),
    ]


def _returns(state: State) -> str:
    if state.returns is None:
        return f"none yet: 0 episodes, longest open episode {state.longest_open} steps"
    return _spread(*state.returns)


def behavior_rows(state: State) -> list[tuple[str, str]]:
    """What is said of each behavior, up to the first eight: a name and its return."""
    shown = list(state.behaviors.items())[:_MOST_BEHAVIORS]
    return [(f"return of {name}", _spread(*numbers)) for name, numbers in shown]


def _spread(mean: float, std: float, episodes: int) -> str:
    return f"{mean:.1f} ± {std:.1f} (last {episodes})"


def _clock(seconds: float) -> str:
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}"


def _done(share: float, left: float | None) -> str:
    return f"{share:.0%}" + ("" if left is None else f", {_clock(left)} left")


def _picture(goal: str, state: State, left: float | None, rows: list[tuple[str, str]], verdict: str) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [Text.assemble((state.phase, "bold green"), " ", goal)]
    if state.share is not None:
        bar = Table.grid(padding=(0, 1), expand=False)
        bar.add_row(ProgressBar(total=1.0, completed=min(1.0, state.share), width=28), _done(state.share, left))
        parts.append(bar)
    table = Table.grid(padding=(0, 1))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    parts.append(table)
    if verdict:
        parts.append(Text(verdict, style="yellow"))
    return Group(*parts)
