"""The evaluations of a run: what they came to, and those that go on in a thread of their own beside training."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import gin
import tensorflow as tf
from absl import logging

from alf.trainers.agent_evaluation import told
from alf.trainers.counts import Count
from alf.trainers.evaluation import KEPT_EVALUATIONS, Evaluation, Evaluator
from alf.utils.standstill import Standstill
from alf.utils.value_kinds import is_scalar


class History(tf.train.experimental.PythonState):
    """The evaluations that have finished, oldest first, as part of a checkpoint."""

    def __init__(self) -> None:
        self._kept: deque[Evaluation] = deque(maxlen=KEPT_EVALUATIONS)

    @property
    def all(self) -> list[Evaluation]:
        """Those that are kept."""
        return list(self._kept)

    @property
    def last(self) -> Evaluation | None:
        """The newest."""
        return self._kept[-1] if self._kept else None

    def add(self, result: Evaluation, best_by: str | None = None) -> bool:
        """Adds an evaluation; returns whether its mean return, or that of the behavior `best_by`, is the best so far.

        One that is not `complete` is none of those that are compared.
        """
        before = [score for score, episodes in (e.score(best_by) for e in self._kept) if episodes]
        self._kept.append(result)
        score, episodes = result.score(best_by)
        return bool(episodes) and (not before or score > max(before))

    def serialize(self) -> str:
        """All of them, as JSON text."""
        return json.dumps([e.plain() for e in self._kept])

    def deserialize(self, string_value: bytes) -> None:
        """Takes over what `serialize` gave."""
        self._kept.clear()
        self._kept.extend(Evaluation.of_plain(row) for row in json.loads(string_value))


class Beside(Protocol):
    """Evaluates beside training, one evaluation at a time, by the weights of the moment when it begins."""

    @property
    def running(self) -> bool:
        """Whether one goes on, or its result has not been taken."""

    def start(self, count: Count, step: int, max_episode_steps: int) -> bool:
        """Begins an evaluation, in the learner's thread between two updates; False while one is running."""

    def take(self, wait: bool = False, give_up: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """The result of an evaluation that has finished, once; None while there is none.

        Args:
          wait: for the one that is running.
          give_up: asked while waiting; once it is true, the evaluation is left running and there is no result.
        """

    def report(self, result: Evaluation) -> None:
        """Writes the result that was taken last into an event file."""

    def stop(self) -> None:
        """Ends what is running, without a result, and what else it has; may be called any number of times."""


# Between two looks at an evaluation that is waited for.
_POLL_SECS = 0.2


@gin.configurable(module="alf")
class EvaluationBeside:
    """One evaluation at a time in a thread of its own, by the weights of the moment when it began; a `Beside`."""

    def __init__(self, evaluator: Evaluator, stall_timeout_secs: float = 600.0) -> None:
        """Creates it; nothing runs yet.

        Args:
          evaluator: plays; nobody else may use it while an evaluation runs.
          stall_timeout_secs: one that is waited for, and has not come on by a single step of its environment for so long,
            while the process ran, ends the run; how long it takes as a whole has no limit.

        Raises:
          ValueError: the timeout is not above 0.
        """
        if not (is_scalar(stall_timeout_secs, float) and stall_timeout_secs > 0):
            raise ValueError(f"EvaluationBeside.stall_timeout_secs={stall_timeout_secs!r} must be a number above 0.")
        self._evaluator = evaluator
        self._stall_timeout_secs = stall_timeout_secs
        self._step, self._asked = 0, 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._result: Evaluation | None = None
        self._error: BaseException | None = None

    @property
    def running(self) -> bool:
        """Whether one goes on, or its result has not been taken."""
        return self._thread is not None

    def start(self, count: Count, step: int, max_episode_steps: int) -> bool:
        """Begins an evaluation, in the learner's thread between two updates; False while one is running."""
        if self._thread is not None:
            return False
        self._evaluator.freeze()
        self._step = step

        def should_stop() -> bool:
            # Asked at each step: what tells a long evaluation from one that hangs.
            self._asked += 1
            return self._stop.is_set()

        def play() -> None:
            try:
                self._result = self._evaluator.play(count, step, max_episode_steps, should_stop)
            except BaseException as e:  # whatever it is, the trainer has to hear of it
                self._error = e

        self._thread = threading.Thread(target=play, name="alf-evaluation", daemon=True)
        self._thread.start()
        return True

    def take(self, wait: bool = False, give_up: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """The result of an evaluation that has finished, once; None while there is none.

        Args:
          wait: for the one that is running.
          give_up: asked while waiting; once it is true, the evaluation is left running and there is no result.

        Raises:
          TimeoutError: the evaluation that is waited for hangs.
          Exception: what ended the evaluation, with its own traceback.
        """
        thread = self._thread
        if thread is None or (thread.is_alive() and not wait):
            return None
        self._wait_for(thread, give_up)
        if thread.is_alive():
            return None
        self._thread = None
        result, error = self._result, self._error
        self._result = self._error = None
        if error is not None:
            raise error
        return result

    def _wait_for(self, thread: threading.Thread, give_up: Callable[[], bool]) -> None:
        awake = Standstill()
        asked, since = self._asked, time.monotonic()
        while True:
            thread.join(_POLL_SECS)
            if not thread.is_alive() or give_up():
                return
            if self._asked != asked:
                asked, since = self._asked, time.monotonic()
            stood = awake.secs_since(since)
            if stood > self._stall_timeout_secs:
                raise TimeoutError(
                    f"The evaluation of step {self._step} has made no step of its environment for {stood:.0f} s "
                    f"(EvaluationBeside.stall_timeout_secs={self._stall_timeout_secs:g}): its environment hangs, or needs a "
                    "longer limit; create_environment.step_timeout_secs has an environment that hangs made anew."
                )

    def report(self, result: Evaluation) -> None:
        """See `Evaluator.report`."""
        self._evaluator.report(result)

    def stop(self, timeout_secs: float = 10.0) -> None:
        """Ends what is running, without a result; its environment may be closed then."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_secs)
            if self._thread.is_alive():
                logging.warning("The evaluation did not end within %.0f s and is left behind.", timeout_secs)
            elif self._error is not None:
                logging.warning("The evaluation failed at the end: %s: %s", type(self._error).__name__, self._error)
            self._thread = None


class Evaluations:
    """The evaluator of a run with what it found: one evaluation at a time, in the learner's thread or beside it."""

    def __init__(
        self,
        make_evaluator: Callable[[], Evaluator],
        refresh: Callable[[Evaluator, int], None] = lambda evaluator, step: None,
        best_by: str | None = None,
    ) -> None:
        """Creates it.

        Args:
          make_evaluator: called at the first evaluation.
          refresh: called before each evaluation, in the learner's thread, with the evaluator and the step of the weights.
          best_by: the behavior whose return tells the best; None for that of the environment as a whole.
        """
        self.history = History()
        self._make_evaluator = make_evaluator
        self._refresh = refresh
        self._best_by = best_by
        self._evaluator: Evaluator | None = None
        self._beside: Beside | None = None

    def leave_to(self, beside: Beside) -> None:
        """Has `beside` play what is played beside training; the evaluator is made when another evaluation is asked for."""
        self._beside = beside

    @property
    def left_to_others(self) -> bool:
        """Whether somebody else plays what is played beside training."""
        return self._beside is not None and not isinstance(self._beside, EvaluationBeside)

    def prepare(self, beside: bool = False) -> Evaluator:
        """Makes the evaluator, once, and for evaluations beside training what plays them; returns it."""
        if self._evaluator is None:
            self._evaluator = self._make_evaluator()
        if beside and self._beside is None:
            self._beside = EvaluationBeside(self._evaluator)
        return self._evaluator

    def play(
        self, count: Count, step: int, max_episode_steps: int, should_stop: Callable[[], bool]
    ) -> Evaluation | None:
        """Evaluates the present weights; see `Evaluator.play`. None where one that was given up goes on beside."""
        if self._beside is not None and self._beside.running:
            return None
        evaluator = self.prepare()
        self._refresh(evaluator, step)
        if self._beside is not None and not self.left_to_others:
            evaluator.freeze()
        return evaluator.play(count, step, max_episode_steps, should_stop)

    def start_beside(self, count: Count, step: int, max_episode_steps: int) -> bool:
        """Begins to evaluate the present weights beside training; False while that is going on already."""
        if self._beside is None:
            self.prepare(beside=True)
        assert self._beside is not None, "a worker plays, or `prepare` has made it"
        if not (self.left_to_others or self._beside.running):
            self._refresh(self.prepare(), step)
        return self._beside.start(count, step, max_episode_steps)

    def take_beside(self, wait: bool, give_up: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """See `EvaluationBeside.take`."""
        return None if self._beside is None else self._beside.take(wait, give_up)

    def record(self, result: Evaluation, iteration: int, beside: bool) -> bool:
        """Writes and logs a result and adds it to the history; returns whether it is the best so far."""
        if beside and self._beside is not None:
            self._beside.report(result)
        else:
            self.prepare().report(result)
        _tell(result, iteration, beside)
        return self.history.add(result, self._best_by)

    def close(self) -> None:
        """Ends what is running and closes the evaluator; may be called any number of times."""
        if self._beside is not None:
            self._beside.stop()
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close()


def _tell(result: Evaluation, iteration: int, beside: bool) -> None:
    """Logs what an evaluation came to."""
    where = (
        f"Evaluation beside training, of step {result.step}" if beside else f"Evaluation after iteration {iteration}"
    )
    if not result.episodes:
        logging.warning("%s: no episode has ended in %d env steps.", where, result.environment_steps)
        return
    success = "" if math.isnan(result.success_rate) else f", success rate {result.success_rate:.2f}"
    cut = "" if result.complete else "; others did not end, so that it ends no run and makes no checkpoint the best"
    tell = logging.info if result.complete else logging.warning
    tell(
        "%s: return %.2f ± %.2f over %d episodes%s%s.",
        where,
        result.average_return,
        result.std_return,
        result.episodes,
        success,
        cut,
    )
    for b in result.behaviors:
        logging.info("%s: %s", b.name, told(b))
