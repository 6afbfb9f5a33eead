"""Keeps the workers busy that collect: they get weights and are asked for segments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from alf.distributed.engine import Engine
from alf.distributed.experience_channel import ExperienceChannel
from alf.distributed.keeper import Asked, Keeper, Limits
from alf.distributed.member import Member
from alf.distributed.policy_channel import PolicyChannel

_WORKER = "alf.distributed.worker:RolloutWorker"

# How long a worker waits for a segment before it answers with none.
_TAKE_SECS = 1.0


class RolloutKeeper(Keeper):
    """Has workers collect by the newest weights."""

    def __init__(
        self,
        engine: Engine,
        members: Sequence[Member],
        threads: int,
        channel: ExperienceChannel,
        policies: PolicyChannel,
        settings: dict[str, Any],
        limits: Limits,
    ) -> None:
        """Prepares; nothing is started.

        Args:
          engine: runs the workers.
          members: the workers, by number.
          threads: N, environment threads that each must have.
          channel: says what to ask, and takes the answers.
          policies: says which weights to send; the first are published before `start`.
          settings: arguments of `RolloutWorker`.
          limits: of their lives; the last of `max_failures` of one worker in a row with the same error ends the run.
        """
        super().__init__(engine, members, _WORKER, settings, limits)
        self._threads = threads
        self._channel = channel
        self._policies = policies

    def _look_around(self, now: float) -> None:
        self._check_one_has_begun(now, "WorkerPool")

    def _begin_args(self, member: Member) -> tuple[Any, ...]:
        published = self._policies.due(member.number)
        assert published is not None, "a new life holds no weights"
        return published.arguments(self._engine)

    def _begun(self, member: Member, facts: dict[str, Any]) -> None:
        if facts["threads"] != self._threads:
            raise ValueError(
                f"Worker {member.number} has {facts['threads']} environment threads and the learner expects "
                f"{self._threads}: both need the same configuration (num_envs)."
            )
        self._policies.arrived(member.number)

    def _ask(self, member: Member) -> None:
        published = self._policies.due(member.number) if self._channel.needs_loads else None
        if published is not None:
            self._call(member, "load", *published.arguments(self._engine))
        for request in self._channel.due(member.number):
            number, count = request.number, request.segments
            if request.policy is None:
                self._call(member, "take", number, count, _TAKE_SECS, number=number)
            else:
                weights = request.policy.arguments(self._engine)
                self._call(member, "collect", number, count, *weights, number=number)

    def _answered(self, asked: Asked, answer: Any) -> None:
        if asked.method == "load":
            self._policies.arrived(asked.member.number)
        else:
            self._channel.answered(asked.member.number, asked.number, answer)

    def _unanswered(self, asked: Asked) -> None:
        if asked.method == "load":
            self._policies.failed(asked.member.number)
        else:
            self._channel.unanswered(asked.member.number, asked.number)

    def _failed(self, member: Member, error: Exception) -> None:
        times = member.failed(error, time.monotonic())
        if times >= self._limits.max_failures:
            logging.error("Worker %d has failed %d times in a row with the same error.", member.number, times)
            raise error

    def _gone(self, member: Member) -> None:
        self._policies.forget(member.number)
        self._channel.lost(member.number)

    def _ended_by(self, error: BaseException) -> None:
        self._channel.close(error)
