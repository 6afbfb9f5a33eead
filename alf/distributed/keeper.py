"""Keeps workers alive: their lives and signs of life, and all calls to them, in one thread."""

from __future__ import annotations

import abc
import math
import numbers
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from absl import logging

from alf.distributed.engine import Call, Engine, WorkerLost
from alf.distributed.member import RUNNING, STARTING, UNREACHABLE, WAITING, Member
from alf.distributed.run_marks import RunMarks
from alf.utils.standstill import Standstill

# How often workers are asked for a sign of life, at most.
_BEAT_SECS = 2.0
# How long workers are given to end by themselves.
_END_SECS = 3.0
# Resources that Ray takes by names of their own only.
_KEPT_BY_RAY = ("CPU", "memory", "object_store_memory")
# Between two looks whether they have.
_ENDING_SECS = 5e-3


class Limits(NamedTuple):
    """What a worker may take and needs; see `WorkerPool`."""

    heartbeat_timeout_secs: float
    start_timeout_secs: float
    max_failures: int
    num_cpus: float
    resources: dict[str, float]


class Asked(NamedTuple):
    """A call that is out: to whom, what for, and the number of its request."""

    member: Member
    method: str
    number: int = -1


class Keeper(abc.ABC):
    """Starts workers, hears whether they live, and starts those anew that do not; what they are asked is up to subclasses.

    A worker is asked to `begin` once in a life, and for a `beat` every now and then; then come the calls of `_ask`.
    """

    # What the workers are called in the log, and the thread.
    _role: ClassVar[str] = "Worker"
    _thread_name: ClassVar[str] = "alf-pool"
    # How long the keeper waits for answers before it looks what else is to be done.
    _look_secs: ClassVar[float] = 5e-3

    def __init__(
        self, engine: Engine, members: Sequence[Member], worker: str, settings: dict[str, Any], limits: Limits
    ) -> None:
        """Prepares; nothing is started.

        Args:
          engine: runs the workers.
          members: the workers.
          worker: "module:attribute" of what makes them.
          settings: further arguments of that.
          limits: of their lives.
        """
        self._engine = engine
        self._members = members
        self._worker = worker
        self._settings = settings
        self._limits = limits
        self._marks = RunMarks()
        self._calls: dict[Call, Asked] = {}
        self._begun_at, self._awake = 0.0, Standstill()
        self._thread: threading.Thread | None = None

    # ---- what a subclass defines ----

    @abc.abstractmethod
    def _begin_args(self, member: Member) -> tuple[Any, ...]:
        """The arguments of a worker's `begin`."""

    @abc.abstractmethod
    def _ask(self, member: Member) -> None:
        """Sends a running worker what is due."""

    @abc.abstractmethod
    def _answered(self, asked: Asked, answer: Any) -> None:
        """Takes the answer to a call of `_ask`."""

    @abc.abstractmethod
    def _unanswered(self, asked: Asked) -> None:
        """A call of `_ask` got lost, and perhaps nothing but that."""

    @abc.abstractmethod
    def _failed(self, member: Member, error: Exception) -> None:
        """A worker's own code has raised; raises what is to end the keeper. The worker is lost."""

    @abc.abstractmethod
    def _gone(self, member: Member) -> None:
        """A worker is lost, with all that it was asked."""

    @abc.abstractmethod
    def _ended_by(self, error: BaseException) -> None:
        """The keeper ends by an error; called in its thread."""

    @abc.abstractmethod
    def _begun(self, member: Member, facts: dict[str, Any]) -> None:
        """A worker has begun, and tells of itself."""

    @abc.abstractmethod
    def _look_around(self, now: float) -> None:
        """Called between two looks for answers."""

    # ---- life ----

    def start(self) -> None:
        """Starts the thread, and so the workers.

        Raises:
          RuntimeError: it was started or stopped before.
        """
        if self._thread is not None or self._marks.finished is not None:
            raise RuntimeError("A pool of workers can be started only once: make a new one.")
        self._begun_at = time.monotonic()
        # Daemon: a thread that hangs in the engine must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name=self._thread_name, daemon=True)
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
                self._awake.look()
                for member in self._members:
                    self._tend(member, time.monotonic())
                self._look_around(time.monotonic())
                if not self._calls:
                    self._idle()
                for call in self._engine.wait(list(self._calls), self._look_secs):
                    # What was asked in a life that has ended meanwhile is no longer here.
                    if call in self._calls:
                        self._settle(call)
        except BaseException as e:  # whatever it is, the learner has to hear of it
            if self._marks.finished is None:
                self._ended_by(e)
        finally:
            self._end_all()

    def _idle(self) -> None:
        """Waits a little, with nothing to wait for."""
        time.sleep(self._look_secs)

    def _check_one_has_begun(self, now: float, owner: str) -> None:
        """Raises RuntimeError when no worker ever began within the limit, which `owner` has in gin."""
        waited = self._awake.secs_since(self._begun_at, now)
        late = not self._marks.ready and waited > self._limits.start_timeout_secs
        if late and not any(self._is_answered(member, "begin") for member in self._members):
            raise RuntimeError(
                f"None of the {len(self._members)} workers has begun within {self._limits.start_timeout_secs:g} s "
                f"({owner}.start_timeout_secs), on {self._engine.describe()}: {describe(self._members)}. Look whether "
                f"there are {self._needs(owner)}, or give them more time."
            )

    def _needs(self, owner: str) -> str:
        """What a worker waits for where there is none of it, and the settings that ask for it."""
        processors = f"{self._limits.num_cpus:g} free processors"
        if not self._limits.resources:
            return f"{processors} for each ({owner}.num_cpus)"
        further = ", ".join(f"{amount:g} {name}" for name, amount in self._limits.resources.items())
        return f"{processors} and {further} for each ({owner}.num_cpus and .resources)"

    def _tend(self, member: Member, now: float) -> None:
        if member.state == WAITING and now >= member.restart_at:
            self._begin(member, now)
        elif member.state == STARTING and self._awake.secs_since(member.since, now) > self._limits.start_timeout_secs:
            if not self._is_answered(member, "begin"):
                self._lose(member, f"it has not begun within {self._limits.start_timeout_secs:g} s")
        elif member.state == RUNNING:
            self._ask(member)
        if member.alive:
            self._watch(member, now)

    def _begin(self, member: Member, now: float) -> None:
        member.life += 1
        worker = self._engine.start(
            member.number, member.life, self._worker, self._settings, self._limits.num_cpus, self._limits.resources
        )
        member.begin(worker, now)
        self._call(member, "begin", *self._begin_args(member))

    def _watch(self, member: Member, now: float) -> None:
        """Asks for signs of life, and gives up a worker that gives none."""
        assert member.heard_at is not None
        often = min(_BEAT_SECS, self._limits.heartbeat_timeout_secs / 4)
        if member.beat_at is None and (member.state == UNREACHABLE or now - member.heard_at >= often):
            member.beat_at = now
            self._call(member, "beat")
            return
        late = member.beat_at is not None and now - member.beat_at > self._limits.heartbeat_timeout_secs
        if late and not self._is_answered(member, "beat"):
            self._lose(member, f"it has given no sign of life for {now - member.heard_at:.0f} s")

    def _is_answered(self, member: Member, method: str) -> bool:
        """Whether an answer lies there, and it is the keeper that was held up: by a Ctrl-Z, or a fetch that hung."""
        calls = [call for call, asked in self._calls.items() if asked.member is member and asked.method == method]
        return bool(self._engine.wait(calls, 0.0))

    def _call(self, member: Member, method: str, *args: Any, number: int = -1) -> None:
        call = self._engine.call(member.worker, method, *args)
        self._calls[call] = Asked(member, method, number)

    def _settle(self, call: Call) -> None:
        asked = self._calls.pop(call)
        member = asked.member
        try:
            self._take_in(asked, self._engine.result(call))
        except WorkerLost as e:
            self._on_lost(asked, str(e) or "it is gone")
        except Exception as e:
            self._failed(member, e)
            self._lose(member, f"{type(e).__name__}: {e}")

    def _take_in(self, asked: Asked, answer: Any) -> None:
        member = asked.member
        if asked.method == "begin":
            self._begun(member, answer)
            member.up(answer, time.monotonic())
            self._marks.signal_ready()
            logging.info("%s %d is up on %s, process %d.", self._role, member.number, answer["host"], answer["pid"])
        elif asked.method == "beat":
            member.heard(answer, time.monotonic())
        else:
            member.answered(asked.method)
            self._answered(asked, answer)

    def _on_lost(self, asked: Asked, why: str) -> None:
        """A worker that still gives a sign of life is asked again, for some time; any other is given up."""
        if asked.method in ("begin", "beat"):
            self._lose(asked.member, why)
            return
        self._unanswered(asked)
        lost_for = asked.member.doubt(asked.method, time.monotonic())
        # Whatever signs of life it gives: its answers may be larger than what lies between.
        if lost_for > self._limits.heartbeat_timeout_secs:
            self._lose(asked.member, f"for {lost_for:.0f} s all its answers to {asked.method!r} got lost: {why}")

    def _lose(self, member: Member, why: str) -> None:
        why = why.rstrip(".")
        self._engine.kill(member.worker)
        self._calls = {call: asked for call, asked in self._calls.items() if asked.member is not member}
        self._gone(member)
        now = time.monotonic()
        member.lose(why, now)
        logging.warning(
            "%s %d is lost (life %d): %s. It starts again in %.1f s.",
            self._role,
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
            done = self._engine.wait(calls, _ENDING_SECS)
            calls = [call for call in calls if call not in done]


def check_positive(owner: Any, **sizes: float) -> None:
    """Raises ValueError for the first of the arguments of `owner` that is not above 0, or no whole number and not of seconds."""
    for name, size in sizes.items():
        seconds = name.endswith("_secs")
        if not isinstance(size, numbers.Real if seconds else numbers.Integral) or not size > 0:
            whole = "" if seconds else " and whole"
            raise ValueError(f"{type(owner).__name__}.{name} must be positive{whole}, got {size!r}.")


def check_needs(owner: Any, num_cpus: float, resources: Mapping[str, float] | None) -> None:
    """Raises ValueError where `num_cpus` or `resources` of `owner` are nothing that Ray gives a worker."""
    name = type(owner).__name__
    if not isinstance(num_cpus, numbers.Real) or not 0 <= float(num_cpus) < math.inf:
        raise ValueError(f"{name}.num_cpus={num_cpus!r} must be a number of processors, 0 or more.")
    for resource, amount in (resources or {}).items():
        if resource in _KEPT_BY_RAY:
            raise ValueError(
                f"{name}.resources={resources} asks for {resource!r}, which is none that it may: processors are "
                f"{name}.num_cpus, and others those that `ray start --resources` was given, or 'GPU'."
            )
        if not isinstance(resource, str) or not isinstance(amount, numbers.Real) or not 0 <= float(amount) < math.inf:
            raise ValueError(f"{name}.resources={resources} must be of names and numbers, 0 or more.")


def totals(members: Sequence[Member]) -> dict[str, float]:
    """Scalars for displays: workers alive and lost, steps and their rate."""
    return {
        "workers": float(len(members)),
        "workers_alive": float(sum(m.alive for m in members)),
        "worker_restarts": float(sum(m.restarts for m in members)),
        "workers_env_steps": float(sum(m.steps for m in members)),
        "workers_steps_per_sec": sum(m.steps_per_sec for m in members),
    }


def describe(members: Sequence[Member]) -> str:
    """Where each worker stands."""
    now = time.monotonic()
    return ", ".join(member.describe(now) for member in members)
