"""The rows of finished episodes, in a file that a full disk may keep from being written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from absl import logging

from alf.metrics.tables import CsvFile, Value, finite, read_csv
from alf.metrics.writers import STEP


class EpisodeRows:
    """A CSV file of episodes; for one thread at a time. What a full disk keeps from being written is missing."""

    def __init__(self, path: str, flush_every: int) -> None:
        """Names the file, which appears with the first row.

        Args:
          path: of the file.
          flush_every: rows that may be held back until the next `flush`.
        """
        self._file = CsvFile(path)
        self._flush_every = flush_every
        self._unflushed = 0
        self._warned = False

    def resume(self, number: str, step: int, most: float) -> int:
        """Removes rows above a global step, or whose column `number` is above `most`; returns the last number that stays."""
        with self.told():
            last = finite(self._file.cut(STEP, step).get(number))
            # Rows are told by the iteration before them, so those of the one after a checkpoint have its step.
            return int(last if last <= most else finite(self._file.cut(number, most).get(number)))
        # All rows have stayed.
        return int(max((finite(row.get(number)) for row in read_csv(self._file.path)), default=0))

    def append(self, rows: Iterable[Mapping[str, Value]]) -> None:
        """Adds rows."""
        with self.told():
            for row in rows:
                self._file.append(row)
                self._unflushed += 1
            if self._unflushed >= self._flush_every:
                self.flush()

    def flush(self) -> None:
        """Hands all rows to the operating system."""
        with self.told():
            self._unflushed = 0
            self._file.flush()

    def close(self) -> None:
        """Writes what is held back; may be called any number of times."""
        with self.told():
            self._file.close()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Around what writes episodes: warns, once, of a file that cannot be written."""
        try:
            yield
        except OSError as e:
            if not self._warned:
                logging.warning("%s cannot be written, and episodes are missing there: %s", self._file.path, e)
            self._warned = True
