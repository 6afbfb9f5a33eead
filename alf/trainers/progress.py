"""What a person who watches the run sees: a live display on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from absl import logging

_LIVE_SECS = 0.25
_LINE_SECS = 5.0


class State(NamedTuple):
    """A moment of training.

    `returns` is None before an episode ended, else mean, standard deviation and how many episodes they are over;
    `longest_open` the actions of the longest episode that goes on; `stats` what the driver tells.
    """

    iteration: int
    env_steps: int
    episodes: int
    returns: tuple[float, float, int] | None
    longest_open: int
    stats: Mapping[str, float]


class Progress:
    """Shows states, at most four times a second on a terminal and every five seconds in a log."""

    def __init__(self, describe: Callable[[], State], goal: str, live: bool | None = None) -> None:
        """Creates the display; nothing is shown before `start`.

        Args:
          describe: gives the present state; called only when something is shown.
          goal: what ends the run, for the title.
          live: True for the live display, False for lines; by default whether standard error is a terminal.
        """
        self._describe = describe
        self._goal = goal
        self._live_wanted = sys.stderr.isatty() if live is None else live
        self._live: Any = None
        self._next = 0.0
        self._began = 0.0
        self._shown: tuple[float, State] | None = None

    def start(self) -> None:
        """Begins the clock, and the live display where there is one."""
        self._began = time.monotonic()
        self._shown = (self._began, self._describe())
        self._next = self._began + (_LIVE_SECS if self._live_wanted else _LINE_SECS)
        if self._live_wanted:
            self._live = _open_live()

    def update(self) -> None:
        """Shows the state when it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_LIVE_SECS if self._live is not None else _LINE_SECS)
        rows = self._rows(now)
        if self._live is not None:
            self._live.update(_table(self._goal, rows), refresh=True)
        else:
            logging.info("%s", ", ".join(f"{name} {value}" for name, value in rows))

    def stop(self) -> None:
        """Ends the live display."""
        if self._live is not None:
            self._live.stop()
            logging.get_absl_handler().python_handler.setStream(sys.stderr)
            self._live = None

    def _rows(self, now: float) -> list[tuple[str, str]]:
        state = self._describe()
        then, before = self._shown or (self._began, state)
        rate = (state.env_steps - before.env_steps) / max(now - then, 1e-9)
        ended = state.episodes - before.episodes
        # The live display compares with a moment some seconds ago, so that its numbers do not flicker.
        if now - then >= (1.0 if self._live is not None else 0.0):
            self._shown = (now, state)
        rows = [
            ("iteration", f"{state.iteration}"),
            ("env steps", f"{state.env_steps:,}"),
            ("steps/s", f"{rate:,.0f}"),
            (
                "episodes",
                f"{state.episodes:,}" + ("" if ended else f" (0 new, longest open {state.longest_open} steps)"),
            ),
            ("return", _returns(state)),
        ]
        stats = state.stats
        if "lag_mean" in stats:
            rows.append(("lag", f"{stats['lag_mean']:.1f} mean, {stats.get('lag_max', 0):.0f} max"))
        if "learn_queue_fill" in stats:
            rows.append(("queue", f"{stats['learn_queue_fill']:.0%}"))
        rows.append(("restarts", f"{stats.get('restarts', 0):.0f}"))
        rows.append(("elapsed", f"{now - self._began:.0f} s"))
        return rows


def _returns(state: State) -> str:
    if state.returns is None:
        return f"none yet: 0 episodes, longest open episode {state.longest_open} steps"
    mean, std, episodes = state.returns
    return f"{mean:.1f} ± {std:.1f} (last {episodes})"


def _open_live() -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True), auto_refresh=False)
    live.start()
    # absl keeps the stream it found at import; its lines must go above the display, not into it.
    logging.get_absl_handler().python_handler.setStream(sys.stderr)
    return live


def _table(title: str, rows: list[tuple[str, str]]) -> Any:
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(name, value)
    return table
