"""Child processes that end when their parent does, even when that is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

# Of Linux' prctl: the signal that the calling process gets when the thread that made it ends.
_PR_SET_PDEATHSIG = 1

# At which a training run finishes its iteration and saves first. Unlike SIGTERM it may come again, or beside another signal:
# what ends the parent often tells the child as well, and a second SIGTERM would end it before it has saved.
ENDING = signal.SIGHUP


def ended_with_parent() -> Callable[[], None]:
    """What a child runs before its program, as `preexec_fn` of `subprocess.Popen`, to be ended with its parent.

    The kernel sends `ENDING`; nothing the parent does or fails to do can keep it back. The child hears it under nohup too,
    so it needs a session of its own, to which no terminal sends it. The thread that makes the child must be one that lives
    as long as the parent, such as the main thread.
    """
    # Looked up here: between fork and exec, only the plainest calls are safe.
    prctl, parent, get_parent, end, own = ctypes.CDLL(None).prctl, os.getpid(), os.getppid, os.kill, os.getpid

    def ask() -> None:
        signal.signal(ENDING, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(ENDING), 0, 0, 0)
        # It may have ended before it was asked for.
        if get_parent() != parent:
            end(own(), signal.SIGKILL)

    return ask
