"""How the threads of a driver stop together, and how their first error gets out."""

from __future__ import annotations

import threading
from collections.abc import Callable

from alf.utils.standstill import Standstill


class Coordinator:
    """The stop token of a set of threads, and the first exception any of them raised."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may stop the driver while the same thread is in here.
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._exception: BaseException | None = None
        self._on_stop: list[Callable[[], None]] = []
        self._awake = Standstill()

    @property
    def awake(self) -> Standstill:
        """The clock of those who wait for a thread; the learner looks at it."""
        return self._awake

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Has `wake` called once the stop is requested, to wake whoever waits somewhere."""
        self._on_stop.append(wake)

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    def request_stop(self, exception: BaseException | None = None) -> bool:
        """Asks all threads to end; the first exception given before any stop request is kept.

        What threads raise after a stop was requested is fallout of the stop and is not kept.

        Returns:
          whether this was the first request.
        """
        with self._lock:
            if self._stop.is_set():
                return False
            self._exception = exception
            self._stop.set()
        for wake in self._on_stop:
            wake()
        return True

    def keep(self, exception: BaseException) -> None:
        """Keeps an exception of what still runs after a stop, if there is none yet."""
        with self._lock:
            if self._exception is None:
                self._exception = exception

    @property
    def exception(self) -> BaseException | None:
        """The exception that ended the threads, if one did."""
        return self._exception

    def raise_if_failed(self) -> None:
        """Raises the kept exception, with its own traceback."""
        if self._exception is not None:
            raise self._exception

    def wait(self, timeout: float) -> bool:
        """Waits until a stop is requested, at most `timeout` seconds; returns whether it was."""
        return self._stop.wait(timeout)
