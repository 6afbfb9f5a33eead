"""What the learner knows of one of its workers, over all of its lives."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from alf.distributed.engine import Worker
from alf.metrics.time_shares import Timings

WAITING, STARTING, RUNNING, UNREACHABLE, STOPPED = (
    "waiting to restart",
    "starting",
    "running",
    "unreachable",
    "stopped",
)

FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 1.0, 30.0
_JITTER = 0.2
# A life this long was a good one: what happened before is forgiven.
GOOD_LIFE_SECS = 300.0


class Member:
    """One worker: its present life, the pauses between its lives, and what it has told of itself.

    All times are in seconds of one clock.

    Attributes:
      number: of the worker.
      state: "waiting to restart", "starting", "running", "unreachable" (a call was lost, a sign of life is waited for)
        or "stopped".
      life: number of the present life, or of the last; -1 before the first.
      worker: the engine's handle; None while there is no life.
      since: when the state began.
      restart_at: when the next life may begin, in state "waiting to restart".
      restarts: lives that were lost.
      last_error: why the last life ended; empty while none has.
      beat_at: when the sign of life was asked for that is waited for; None while none is.
      heard_at: when the worker was last heard of in this life.
    """

    def __init__(self, number: int, threads: int, now: float) -> None:
        """Creates a worker that may start at once.

        Args:
          number: its number.
          threads: N, its environment threads.
          now: the time.
        """
        self.number, self._threads = number, threads
        self.state, self.since = WAITING, now
        self.life = -1
        self.worker: Worker | None = None
        self.restart_at = now
        self.restarts = 0
        self.last_error = ""
        self.beat_at: float | None = None
        self.heard_at: float | None = None
        self._begun_at = now
        self._rng = np.random.default_rng(number)
        self._pause = FIRST_PAUSE_SECS
        self._error = ""
        self._failures = 0
        # When the first call of this life got lost since one was answered, by their methods.
        self._lost_since: dict[str, float] = {}
        self._tellings: dict[str, Any] = {}
        self._steps_before, self._timings_before = 0, Timings()
        self._rate = self._held = 0.0

    def _go(self, state: str, now: float) -> None:
        self.state, self.since = state, now

    # ---- lives ----

    def begin(self, worker: Worker, now: float) -> None:
        """A new life begins, in `worker`; `life` is its number already."""
        self.worker = worker
        self.heard_at = self.beat_at = None
        self._lost_since.clear()
        self._begun_at = now
        self._go(STARTING, now)

    def up(self, facts: dict[str, Any], now: float) -> None:
        """The worker collects, and has told `facts` of itself."""
        self.heard_at = now
        self._tellings = {**facts, "steps": 0}
        self._go(RUNNING, now)

    def doubt(self, method: str, now: float) -> float:
        """A call got lost: it is not known whether the worker lives. Returns for how long none to `method` was answered."""
        self._go(UNREACHABLE, now)
        return now - self._lost_since.setdefault(method, now)

    def answered(self, method: str) -> None:
        """An answer has come."""
        self._lost_since.pop(method, None)

    def heard(self, beat: dict[str, Any], now: float) -> None:
        """Takes in a sign of life of `RolloutWorker.beat`."""
        last, before = self.heard_at, self._tellings
        self._tellings = beat
        if last is not None and now > last and "timings" in before:
            self._rate = (beat["steps"] - before["steps"]) / (now - last)
            held = Timings(**beat["timings"]).waiting_for_learner - Timings(**before["timings"]).waiting_for_learner
            self._held = min(1.0, max(0.0, held / ((now - last) * self._threads)))
        self.heard_at, self.beat_at = now, None
        if self.state == UNREACHABLE:
            self._go(RUNNING, now)

    def lose(self, why: str, now: float) -> None:
        """The life is over; the next may begin after a pause, longer each time, at `restart_at`."""
        if now - self._begun_at > GOOD_LIFE_SECS:
            self._pause = FIRST_PAUSE_SECS
        self.restart_at = now + self._pause * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECS)
        self.restarts += 1
        self.last_error = why
        self._over(WAITING, now)

    def stop(self, now: float) -> None:
        """The life is over, and was the last."""
        self._over(STOPPED, now)

    def _over(self, state: str, now: float) -> None:
        self._steps_before, self._timings_before = self.steps, self.timings
        self._tellings = {}
        self._rate = self._held = 0.0
        self.worker = self.heard_at = self.beat_at = None
        self._go(state, now)

    def failed(self, error: BaseException, now: float) -> int:
        """Takes in an error that the worker's code has raised; returns how often in a row it was this one."""
        # Errors that differ in numbers are the same: times, processes, addresses.
        seen = re.sub(r"0x[0-9a-f]+|[0-9]+", "#", f"{type(error).__name__}: {error}")
        good = now - self._begun_at > GOOD_LIFE_SECS
        self._failures = self._failures + 1 if seen == self._error and not good else 1
        self._error = seen
        return self._failures

    # ---- telling ----

    @property
    def alive(self) -> bool:
        """Whether it collects, as far as is known."""
        return self.state in (RUNNING, UNREACHABLE)

    @property
    def steps(self) -> int:
        """Environment steps that it has handed out, in all lives, as of its last sign of life in each."""
        return self._steps_before + int(self._tellings.get("steps", 0))

    @property
    def timings(self) -> Timings:
        """What its environment threads did in all lives, as of the last sign of life in each."""
        now, before = Timings(**self._tellings.get("timings", {})), self._timings_before
        return Timings(
            environment=before.environment + now.environment,
            inference=before.inference + now.inference,
            waiting_for_learner=before.waiting_for_learner + now.waiting_for_learner,
            threads=self._threads,
        )

    @property
    def steps_per_sec(self) -> float:
        """Between the last two signs of life."""
        return self._rate

    def facts(self, now: float) -> dict[str, Any]:
        """What displays show of it, made for JSON."""
        return {
            "worker": self.number,
            "state": self.state,
            "life": self.life,
            "restarts": self.restarts,
            "host": self._tellings.get("host"),
            "pid": self._tellings.get("pid"),
            "policy_version": self._tellings.get("version"),
            "steps": self.steps,
            "steps_per_sec": self._rate,
            "waits_for_learner": self._held,
            "last_heartbeat_secs": None if self.heard_at is None else now - self.heard_at,
            "last_error": self.last_error,
        }

    def describe(self, now: float) -> str:
        """Where it stands, in a few words."""
        secs = f"{now - self.since:.0f} s"
        if self.state == WAITING:
            why = f" after: {self.last_error}" if self.last_error else ""
            return f"worker {self.number} restarts in {max(0.0, self.restart_at - now):.0f} s{why}"
        if self.state == RUNNING and self.heard_at is not None:
            return f"worker {self.number} is running, last heard of {now - self.heard_at:.0f} s ago"
        return f"worker {self.number} is {self.state} for {secs}"
