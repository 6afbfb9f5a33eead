"""Keeps workers alive and busy: all calls to them, in one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import logging

from alf.distributed.engine import Call, Engine, WorkerLost
from alf.distributed.experience_channel import ExperienceChannel
from alf.distributed.member import RUNNING, STARTING, UNREACHABLE, WAITING, Member
from alf.distributed.policy_channel import PolicyChannel
from alf.distributed.run_marks import RunMarks

_WORKER = "alf.distributed.worker:RolloutWorker"

# How long the keeper waits for answers before it looks what else is to be done.
_LOOK_SECS = 5e-3
# How long a worker waits for a segment before it answers with none.
_TAKE_SECS = 1.0
# How often workers are asked for a sign of life, at most.
_BEAT_SECS = 2.0
# How long workers are given to end by themselves.
_END_SECS = 3.0


class Limits(NamedTuple):
    """What a worker may take and needs; see `WorkerPool`."""

    heartbeat_timeout_secs: float
    start_timeout_secs: float
    max_failures: int
    num_cpus: float
    resources: dict[str, float]


class _Asked(NamedTuple):
    """A call that is out: to whom, what for, and the number of its request."""

    member: Member
    method: str
    number: int = -1


class Keeper:
    """Starts workers, asks them what is due, hears whether they live, and starts those anew that do not."""

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
          limits: of their lives.
        """
        self._engine = engine
        self._members = members
        self._threads = threads
        self._channel = channel
        self._policies = policies
        self._settings = settings
        self._limits = limits
        self._marks = RunMarks()
        self._begun_at = 0.0
        self._calls: dict[Call, _Asked] = {}
        self._thread: threading.Thread | None = None
        self._answers: dict[str, Callable[[_Asked, Any], None]] = {
            "begin": self._began,
            "load": lambda asked, _: self._policies.arrived(asked.member.number),
            "beat": lambda asked, beat: asked.member.heard(beat, time.monotonic()),
            "take": self._answered,
            "collect": self._answered,
        }

    def start(self) -> None:
        """Starts the thread, and so the workers.

        Raises:
          RuntimeError: it was started or stopped before.
        """
        if self._thread is not None or self._marks.finished is not None:
            raise RuntimeError("A pool of workers can be started only once: make a new one.")
        self._begun_at = time.monotonic()
        # Daemon: a thread that hangs in the engine must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="alf-pool", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends all workers in bounded time; any number of times, from any thread."""
        self._marks.signal_finished("the pool was stopped")
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * _END_SECS)
            if thread.is_alive():
                logging.warning("%s has not ended and is left behind: a call of the engine hangs.", thread.name)

    def _run(self) -> None:
        try:
            while self._marks.finished is None:
                for member in self._members:
                    self._tend(member, time.monotonic())
                if not self._calls:
                    time.sleep(_LOOK_SECS)
                for call in self._engine.wait(list(self._calls), _LOOK_SECS):
                    # What was asked in a life that has ended meanwhile is no longer here.
                    if call in self._calls:
                        self._settle(call)
        except BaseException as e:  # whatever it is, the learner has to hear of it
            if self._marks.finished is None:
                self._channel.close(e)
        finally:
            self._end_all()

    def _tend(self, member: Member, now: float) -> None:
        if member.state == WAITING and now >= member.restart_at:
            self._begin(member, now)
        elif member.state == STARTING and now - member.since > self._limits.start_timeout_secs:
            self._lose(member, f"it has not begun within {self._limits.start_timeout_secs:g} s")
        elif member.state == RUNNING:
            self._ask(member)
        if member.alive:
            self._watch(member, now)
        if not self._marks.ready and now - self._begun_at > self._limits.start_timeout_secs:
            raise RuntimeError(
                f"None of the {len(self._members)} workers has begun within {self._limits.start_timeout_secs:g} s "
                f"(WorkerPool.start_timeout_secs), on {self._engine.describe()}: {describe(self._members)}. Look whether "
                f"there are {self._limits.num_cpus:g} free processors for each (WorkerPool.num_cpus), or give them more time."
            )

    def _begin(self, member: Member, now: float) -> None:
        member.life += 1
        worker = self._engine.start(
            member.number, member.life, _WORKER, self._settings, self._limits.num_cpus, self._limits.resources
        )
        member.begin(worker, now)
        self._send_weights(member, "begin")

    def _send_weights(self, member: Member, method: str) -> None:
        published = self._policies.due(member.number)
        if published is not None:
            self._call(member, method, *published.arguments(self._engine))

    def _ask(self, member: Member) -> None:
        if self._channel.needs_loads:
            self._send_weights(member, "load")
        for request in self._channel.due(member.number):
            number, count = request.number, request.segments
            if request.policy is None:
                self._call(member, "take", number, count, _TAKE_SECS, number=number)
            else:
                weights = request.policy.arguments(self._engine)
                self._call(member, "collect", number, count, *weights, number=number)

    def _watch(self, member: Member, now: float) -> None:
        """Asks for signs of life, and gives up a worker that gives none."""
        assert member.heard_at is not None
        often = min(_BEAT_SECS, self._limits.heartbeat_timeout_secs / 4)
        if member.beat_at is None and (member.state == UNREACHABLE or now - member.heard_at >= often):
            member.beat_at = now
            self._call(member, "beat")
        elif member.beat_at is not None and now - member.beat_at > self._limits.heartbeat_timeout_secs:
            self._lose(member, f"it has given no sign of life for {now - member.heard_at:.0f} s")

    def _call(self, member: Member, method: str, *args: Any, number: int = -1) -> None:
        call = self._engine.call(member.worker, method, *args)
        self._calls[call] = _Asked(member, method, number)

    def _settle(self, call: Call) -> None:
        asked = self._calls.pop(call)
        member = asked.member
        try:
            self._answers[asked.method](asked, self._engine.result(call))
        except WorkerLost as e:
            self._on_lost(asked, str(e) or "it is gone")
        except Exception as e:
            times = member.failed(e, time.monotonic())
            if times >= self._limits.max_failures:
                logging.error("Worker %d has failed %d times in a row with the same error.", member.number, times)
                raise
            self._lose(member, f"{type(e).__name__}: {e}")

    def _on_lost(self, asked: _Asked, why: str) -> None:
        """A worker that still gives a sign of life is asked again what it was asked; any other is given up."""
        member = asked.member
        if asked.method in ("begin", "beat"):
            self._lose(member, why)
            return
        if asked.method == "load":
            self._policies.failed(member.number)
        else:
            self._channel.unanswered(member.number, asked.number)
        member.doubt(time.monotonic())

    def _began(self, asked: _Asked, facts: dict[str, Any]) -> None:
        member = asked.member
        if facts["threads"] != self._threads:
            raise ValueError(
                f"Worker {member.number} has {facts['threads']} environment threads and the learner expects "
                f"{self._threads}: both need the same configuration (num_envs)."
            )
        self._policies.arrived(member.number)
        member.up(facts, time.monotonic())
        self._marks.signal_ready()
        logging.info("Worker %d is up on %s, process %d.", member.number, facts["host"], facts["pid"])

    def _answered(self, asked: _Asked, answer: Any) -> None:
        self._channel.answered(asked.member.number, asked.number, answer)

    def _lose(self, member: Member, why: str) -> None:
        why = why.rstrip(".")
        self._engine.kill(member.worker)
        self._calls = {call: asked for call, asked in self._calls.items() if asked.member is not member}
        self._policies.forget(member.number)
        self._channel.lost(member.number)
        now = time.monotonic()
        member.lose(why, now)
        logging.warning(
            "Worker %d is lost (life %d): %s. It starts again in %.1f s.",
            member.number,
            member.life,
            why,
            member.restart_at - now,
        )

    def _end_all(self) -> None:
        there = [member for member in self._members if member.worker is not None]
        try:
            self._ask_to_end(there)
        except Exception as e:
            logging.warning("Workers could not be asked to end (%s: %s): they are killed.", type(e).__name__, e)
        for member in there:
            self._engine.kill(member.worker)
            member.stop(time.monotonic())

    def _ask_to_end(self, members: Sequence[Member]) -> None:
        deadline = time.monotonic() + _END_SECS
        calls = [self._engine.call(member.worker, "end") for member in members]
        while calls and time.monotonic() < deadline:
            done = self._engine.wait(calls, _LOOK_SECS)
            calls = [call for call in calls if call not in done]


def describe(members: Sequence[Member]) -> str:
    """Where each worker stands."""
    now = time.monotonic()
    return ", ".join(member.describe(now) for member in members)
