"""Which steps of which streams a ring holds, in runs without a gap."""

from __future__ import annotations

import numpy as np


class StreamIndex:
    """The bookkeeping of E rings of equal length: what was written, what is still there, and where runs begin and end.

    Steps of a stream are numbered from 0 in the order of writing; step n of stream s lies in row `s * C + n % C`. Steps
    that follow each other without a gap make a run. Sequences are taken from inside of a run.
    """

    def __init__(self, num_streams: int, max_length: int, history: int = 0, until_committed: bool = False) -> None:
        """Creates the index of empty rings.

        Args:
          num_streams: E.
          max_length: C, steps that a stream keeps.
          history: steps of the same run that a sequence needs before its first one.
          until_committed: steps lie in their rows from `append` on, and are held, as far as runs and sequences go, from
            `commit` on only; those of a run that is broken off before never are.
        """
        self.num_streams = num_streams
        self.max_length = max_length
        self.history = history
        self._count = np.zeros(num_streams, np.int64)
        self._open = np.zeros(num_streams, np.int64)
        # Of the run that goes on, the step after the last one that is held: mostly all that were written are.
        self._held = np.zeros(num_streams, np.int64) if until_committed else self._count
        # Runs that go on no more: stream, first step, the step after the last.
        self._closed = np.zeros((0, 3), np.int64)
        # The starts of this moment, by length.
        self._starts: dict[int, np.ndarray] = {}

    @property
    def count(self) -> np.ndarray:
        """int64 [E]: steps ever written."""
        return self._count

    @property
    def oldest(self) -> np.ndarray:
        """int64 [E]: the number of the oldest step that is not overwritten."""
        return np.maximum(self._count - self.max_length, 0)

    def append(self, streams: np.ndarray, steps: int, continues: np.ndarray) -> np.ndarray:
        """Counts `steps` new steps of some streams.

        Args:
          streams: int [n], all different.
          steps: how many, for each of them.
          continues: bool [n], whether they follow on the last step of the stream.

        Returns:
          int64 [n], the numbers of the first of them.
        """
        self._starts.clear()
        first = self._count[streams]
        begun = streams[~continues]
        broken = begun[self._held[begun] > self._open[begun]]
        if len(broken):
            ended = np.stack([broken, self._open[broken], self._held[broken]], 1)
            self._closed = np.concatenate([self._closed, ended])
        self._open[begun] = self._held[begun] = self._count[begun]
        self._count[streams] = first + steps
        if len(self._closed):
            self._closed = self._closed[self._closed[:, 2] > self.oldest[self._closed[:, 0]]]
        return first

    def commit(self, streams: np.ndarray, end: np.ndarray) -> None:
        """Holds the steps of some streams up to those before `end`, int64 [n]; an earlier end changes nothing."""
        self._starts.clear()
        self._held[streams] = np.maximum(self._held[streams], end)

    def clear(self) -> None:
        """Forgets all steps; numbering goes on."""
        self._starts.clear()
        self._open[:] = self._held[:] = self._count
        self._closed = self._closed[:0]

    def runs(self) -> np.ndarray:
        """int64 [R, 3]: stream, first step and the step after the last of what is held, in order."""
        streams = np.arange(self.num_streams)
        runs = np.concatenate([self._closed, np.stack([streams, self._open, self._held], 1)])
        runs[:, 1] = np.maximum(runs[:, 1], self.oldest[runs[:, 0]])
        runs = runs[runs[:, 2] > runs[:, 1]]
        return runs[np.lexsort((runs[:, 1], runs[:, 0]))] if len(self._closed) else runs

    def starts(self, length: int) -> np.ndarray:
        """int64 [R, 3]: stream, the first step that begins a sequence of `length`, how many following ones do too."""
        if length not in self._starts:
            runs = self.runs()
            runs[:, 1] += self.history
            runs[:, 2] -= runs[:, 1] + (length - 1)
            self._starts[length] = runs[runs[:, 2] > 0]
        return self._starts[length]

    def rows(self, streams: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """int64: the rows of steps."""
        return streams * self.max_length + steps % self.max_length

    def state(self) -> dict[str, np.ndarray]:
        """What `load` takes; every run counts as ended."""
        return {"count": self._count.copy(), "open": self._count.copy(), "closed": self.runs()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Takes over the state of an index of as many streams; where this one holds less, the oldest steps go."""
        self._starts.clear()
        self._count[:], self._open[:] = state["count"], state["open"]
        self._held[:] = self._count
        closed = state["closed"].reshape(-1, 3).astype(np.int64)
        self._closed = closed[closed[:, 2] > self.oldest[closed[:, 0]]]


def ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers first[i], ..., first[i] + sizes[i] - 1 of all i, one after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(first - (ends - sizes), sizes)
