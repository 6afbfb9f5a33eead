"""Stretches of a thread that no signal leaves half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# What may end a run.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Depth(threading.local):
    """How many stretches the present thread is in."""

    whole = 0
    holding = 0


_depth = _Depth()


class _HeldUp:
    """Signals that wait."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._waiting: list[tuple[int, FrameType | None]] = []
        self._over = False

    def begin(self) -> None:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):  # of Python: no other one can raise
                self._handlers[number] = handler
                signal.signal(number, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        # Who asks twice does not want to wait; SIGHUP comes by itself, twice from a terminal, or beside SIGTERM.
        again = number != signal.SIGHUP and any(before != signal.SIGHUP for before, _ in self._waiting)
        self._waiting.append((number, frame))
        if self._over or again:
            self._hand_on()

    def end(self) -> None:
        """Puts the handlers back and calls those whose signals have waited."""
        self._over = True  # a signal that comes now may leave the loop, and what is left in place then holds nothing up
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._hold:
                signal.signal(number, handler)
        self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            number, frame = self._waiting.pop(0)
            try:
                self._handlers[number](number, frame)
            finally:
                self._hand_on()


@contextlib.contextmanager
def held_up() -> Iterator[None]:
    """Around what must not be left half done: SIGINT, SIGTERM and SIGHUP are handled at its end, as if they came then.

    A second one is not held up, of those beside SIGHUP.
    """
    outer, signals = _depth.holding, _HeldUp()
    try:
        _depth.holding = outer + 1
        if not outer and threading.current_thread() is threading.main_thread():  # which alone handles them
            signals.begin()
        yield
    finally:
        _depth.holding = outer
        signals.end()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """As `held_up`, around what is to be returned from afterwards, such as storing a batch: `StopSignals` raises nothing."""
    outer = _depth.whole
    try:
        _depth.whole = outer + 1
        with held_up():
            yield
    finally:
        _depth.whole = outer


def in_whole() -> bool:
    """Whether the present thread is in a stretch that is `whole`."""
    return _depth.whole > 0
