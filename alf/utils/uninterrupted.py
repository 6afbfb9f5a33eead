"""Stretches of a thread that no signal leaves half done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Depth(threading.local):
    """How many stretches the present thread is in."""

    value = 0


_depth = _Depth()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Around what must be done as a whole, such as storing a batch: `StopSignals` raises nothing in it."""
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1


def in_whole() -> bool:
    """Whether the present thread is in such a stretch."""
    return _depth.value > 0
