"""What a run has come to, for those who take part in it: ready, and finished."""

from __future__ import annotations

import threading


class RunMarks:
    """The marks of one run; may be used from any thread.

    They live in the memory of the processes of the run and nowhere else: nobody ever meets those of an earlier run.
    """

    def __init__(self) -> None:
        """Creates marks of which none is set."""
        self._changed = threading.Condition()
        self._ready = False
        self._finished: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the run takes what is collected."""
        return self._ready

    @property
    def finished(self) -> str | None:
        """Why the run is over; None while it is not."""
        return self._finished

    def signal_ready(self) -> None:
        """Says that the run takes what is collected from now on."""
        with self._changed:
            self._ready = True
            self._changed.notify_all()

    def signal_finished(self, why: str) -> None:
        """Says that the run is over; the first reason stays."""
        with self._changed:
            self._finished = self._finished or why
            self._changed.notify_all()

    def wait_ready(self, timeout: float, who: str) -> None:
        """Returns once the run is ready.

        Args:
          timeout: in seconds.
          who: waits, for the message.

        Raises:
          TimeoutError: it is not within `timeout`.
          RuntimeError: the run is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished is not None, timeout)
            if self._finished is not None:
                raise RuntimeError(f"{who} is of no use any more: {self._finished}.")
            if not self._ready:
                raise TimeoutError(
                    f"{who} has waited {timeout:g} s for a learner that takes its segments: look into the learner's log, "
                    "and whether this machine reaches it."
                )
