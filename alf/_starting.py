"""What Ctrl-C does while a command starts, when most of the time goes into imports.

Imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType


def command() -> str:
    """The module that `python -m` is looking for at the moment, "" when nothing of the kind goes on."""
    given = sys.orig_argv
    # While `python -m` looks for its module, sys.argv begins with "-m".
    return given[given.index("-m") + 1] if sys.argv[:1] == ["-m"] and "-m" in given else ""


def end_at_once_by_interrupt() -> None:
    """Until `started` is called, SIGINT ends the process at once and with one line.

    KeyboardInterrupt would come out of the middle of some library, as a long traceback, or be lost there.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _End())


def started() -> None:
    """Gives SIGINT its usual meaning back, KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _End):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handler.close()


class _End:
    """The handler; writes to what is standard error now, which imports redirect for a while."""

    def __init__(self) -> None:
        try:
            self._stderr = os.dup(2)
        except OSError:  # no stderr
            self._stderr = os.open(os.devnull, os.O_WRONLY)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        os.write(self._stderr, b"Interrupted while starting.\n")
        # Ended by the signal, as the caller expects: a shell sees exit code 130, and a loop of commands ends too.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def close(self) -> None:
        os.close(self._stderr)
