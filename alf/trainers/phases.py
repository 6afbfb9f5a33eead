"""What a run is doing: warming up, training, or being tested."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator


class Phase(enum.Enum):
    """A phase of a run; each has totals of its own."""

    HEATUP = "heatup"
    TRAIN = "train"
    TEST = "test"


class _Entered(threading.local):
    """The phases that one thread is in, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Phase] = []


class Phases:
    """The phase that a trainer is in, for each thread that works for it; TRAIN where nothing else was entered."""

    def __init__(self) -> None:
        self._entered = _Entered()

    @property
    def current(self) -> Phase:
        """The phase that the calling thread is in."""
        stack = self._entered.stack
        return stack[-1] if stack else Phase.TRAIN

    @contextlib.contextmanager
    def phase_context(self, phase: Phase) -> Iterator[None]:
        """The calling thread is in `phase` until the block ends, however it ends; then in what it was in before."""
        stack = self._entered.stack
        stack.append(phase)
        try:
            yield
        finally:
            stack.pop()
