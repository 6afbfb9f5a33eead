"""One row for each finished episode of a single agent, in a file of its own."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping

from alf.metrics.agent_episodes import Ended
from alf.metrics.episode_rows import EpisodeRows
from alf.metrics.tables import Value


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
        self._rows = EpisodeRows(os.path.join(directory, "agents.csv"), flush_every)
        self._lock = threading.Lock()
        self._agents = 0
        self._now: Mapping[str, Value] = {}

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._agents

    def resume(self, step: int, most: float = math.inf) -> None:
        """Removes rows above a global step, or with a number above `most`; numbers count on from what stays."""
        self._agents = self._rows.resume("agent", step, most)

    def at(self, now: Mapping[str, Value]) -> None:
        """Tells where the run stands: columns of the rows to come."""
        self._now = now

    def write(self, behavior: str, thread: int, ended: Ended) -> None:
        """Adds rows: a listener of `AgentEpisodes`. What a full disk keeps from being written is missing."""
        with self._lock:
            self._rows.append(self._numbered(behavior, thread, ended))

    def _numbered(self, behavior: str, thread: int, ended: Ended) -> Iterator[dict[str, Value]]:
        now = self._now
        for row, slot, total, length, cut in zip(*(x.tolist() for x in ended), strict=True):
            self._agents += 1
            yield {
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

    def flush(self) -> None:
        """Hands all rows to the operating system."""
        with self._lock:
            self._rows.flush()

    def close(self) -> None:
        """Writes what is held back; may be called any number of times."""
        with self._lock:
            self._rows.close()
