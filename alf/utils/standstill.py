"""Limits of waiting in a process that somebody may stop for longer than any limit: Ctrl-Z, or a scheduler that suspends it."""

from __future__ import annotations

import math
import time

# Far longer than from one look of who waits to the next, and far shorter than the limits that are looked at.
_LONGEST_GAP_SECS = 10.0
# A process that trains for long between two looks is busy for more than that share of it, and a stopped one is not.
_IDLE_SHARE = 0.05


class Standstill:
    """A clock for limits, which begins anew where the process stood still.

    The system's goes on meanwhile, so that all that was awaited when the process was stopped has taken too long when it goes
    on. Who waits looks again and again; a long gap between two looks in which the process did nothing is a standstill.
    """

    def __init__(self) -> None:
        self._over, self._looked, self._worked = -math.inf, time.monotonic(), time.process_time()

    def look(self) -> float:
        """One look of somebody who waits; the present moment, in seconds of `time.monotonic`."""
        now, worked = time.monotonic(), time.process_time()
        gap = now - self._looked
        if gap > _LONGEST_GAP_SECS and worked - self._worked < _IDLE_SHARE * gap:
            self._over = now
        self._looked, self._worked = now, worked
        return now

    def secs_since(self, moment: float, now: float | None = None) -> float:
        """Seconds from a moment, or from when the process went on if that is later, until now; a look."""
        looked = self.look()  # which sees a stop up to this moment, and none can come between
        return (looked if now is None else now) - max(moment, self._over)
