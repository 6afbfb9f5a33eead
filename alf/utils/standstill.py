"""Limits of waiting in a process that somebody may stop for longer than any limit: Ctrl-Z, or a scheduler that suspends it."""

from __future__ import annotations

import math
import time

# Far longer than from one look to the next, and far shorter than the limits that are looked at.
_LONGEST_GAP_SECS = 10.0


class Standstill:
    """A clock for limits, which begins anew where the process stood still.

    The system's goes on meanwhile, so that all that was awaited when the process was stopped has taken too long when it goes
    on. Who waits looks again and again; a long gap between two looks is one in which nothing ran.
    """

    def __init__(self) -> None:
        self._over, self._looked = -math.inf, time.monotonic()

    def begin(self) -> float:
        """Before the first look of a wait; the present moment, in seconds of `time.monotonic`."""
        self._looked = time.monotonic()
        return self._looked

    def look(self) -> None:
        """One look of a wait."""
        now = time.monotonic()
        if now - self._looked > _LONGEST_GAP_SECS:
            self._over = now
        self._looked = now

    def secs_since(self, moment: float, now: float | None = None) -> float:
        """Seconds from a moment of `time.monotonic`, or from when the process went on if that is later, until now."""
        return (time.monotonic() if now is None else now) - max(moment, self._over)
