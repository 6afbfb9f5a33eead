"""Keeps the workers alive that step environments, and carries the calls of those who act in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from alf.distributed.engine import Engine, Worker, WorkerLost
from alf.distributed.keeper import Asked, Keeper, Limits
from alf.distributed.member import Member
from alf.distributed.plain_specs import Layout, layout_from
from alf.drivers.queues import QueueClosed

_WORKER = "alf.distributed.environment_worker:EnvironmentWorker"

# How long a thread waits for an answer before it looks whether the run stops.
_WAIT_SECS = 0.25


class Life(NamedTuple):
    """A life of a worker that has begun: its `number`, and the engine's handle."""

    number: int
    worker: Worker


class EnvironmentKeeper(Keeper):
    """Has workers make their environments, and has those known that have; environment threads call them directly.

    A call without an answer is the end of its worker: whether the step was taken is not known.

    Attributes:
      lost_calls: int64 [W], calls of environment threads to which no answer came.
      used_bindings: of gin, by which the first worker has made its environments; see `gin_utils.used_bindings`.
    """

    _thread_name = "alf-environments"
    _look_secs = 0.05

    def __init__(
        self,
        engine: Engine,
        members: Sequence[Member],
        num_envs: int,
        settings: dict[str, Any],
        limits: Limits,
    ) -> None:
        """Prepares; nothing is started.

        Args:
          engine: runs the workers.
          members: the workers, by number.
          num_envs: N, environments that each must have.
          settings: arguments of `EnvironmentWorker`.
          limits: of their lives; the last of `max_failures` of one worker in a row to make its environments again ends
            the run.
        """
        super().__init__(engine, members, _WORKER, settings, limits)
        self._num_envs = num_envs
        self._changed = threading.Condition()
        self._stopping = False
        self._error: BaseException | None = None
        self._lives: dict[int, Life] = {}
        self._lost: list[tuple[int, int, str]] = []
        self._layout: Layout | None = None
        self.lost_calls = np.zeros(len(members), np.int64)
        self.used_bindings: list[tuple[str, str, str]] = []

    # ---- for those who act ----

    def layout(self) -> Layout:
        """What the environments are like, once a worker has begun; raises as `connect`."""
        with self._changed:
            while self._layout is None:
                self._wait()
            return self._layout

    def connect(self, number: int) -> Life:
        """The present life of a worker, waited for while it has none, however long that takes.

        Raises:
          QueueClosed: the keeper stops.
          Exception: what has ended it.
        """
        with self._changed:
            while number not in self._lives:
                self._wait()
            return self._lives[number]

    def _wait(self) -> None:
        self._check()
        self._changed.wait(_WAIT_SECS)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._stopping:
            raise QueueClosed("environments of workers")

    def call(self, number: int, life: Life, method: str, *args: Any) -> Any:
        """What a method of a worker returns, however long it takes.

        Args:
          number: of the worker.
          life: from `connect`.
          method: of `EnvironmentWorker`.
          args: its arguments.

        Raises:
          WorkerLost: the life is over.
          QueueClosed: the keeper stops.
          Exception: what the method has raised, or what has ended the keeper.
        """
        self._check()
        sent = self._engine.call(life.worker, method, *args)
        while not self._engine.wait([sent], _WAIT_SECS):
            self._check()
        try:
            return self._engine.result(sent)
        except Exception as e:
            # A worker that is being ended may fail in any way.
            self._check()
            if isinstance(e, WorkerLost):
                self._report(number, life, str(e) or "it is gone")
            raise

    def _report(self, number: int, life: Life, why: str) -> None:
        with self._changed:
            self.lost_calls[number] += 1
            if self._lives.get(number) is life:
                del self._lives[number]
                self._lost.append((number, life.number, why))
                self._changed.notify_all()

    def wake(self) -> None:
        """Ends all waiting of those who act, for good."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    # ---- the keeper's side ----

    def stop(self) -> None:
        self.wake()
        super().stop()

    def _idle(self) -> None:
        with self._changed:
            if not self._lost:
                self._changed.wait(self._look_secs)

    def _look_around(self, now: float) -> None:
        with self._changed:
            lost, self._lost = self._lost, []
        for number, life, why in lost:
            member = self._members[number]
            if member.life == life and member.worker is not None:
                self._lose(member, why)
        self._check_one_has_begun(now, "EnvironmentPool")

    def _begin_args(self, member: Member) -> tuple[Any, ...]:
        return ()

    def _begun(self, member: Member, facts: dict[str, Any]) -> None:
        if facts["environments"] != self._num_envs:
            raise ValueError(
                f"Worker {member.number} has {facts['environments']} environments and the learner expects {self._num_envs}: "
                "both need the same configuration (num_envs)."
            )
        layout = layout_from(facts["layout"])
        with self._changed:
            if self._layout is not None and layout != self._layout:
                raise ValueError(
                    f"Worker {member.number} has environments of another kind than the first one, {layout} instead of "
                    f"{self._layout}: give all machines the same versions and files."
                )
            if self._layout is None:
                self._layout, self.used_bindings = layout, facts["used_bindings"]
            self._lives[member.number] = Life(member.life, member.worker)
            self._changed.notify_all()

    def _ask(self, member: Member) -> None:
        """Nothing: those who act do."""

    def _answered(self, asked: Asked, answer: Any) -> None:
        """Nothing was asked."""

    def _unanswered(self, asked: Asked) -> None:
        """Nothing was asked."""

    def _failed(self, member: Member, error: Exception) -> None:
        times = member.failed(error, time.monotonic())
        if member.life == 0 or times >= self._limits.max_failures:
            logging.error("Worker %d cannot make its environments.", member.number)
            raise error

    def _gone(self, member: Member) -> None:
        with self._changed:
            self._lives.pop(member.number, None)

    def _ended_by(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
