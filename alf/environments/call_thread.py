"""Calls with a bounded wait, made in a thread that can be given up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class CallThread:
    """A daemon thread that runs one call after the other, so that the caller of one may stop waiting for it."""

    def __init__(self, name: str) -> None:
        """Starts the thread.

        Args:
          name: of the thread.
        """
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            function, reply = item
            try:
                reply.put((function(), None))
            except BaseException as error:
                reply.put((None, error))
            del item, function, reply  # A thread that waits holds on to nothing.

    def call(self, function: Callable[[], Any], timeout_secs: float | None) -> Any:
        """Runs `function` in the thread and returns what it returns.

        Args:
          function: called without arguments.
          timeout_secs: how long to wait; None without limit.

        Raises:
          TimeoutError: the call took longer. It goes on in the thread: `stop` this one and take another.
          BaseException: whatever `function` raised.
        """
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, reply))
        try:
            value, error = reply.get(timeout=timeout_secs)
        except queue.Empty:
            raise TimeoutError(f"The environment gave no answer within {timeout_secs} s.") from None
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        """Ends the thread as soon as the calls given to it have returned; does not wait for it."""
        self._calls.put(None)


def bounded_call(function: Callable[[], Any], timeout_secs: float, name: str) -> Any:
    """Runs `function` in a thread of its own; arguments and exceptions as `CallThread.call`."""
    thread = CallThread(name)
    try:
        return thread.call(function, timeout_secs)
    finally:
        thread.stop()
