"""One row for each finished episode of a single agent, in a file of its own."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Mapping

from absl import logging

from alf.metrics.agent_episodes import Ended
from alf.metrics.tables import CsvFile, Value, finite
from alf.metrics.writers import STEP


class AgentLog:
    """Writes `agents.csv`; the file appears with the first row.

    Columns: `agent`, which counts the rows, what `at` was told last, the environment (`thread`, `row`), `behavior`, `slot`,
    `length`, `return`, and `cut`, 1 where the end of the environment's episode was what ended the agent's.
    """

    def __init__(self, directory: str, flush_every: int = 100) -> None:
        """Creates the log.

        Args:
          directory: of the file.
          flush_every: rows that may be held back until the next `flush`.
        """
        self._file = CsvFile(os.path.join(directory, "agents.csv"))
        self._flush_every = flush_every
        self._lock = threading.Lock()
        self._agents, self._unflushed = 0, 0
        self._now: Mapping[str, Value] = {}
        self._warned = False

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._agents

    def resume(self, step: int, most: float = math.inf) -> None:
        """Removes rows above a global step, or with a number above `most`; numbers count on from what stays."""
        self._agents = go_on(self._file, "agent", step, most)

    def at(self, now: Mapping[str, Value]) -> None:
        """Tells where the run stands: columns of the rows to come."""
        self._now = now

    def write(self, behavior: str, thread: int, ended: Ended) -> None:
        """Adds rows: a listener of `AgentEpisodes`. What a full disk keeps from being written is missing."""
        now = self._now
        with self._lock, self._told():
            for row, slot, total, length, cut in zip(*(x.tolist() for x in ended), strict=True):
                self._agents += 1
                self._file.append(
                    {
                        "agent": self._agents,
                        **now,
                        "thread": thread,
                        "row": row,
                        "behavior": behavior,
                        "slot": slot,
                        "length": length,
                        "return": total,
                        "cut": int(cut),
                    }
                )
            self._unflushed += len(ended.row)
            if self._unflushed >= self._flush_every:
                self._flush()

    def flush(self) -> None:
        """Hands all rows to the operating system."""
        with self._lock, self._told():
            self._flush()

    def close(self) -> None:
        """Writes what is held back; may be called any number of times."""
        with self._lock, self._told():
            self._file.close()

    def _flush(self) -> None:
        self._unflushed = 0
        self._file.flush()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Warns once of a file that cannot be written."""
        try:
            yield
        except OSError as e:
            if not self._warned:
                logging.warning("%s cannot be written, and episodes are missing there: %s", self._file.path, e)
            self._warned = True


def go_on(file: CsvFile, number: str, step: int, most: float) -> int:
    """Removes rows above a global step, or whose column `number` is above `most`; returns the last number that stays."""
    last = finite(file.cut(STEP, step).get(number))
    # Rows are told by the iteration before them, so those of the one after a checkpoint have its step.
    return int(last if last <= most else finite(file.cut(number, most).get(number)))
