"""A worker that plays evaluations: one at a time, by weights that it is given, whatever becomes of it."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
from absl import logging

from alf.distributed.engine import Engine, Shared
from alf.distributed.keeper import Asked, Keeper, Limits, check_needs, check_positive
from alf.distributed.member import RUNNING, STARTING, Member
from alf.utils.standstill import Standstill

# Between two looks of somebody who waits for an evaluation.
_POLL_SECS = 0.2


class _Errand:
    """An evaluation that was asked for and has no answer yet."""

    def __init__(self, number: int, version: int, weights: list[np.ndarray], what: tuple[Any, ...]) -> None:
        self.number, self.version, self.what = number, version, what
        self.attempts = 0
        self.sent = False
        # The steps of the worker when it last made one, and when that was.
        self.steps, self.moved_at = -1, 0.0
        self._weights = Shared(weights)

    def arguments(self, engine: Engine) -> tuple[Any, ...]:
        """Those of the worker's `evaluate`."""
        return self.number, self.version, self._weights.ref(engine), *self.what


@gin.configurable(module="alf")
class RemoteEvaluator(Keeper):
    """One worker for evaluations, in a process of its own, kept alive by a thread of its own.

    When it is lost it is started again after a pause of 1 s, doubled up to 30 s, and asked again for the evaluation that it
    was at. Whatever happens to it, the run goes on: an evaluation that cannot be had is skipped, and counted.

    Its worker has the methods `begin()`, which tells `pid` and `host`; `evaluate(number, version, weights, *what)`, which
    answers the same number with the same answer; `beat()`, which tells `steps` and `version` too; and `end()`.

    Attributes:
      played: evaluations that have an answer.
      skipped: those that were given up, or not begun since the one before had no answer.
      lost: how often the worker was lost with an evaluation under way.
    """

    _role = "Evaluation worker"
    _thread_name = "alf-evaluator"
    _look_secs = 0.1

    def __init__(
        self,
        engine: Engine,
        number: int,
        worker: str,
        settings: dict[str, Any],
        max_attempts: int = 3,
        wait_timeout_secs: float = 300.0,
        stall_timeout_secs: float = 600.0,
        heartbeat_timeout_secs: float = 30.0,
        start_timeout_secs: float = 120.0,
        num_cpus: float = 1.0,
        resources: dict[str, float] | None = None,
    ) -> None:
        """Prepares; nothing is started.

        Args:
          engine: runs the worker.
          number: of the worker, other than those of all others.
          worker: "module:attribute" of what makes it.
          settings: further arguments of that.
          max_attempts: an evaluation is skipped when its worker was lost, or has failed, so often.
          wait_timeout_secs: who waits for an evaluation, as at the end of a run, gives it up after that.
          stall_timeout_secs: a worker that makes no step of its environment for so long, while it plays, counts as lost.
          heartbeat_timeout_secs: and one that gives no sign of life.
          start_timeout_secs: and one that takes longer to begin.
          num_cpus: processors that are set aside for it.
          resources: further resources that it takes, by name; they choose a machine.

        Raises:
          ValueError: a limit is not positive, or there are no such resources.
        """
        check_positive(
            self,
            max_attempts=max_attempts,
            wait_timeout_secs=wait_timeout_secs,
            stall_timeout_secs=stall_timeout_secs,
            heartbeat_timeout_secs=heartbeat_timeout_secs,
            start_timeout_secs=start_timeout_secs,
        )
        check_needs(self, num_cpus, resources)
        self._member = Member(number, 1, time.monotonic())
        limits = Limits(heartbeat_timeout_secs, start_timeout_secs, max_attempts, num_cpus, resources or {})
        super().__init__(engine, [self._member], worker, settings, limits)
        self._wait_timeout_secs = wait_timeout_secs
        self._stall_timeout_secs = stall_timeout_secs
        self._changed = threading.Condition(threading.RLock())
        self._errand: _Errand | None = None
        self._answers: list[Any] = []
        self._number = 0
        self._dismiss = ""
        self.played = self.skipped = self.lost = 0

    # ---- the learner's side ----

    @property
    def busy(self) -> bool:
        """Whether an evaluation goes on, or its answer has not been taken."""
        with self._changed:
            return self._errand is not None or bool(self._answers)

    def ask(self, version: int, weights: Callable[[], list[np.ndarray]], *what: Any) -> bool:
        """Asks for an evaluation and returns at once; False, and one is skipped, while it is busy or has ended; one thread.

        Args:
          version: of the weights.
          weights: gives what the worker's `evaluate` takes, arrays that nobody changes any more; called at most once, here.
          what: its further arguments: numbers and text.
        """
        with self._changed:
            if self.busy or self._marks.finished is not None:
                self.skipped += 1
                return False
        # Not under the lock, for which signs of life would wait.
        errand = _Errand(self._number, version, weights(), what)
        with self._changed:
            if self._marks.finished is not None:
                self.skipped += 1
                return False
            self._errand = errand
            self._number += 1
            self._changed.notify_all()
        return True

    def take(self, wait: bool = False, give_up: Callable[[], bool] = lambda: False) -> Any:
        """The answer to what was asked, once; None while there is none.

        Args:
          wait: for an evaluation that goes on, for `wait_timeout_secs`, after which it is skipped.
          give_up: asked while waiting; once it is true, the evaluation goes on and there is no answer.
        """
        awake, since = Standstill(), time.monotonic()
        with self._changed:
            while wait and self._errand is not None and self._marks.finished is None and not give_up():
                if awake.secs_since(since) >= self._wait_timeout_secs:
                    self._dismiss = "its evaluation is not waited for any more" if self._errand.sent else ""
                    self._skip(
                        f"it was waited for {self._wait_timeout_secs:g} s (RemoteEvaluator.wait_timeout_secs), and "
                        f"{self._member.describe(time.monotonic())}"
                    )
                    break
                self._changed.wait(_POLL_SECS)
            return self._answers.pop() if self._answers else None

    def stop(self) -> None:
        super().stop()
        with self._changed:
            self._errand = None
            self._changed.notify_all()

    def facts(self) -> dict[str, Any]:
        """What displays show of the worker, made for JSON."""
        with self._changed:
            return {
                **self._member.facts(time.monotonic()),
                "worker": "evaluator",
                "waits_for_learner": None,
                "lost_requests": self.lost,
                "evaluations": self.played,
                "skipped_evaluations": self.skipped,
            }

    def stats(self) -> dict[str, float]:
        """Scalars for displays."""
        return {"evaluator_restarts": float(self._member.restarts), "skipped_evaluations": float(self.skipped)}

    def _skip(self, why: str) -> None:
        errand, self._errand = self._errand, None
        assert errand is not None
        self.skipped += 1
        logging.warning("The evaluation of version %d is skipped: %s.", errand.version, why)
        self._changed.notify_all()

    # ---- the keeper's side ----

    def _idle(self) -> None:
        with self._changed:
            self._changed.wait(self._look_secs)

    def _look_around(self, now: float) -> None:
        member = self._member
        with self._changed:
            why, self._dismiss = self._dismiss, ""
            errand = self._errand
            if errand is not None and errand.sent and member.state == RUNNING:
                if member.steps != errand.steps:
                    errand.steps, errand.moved_at = member.steps, now
                elif (stood := self._awake.secs_since(errand.moved_at, now)) > self._stall_timeout_secs:
                    why = (
                        f"it has made no step of its environment for {stood:.0f} s (RemoteEvaluator.stall_timeout_secs)"
                    )
        if why and member.worker is not None:
            self._lose(member, why)

    def _begin_args(self, member: Member) -> tuple[Any, ...]:
        return ()

    def _begun(self, member: Member, facts: dict[str, Any]) -> None:
        # Weights come with each evaluation.
        return

    def _ask(self, member: Member) -> None:
        with self._changed:
            errand = self._errand
            # A worker that is to be replaced is asked for nothing more.
            if errand is None or errand.sent or self._dismiss:
                return
            errand.sent, errand.steps = True, -1
        self._call(member, "evaluate", *errand.arguments(self._engine), number=errand.number)

    def _answered(self, asked: Asked, answer: Any) -> None:
        with self._changed:
            if self._errand is not None and self._errand.number == asked.number:
                self._errand = None
                self._answers.append(answer)
                self.played += 1
                self._changed.notify_all()

    def _unanswered(self, asked: Asked) -> None:
        with self._changed:
            if self._errand is not None and self._errand.number == asked.number:
                self._missed(self._errand)

    def _gone(self, member: Member) -> None:
        with self._changed:
            # What had got lost is counted already, and what was not asked yet is not to blame.
            if self._errand is not None and (self._errand.sent or member.state == STARTING):
                self._missed(self._errand)

    def _missed(self, errand: _Errand) -> None:
        self.lost += errand.sent
        errand.sent = False
        errand.attempts += 1
        if errand.attempts >= self._limits.max_failures:
            self._skip(f"its worker was lost {errand.attempts} times (RemoteEvaluator.max_attempts)")

    def _failed(self, member: Member, error: Exception) -> None:
        if member.failed(error, time.monotonic()) == 1:
            logging.warning("The evaluation worker has failed: %s", "".join(traceback.format_exception(error)))

    def _ended_by(self, error: BaseException) -> None:
        logging.error("There are no evaluations any more: %s: %s", type(error).__name__, error)
        # Whoever waits, or asks for more, has to hear of it.
        self._marks.signal_finished(f"it was ended by {type(error).__name__}: {error}")
        with self._changed:
            if self._errand is not None:
                self._skip("there is no worker any more")
