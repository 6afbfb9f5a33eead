"""Where rows of statistics go: TensorBoard, CSV, JSON lines. All get the same row."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from alf.metrics.event_files import OTHER_AXIS, cut_events
from alf.metrics.histogram import Histogram
from alf.metrics.summary_writer import SummaryWriter
from alf.metrics.tables import CsvFile, JsonLinesFile, RowFile, Value

# The axis that rows are ordered by, and cut at.
STEP = "global_step"
# Columns of x values; of `Row.axes`.
AXES = (STEP, "iteration", "env_steps", "episodes", "seconds", "wall_time")


class Row(NamedTuple):
    """The statistics of a moment.

    `axes`: x values by name, of which `global_step` is one. `values` by tag. `averages`: by name, what is also drawn
    against the other axes; each is in `values` as `Metrics/<name>`. `histograms` by tag.
    """

    axes: Mapping[str, Value]
    values: Mapping[str, Value]
    averages: Mapping[str, float] = {}
    histograms: Mapping[str, Histogram] = {}


class Writer(Protocol):
    """Keeps rows in a form of its own; for one thread at a time."""

    def resume(self, step: int) -> Mapping[str, Any]:
        """Removes what is above a global step; returns the last row that stays, {} where that cannot be told."""

    def write(self, row: Row) -> None:
        """Takes a row; may hold it back until `flush`."""

    def flush(self) -> None:
        """Hands all rows to the operating system."""

    def close(self) -> None:
        """Flushes and frees everything; a later `write` starts again."""


# Axes by column, and how TensorBoard's tags call them.
_AXIS_TAGS = {"env_steps": "EnvironmentSteps", "episodes": "NumberOfEpisodes", "seconds": "Seconds"}


class TensorBoardWriter:
    """Scalars and histograms against the global step, averages also against the other axes."""

    def __init__(self, events: SummaryWriter) -> None:
        """Creates the writer.

        Args:
          events: the event file.
        """
        self._events = events

    def resume(self, step: int) -> Mapping[str, Any]:
        """Cuts older event files of the directory."""
        cut_events(self._events.log_dir, step)
        return {}

    def write(self, row: Row) -> None:
        """Writes one record for each axis."""
        step = int(row.axes[STEP] or 0)
        numbers = {tag: float(v) for tag, v in row.values.items() if isinstance(v, (int, float))}
        self._events.scalars(numbers, step)
        for tag, histogram in row.histograms.items():
            self._events.histogram(tag, histogram, step)
        for axis, name in _AXIS_TAGS.items():
            x = row.axes.get(axis)
            if row.averages and isinstance(x, (int, float)):
                against = {f"Metrics{OTHER_AXIS}{name}/{what}": y for what, y in row.averages.items()}
                self._events.scalars(against, int(x))

    def flush(self) -> None:
        """Flushes the event file."""
        self._events.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._events.close()


class TableWriter:
    """A line for each row: its axes, then its values."""

    def __init__(self, file: RowFile) -> None:
        """Creates the writer.

        Args:
          file: CSV or JSON lines.
        """
        self._file = file

    def resume(self, step: int) -> Mapping[str, Any]:
        """Cuts the file."""
        return self._file.cut(STEP, step)

    def write(self, row: Row) -> None:
        """Appends a line."""
        self._file.append({**row.axes, **row.values})

    def flush(self) -> None:
        """Flushes the file."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def make_writers(formats: tuple[str, ...], log_dir: str, events: SummaryWriter) -> list[Writer]:
    """The writers called "tensorboard", "csv" (stats.csv) and "jsonl" (stats.jsonl), in a directory.

    Raises:
      ValueError: there is no such writer.
    """
    known: dict[str, Callable[[], Writer]] = {
        "tensorboard": lambda: TensorBoardWriter(events),
        "csv": lambda: TableWriter(CsvFile(os.path.join(log_dir, "stats.csv"))),
        "jsonl": lambda: TableWriter(JsonLinesFile(os.path.join(log_dir, "stats.jsonl"))),
    }
    for name in formats:
        if name not in known:
            raise ValueError(f"StatsReporter.formats has {name!r}, which is none of {', '.join(known)}.")
    return [known[name]() for name in formats]
