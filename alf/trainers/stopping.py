"""Conditions that end a run when it is good enough, or when more of it would be no use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import gin

from alf.trainers.evaluation import KEPT_EVALUATIONS, Evaluation


@dataclasses.dataclass(frozen=True)
class Standing:
    """How a run stands: `evaluations` those finished so far, oldest first; `seconds` that it took, in all phases."""

    evaluations: Sequence[Evaluation]
    seconds: float

    @property
    def last(self) -> Evaluation | None:
        """The last evaluation; None when there is none, or no episode ended in it."""
        return self.evaluations[-1] if self.evaluations and self.evaluations[-1].episodes else None


class StopCondition(Protocol):
    """Tells when a run may end."""

    def __call__(self, run: Standing) -> str | None:
        """Why the run may end, as a clause; None while it may not."""


@gin.configurable(module="alf")
class SuccessRate:
    """Ends the run when enough episodes of an evaluation are successes; see `reward_success_threshold`."""

    def __init__(self, target: float) -> None:
        """Creates the condition.

        Args:
          target: share of successes, in [0, 1].

        Raises:
          ValueError: it is not.
        """
        if not 0.0 <= target <= 1.0:
            raise ValueError(f"SuccessRate.target={target} is a share and must be in [0, 1].")
        self._target = target

    def __call__(self, run: Standing) -> str | None:
        """See `StopCondition`."""
        last = run.last
        if last is None or not last.success_rate >= self._target:
            return None
        return f"the success rate of {last.episodes} episodes is {last.success_rate:.3g}, at least {self._target:g}"


@gin.configurable(module="alf")
class MeanReturn:
    """Ends the run when the mean return of an evaluation is high enough."""

    def __init__(self, target: float, episodes: int = 1) -> None:
        """Creates the condition.

        Args:
          target: mean return, as the environment gives rewards; any number, 0 too.
          episodes: the mean is over the last so many episodes of evaluations, those of earlier ones too.

        Raises:
          ValueError: an argument is out of range.
        """
        if not math.isfinite(target):
            raise ValueError(f"MeanReturn.target={target} must be finite.")
        if episodes < 1:
            raise ValueError(f"MeanReturn.episodes={episodes} must be at least 1.")
        self._target = target
        self._episodes = episodes

    def __call__(self, run: Standing) -> str | None:
        """See `StopCondition`."""
        returns = [value for evaluation in run.evaluations for value in evaluation.returns][-self._episodes :]
        if run.last is None or len(returns) < self._episodes:
            return None
        mean = sum(returns) / len(returns)
        if not mean >= self._target:
            return None
        return f"the mean return of {len(returns)} evaluation episodes is {mean:.6g}, at least {self._target:g}"


@gin.configurable(module="alf")
class Plateau:
    """Ends the run when evaluations get no better."""

    def __init__(self, evaluations: int = 10, min_improvement: float = 0.0) -> None:
        """Creates the condition.

        Args:
          evaluations: so many in a row
          min_improvement: that have not raised the best mean return by more than this end the run.

        Raises:
          ValueError: an argument is out of range.
        """
        if not 1 <= evaluations < KEPT_EVALUATIONS:
            raise ValueError(f"Plateau.evaluations={evaluations} must be at least 1 and below {KEPT_EVALUATIONS}.")
        if not min_improvement >= 0.0:
            raise ValueError(f"Plateau.min_improvement={min_improvement} must be 0 or more.")
        self._evaluations = evaluations
        self._min_improvement = min_improvement

    def __call__(self, run: Standing) -> str | None:
        """See `StopCondition`."""
        means = [evaluation.average_return for evaluation in run.evaluations if evaluation.episodes]
        if len(means) <= self._evaluations:
            return None
        best, newest = max(means[: -self._evaluations]), max(means[-self._evaluations :])
        if newest > best + self._min_improvement:
            return None
        return f"{self._evaluations} evaluations in a row did not raise the mean return of {best:.6g}"


@gin.configurable(module="alf")
class TimeLimit:
    """Ends the run after some time, warming up and evaluations included."""

    def __init__(self, secs: float) -> None:
        """Creates the condition.

        Args:
          secs: by the wall clock, earlier parts of a resumed run included.

        Raises:
          ValueError: it is not above 0.
        """
        if not secs > 0:
            raise ValueError(f"TimeLimit.secs={secs} must be above 0.")
        self._secs = secs

    def __call__(self, run: Standing) -> str | None:
        """See `StopCondition`."""
        return f"the time limit of {self._secs:g} s is reached" if run.seconds >= self._secs else None


def first_reason(conditions: Iterable[StopCondition], run: Standing) -> str | None:
    """Why the first of `conditions` that holds ends the run; None when none does."""
    return next((why for why in (condition(run) for condition in conditions) if why is not None), None)
