"""One row for each finished episode of a single agent, in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping

from absl import logging

from alf.metrics.agent_episodes import Ended
from alf.metrics.tables import CsvFile, Value, finite
from alf.metrics.writers import STEP


class AgentLog:
    """Writes `agents.csv`, for one thread at a time; the file appears with the first row.

    Columns: `agent`, which counts the rows, what `at` was told last, the environment (`thread`, `row`), `behavior`, `slot`,
    `length`, `return`, and `cut`, 1 where the end of the environment's episode was what ended the agent's.
    """

    def __init__(self, directory: str, flush_every: int = 100) -> None:
        """Creates the log.

        Args:
          directory: of the file.
          flush_every: rows that may be held back; the rest is written at `close`.
        """
        self._file = CsvFile(os.path.join(directory, "agents.csv"))
        self._flush_every = flush_every
        self._agents, self._unflushed = 0, 0
        self._now: Mapping[str, Value] = {}
        self._warned = False

    def resume(self, step: int) -> None:
        """Removes rows above a global step; numbers count on from what stays."""
        self._agents = int(finite(self._file.cut(STEP, step).get("agent")))

    def at(self, now: Mapping[str, Value]) -> None:
        """Tells where the run stands: columns of the rows to come."""
        self._now = now

    def write(self, behavior: str, thread: int, ended: Ended) -> None:
        """Adds rows: a listener of `AgentEpisodes`. What a full disk keeps from being written is missing."""
        now = self._now
        try:
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
                self._unflushed = 0
                self._file.flush()
        except OSError as e:
            self._warn(e)

    def close(self) -> None:
        """Writes what is held back; may be called any number of times."""
        try:
            self._file.close()
        except OSError as e:
            self._warn(e)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            logging.warning("%s cannot be written, and episodes are missing there: %s", self._file.path, error)
        self._warned = True
