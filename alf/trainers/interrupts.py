"""Ending a run by SIGINT (Ctrl-C), SIGTERM or SIGHUP (a lost terminal) without losing what it has learned."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from absl import logging

from alf.utils.uninterrupted import SIGNALS, in_whole


class Interrupted(BaseException):
    """Raised inside `StopSignals.interruptible` to leave a wait; not an Exception, so that no handler keeps it."""


class StopSignals:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request to stop; the second one ends the process at once.

    SIGHUP is neither the first nor the second of two: of a terminal that closes both the shell and the kernel tell, and a
    machine that goes down sends it beside SIGTERM.
    In a notebook, or wherever else somebody types Python, a second SIGINT raises KeyboardInterrupt: a session has more in it.
    A context manager. Handlers are installed in the main thread only, elsewhere it does nothing, and the previous ones
    are put back at the end. A signal that is ignored, as SIGHUP is under nohup, stays so.
    """

    def __init__(self) -> None:
        self._requested: str | None = None
        self._asked = False  # by a signal that counts as the first of two
        self._interruptible = False
        self._previous: dict[int, Any] = {}
        self._taken_back: set[int] = set()

    @property
    def requested(self) -> str | None:
        """Name of the signal that asked to stop; None so far."""
        return self._requested

    def heard(self) -> str | None:
        """`requested`, after a look whether the signals still come here: an environment may have taken them over."""
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                continue
            signal.signal(number, self._handle)
            if number not in self._taken_back:
                self._taken_back.add(number)
                logging.warning(
                    "Something that training calls, probably an environment, has set a handler for %s, which is taken back, so "
                    "that the signal saves and ends the run: have it leave signals alone.",
                    signal.Signals(number).name,
                )
        return self._requested

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Marks a stretch, such as waiting for data, that a signal may leave by raising `Interrupted`; not what is `whole`."""
        self._interruptible = True
        try:
            if self._requested:
                raise Interrupted(self._requested)
            yield
        finally:
            self._interruptible = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            heard = [s for s in SIGNALS if s != signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN]
            self._previous = {s: signal.signal(s, self._handle) for s in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name, again = signal.Signals(number).name, self._asked and number != signal.SIGHUP
        self._asked = self._asked or number != signal.SIGHUP
        if self._requested:
            if not again:
                return
            if number == signal.SIGINT and _in_session():
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._requested = name
        ended = "training" if _in_session() else "the process"
        more = "once more" if self._asked else "SIGTERM twice"
        logging.warning("%s: finishing the iteration and writing a checkpoint; %s ends %s at once.", name, more, ended)
        if self._interruptible and not in_whole():
            self._interruptible = False
            raise Interrupted(name)


def _in_session() -> bool:
    """Whether the process is one in which somebody types: Python's own prompt, IPython's or a notebook."""
    return hasattr(sys, "ps1")
