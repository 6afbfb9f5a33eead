"""Child processes that end when their parent does, even when that is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

# Of Linux' prctl: the signal that the calling process gets when the thread that made it ends.
_PR_SET_PDEATHSIG = 1


def ended_with_parent() -> Callable[[], None]:
    """What a child runs before its program, as `preexec_fn` of `subprocess.Popen`, to be ended with its parent.

    The kernel sends SIGTERM, at which a training run finishes its iteration and saves first; nothing the parent does or
    fails to do can keep it back. The thread that makes the child must be one that lives as long as the parent, such as
    the main thread.
    """
    # Looked up here: between fork and exec, only the plainest calls are safe.
    prctl, parent, get_parent, end, own = ctypes.CDLL(None).prctl, os.getpid(), os.getppid, os.kill, os.getpid

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
        # It may have ended before it was asked for.
        if get_parent() != parent:
            end(own(), signal.SIGKILL)

    return ask
