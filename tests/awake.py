"""A clock for limits of time in tests: it stands still while the machine does.

A virtual machine may be stopped for half a minute. What had been given five seconds is then late by any other clock.
"""

from __future__ import annotations

import functools
import threading
import time

_TICK_SECS = 0.05
# What one tick may count: more than a busy machine makes of it, and little beside any limit.
_LONGEST_TICK_SECS = 0.5


class _Clock:
    def __init__(self) -> None:
        self.secs = 0.0
        threading.Thread(target=self._tick, name="awake", daemon=True).start()

    def _tick(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(_TICK_SECS)
            now = time.monotonic()
            self.secs += min(now - before, _LONGEST_TICK_SECS)
            before = now


@functools.cache
def _clock() -> _Clock:
    return _Clock()


def awake_secs() -> float:
    """Seconds that this process was able to run, from any beginning; only differences mean something."""
    return _clock().secs
