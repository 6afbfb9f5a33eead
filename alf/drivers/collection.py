"""What the learner's side of the asynchronous driver asks of those who collect."""

from __future__ import annotations

from typing import Protocol

from alf.drivers.policy_store import Snapshot
from alf.drivers.threads import DriverThread
from alf.metrics.time_shares import Timings


class EnvironmentHost(Protocol):
    """Other processes that step the environments of a driver, which ask them."""

    def wake(self) -> None:
        """Called when the driver stops: environments that wait for their process raise QueueClosed from then on."""

    def stats(self) -> dict[str, float]:
        """Scalars for displays."""

    def describe(self) -> str:
        """A sentence on who steps, without a full stop."""

    def who_is_waited_for(self) -> str:
        """Who has not answered, for the message of a learner that has waited too long."""


class Collection(Protocol):
    """Fills the learn queue: with environments of this process (`LocalCollection`) or elsewhere (`RemoteCollection`)."""

    def make_threads(self) -> list[DriverThread]:
        """Everything traced, and the threads, which do not run yet; the first weights are published."""

    def published(self, snapshot: Snapshot) -> None:
        """Called when the learner has published newer weights."""

    def request_batch(self) -> None:
        """Called once before the learner waits for a batch."""

    def act_at_random(self, at_random: bool) -> None:
        """Has segments that begin from now on act at random, or by the policy again."""

    def close(self) -> None:
        """Frees what no thread has begun to use, once all threads have ended or were left behind."""

    def stats(self) -> dict[str, float]:
        """Scalars about collecting."""

    def timings(self) -> Timings:
        """What the time of all environment threads went to so far; the learner's is none of its."""

    def who_is_busy(self) -> list[str]:
        """Whoever else than a thread of this process the learner may wait for."""

    def describe(self) -> str:
        """How it acts and steps, and why."""
