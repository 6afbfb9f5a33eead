"""Whether an environment hands out arrays that it writes to again."""

from __future__ import annotations

from typing import Any

import numpy as np

# Arrays that are used in turn, this many less one at most, are noticed while copies are made anyway.
_WATCHED = 8


class ReuseWatch:
    """Says of the arrays of each time step whether to copy them, since their environment may write to them again.

    Environments of `alf` hand out fresh arrays. One of a user may hand out the same ones at every step, or a few in turn,
    which is seen when their memory comes again: until that is unlikely all are to be copied, and from then on where it was
    seen. The arrays of the first time step, a reset, and of the last one are looked for ever after.
    """

    def __init__(self) -> None:
        """Starts with an environment that has handed out nothing."""
        self._reused = False
        self._steps = 0
        self._kept: list[list[Any]] = []

    def __call__(self, arrays: list[Any]) -> bool:
        """Whether to copy what the next time step has brought.

        Args:
          arrays: its arrays, of any shapes and dtypes, in the same order at each time step; kept by reference.
        """
        if self._reused:
            return True
        for earlier in self._kept:
            if any(map(np.may_share_memory, arrays, earlier)):
                self._reused, self._kept = True, []
                return True
        self._steps += 1
        if self._steps <= _WATCHED:
            self._kept.append(arrays)
            return True
        self._kept = [self._kept[0], arrays]
        return False
