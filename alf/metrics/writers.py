"""Where rows of statistics go: TensorBoard, CSV, JSON lines, and what users write. All get the same row."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from alf.metrics.event_files import OTHER_AXIS, cut_events
from alf.metrics.histogram import Histogram
from alf.metrics.summary_writer import SummaryWriter
from alf.metrics.tables import STEP, CsvFile, JsonLinesFile, RowFile, Value

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


class Writer(abc.ABC):
    """Keeps rows in a form of its own; for one thread at a time. A subclass needs `write` only."""

    def resume(self, step: int) -> Mapping[str, Any]:
        """Removes what is above a global step; returns the last row that stays, {} where that cannot be told."""
        return {}

    @abc.abstractmethod
    def write(self, row: Row) -> None:
        """Takes a row; may hold it back until `flush`.

        Raises:
          OSError: the row cannot be kept; it is missing then, which is logged once.
        """

    def flush(self) -> None:  # noqa: B027
        """Hands all rows to the operating system."""

    def close(self) -> None:  # noqa: B027
        """Flushes and frees everything; a later `write` starts again."""


# Makes a writer for a directory of a run, `train` for its statistics and `eval` for its evaluations.
MakeWriter = Callable[[str], Writer]


class Writers:
    """Several writers of the same rows. What one of them cannot write is missing, and training goes on."""

    def __init__(self, writers: Iterable[Writer], log_dir: str) -> None:
        """Groups writers.

        Args:
          writers: that get each row.
          log_dir: what warnings say the rows are missing in.
        """
        self._writers = list(writers)
        self._log_dir = log_dir
        self._broken: set[Writer] = set()

    def resume(self, step: int) -> list[Mapping[str, Any]]:
        """Removes what is above a global step; returns the last rows that stay, of writers that can tell."""
        return [last for last in self._each(lambda writer: writer.resume(step)) if last]

    def write(self, row: Row) -> None:
        """Gives them a row."""
        self._each(lambda writer: writer.write(row))

    def flush(self) -> None:
        """Flushes them."""
        self._each(lambda writer: writer.flush())

    def close(self) -> None:
        """Closes them; may be called any number of times."""
        self._each(lambda writer: writer.close())

    def _each(self, action: Callable[[Writer], Any]) -> list[Any]:
        results = []
        for writer in self._writers:
            try:
                results.append(action(writer))
            except (OSError, tf.errors.OpError) as e:
                if writer not in self._broken:
                    logging.warning("Statistics cannot be written and are missing in %s: %s", self._log_dir, e)
                self._broken.add(writer)
        return results


# Axes by column, and how TensorBoard's tags call them.
_AXIS_TAGS = {"env_steps": "EnvironmentSteps", "episodes": "NumberOfEpisodes", "seconds": "Seconds"}


class TensorBoardWriter(Writer):
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


class TableWriter(Writer):
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


def make_writers(formats: Sequence[str | MakeWriter], log_dir: str, events: SummaryWriter) -> list[Writer]:
    """The writers called "tensorboard", "csv" (stats.csv) and "jsonl" (stats.jsonl), and users' own, for a directory.

    Raises:
      TypeError: what should make a writer has made something else.
      ValueError: there is no such writer.
    """
    known: dict[str, Callable[[], Writer]] = {
        "tensorboard": lambda: TensorBoardWriter(events),
        "csv": lambda: TableWriter(CsvFile(os.path.join(log_dir, "stats.csv"))),
        "jsonl": lambda: TableWriter(JsonLinesFile(os.path.join(log_dir, "stats.jsonl"))),
    }
    for name in formats:
        if not callable(name) and name not in known:
            own = "" if isinstance(name, str) else ", nor a class or function that makes a Writer of a directory"
            raise ValueError(f"StatsReporter.formats has {name!r}, which is none of {', '.join(known)}{own}.")
    return [known[of]() if isinstance(of, str) else _own_writer(of, log_dir) for of in formats]


def own_writers(formats: Sequence[str | MakeWriter], log_dir: str) -> list[Writer]:
    """Only those of the formats that users have written, for a directory; raises as `make_writers`."""
    return [_own_writer(make, log_dir) for make in formats if not isinstance(make, str)]


def _own_writer(make: MakeWriter, log_dir: str) -> Writer:
    writer = make(log_dir)
    if not isinstance(writer, Writer):
        raise TypeError(
            f"StatsReporter.formats has {make!r}, which made {writer!r} of a directory: it should make an "
            "alf.metrics.writers.Writer."
        )
    return writer
