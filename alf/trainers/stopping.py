"""Conditions that end a run when it is good enough, or when more of it would be no use."""

from __future__ import annotations

import abc
import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import gin
from absl import logging

from alf.trainers.agent_evaluation import KEPT_RETURNS, BehaviorEvaluation
from alf.trainers.behavior_targets import Target, check_names, numbers_of
from alf.trainers.config_types import checked
from alf.trainers.evaluation import KEPT_EVALUATIONS, Evaluation
from alf.utils.gin_utils import GinConfigError

# What conditions judge by: evaluations, or the part of them that is about one behavior.
Outcome = Evaluation | BehaviorEvaluation


@dataclasses.dataclass(frozen=True)
class Standing:
    """How a run stands: `evaluations` those finished so far, oldest first; `seconds` that it took, in all phases."""

    evaluations: Sequence[Evaluation]
    seconds: float

    @property
    def last(self) -> Evaluation | None:
        """The last evaluation; None when there is none, no episode ended in it, or it is not `complete`."""
        last = self.evaluations[-1] if self.evaluations else None
        return last if last is not None and last.episodes and last.complete else None

    def of(self, behavior: str) -> list[BehaviorEvaluation]:
        """What the evaluations tell of the agents of one behavior."""
        found = (evaluation.behavior(behavior) for evaluation in self.evaluations)
        return [one for one in found if one is not None]


class StopCondition(Protocol):
    """Tells when a run may end."""

    def __call__(self, run: Standing) -> str | None:
        """Why the run may end, as a clause; None while it may not."""


def _last(evaluations: Sequence[Outcome]) -> Outcome | None:
    """The last one; None when there is none, or no episode ended in it."""
    return evaluations[-1] if evaluations and evaluations[-1].episodes else None


class TargetCondition(abc.ABC):
    """A condition with a target for the environment as a whole, or with one for each of several behaviors.

    In the latter case it holds when it does for all of those that are named, each judged by its own agents' episodes.
    Evaluations that are not `complete` count for nothing, and no condition holds while the last one is not.
    """

    def __init__(self, name: str, target: Target) -> None:
        """Creates the condition.

        Args:
          name: of the target, such as "MeanReturn.target".
          target: a number, or numbers by the names of behaviors.
        """
        self.name = name
        self.target = target

    def __call__(self, run: Standing) -> str | None:
        """See `StopCondition`."""
        if run.evaluations and not run.evaluations[-1].complete:
            return None
        run = Standing([evaluation for evaluation in run.evaluations if evaluation.complete], run.seconds)
        if not isinstance(self.target, Mapping):
            return self._reached(run.evaluations, self.target)
        reasons = {name: self._reached(run.of(name), target) for name, target in self.target.items()}
        if any(why is None for why in reasons.values()):
            return None
        return "; ".join(f"{name}: {why}" for name, why in reasons.items())

    @abc.abstractmethod
    def _reached(self, evaluations: Sequence[Outcome], target: float) -> str | None:
        """Why these evaluations, oldest first, have reached `target`; None where they have not."""


@gin.configurable(module="alf")
class SuccessRate(TargetCondition):
    """Ends the run when enough episodes of an evaluation are successes; see `reward_success_threshold`.

    Where that is given by behavior, the success rate of an evaluation is the lowest among these behaviors: one target is
    then reached when all of them have reached it.
    """

    def __init__(self, target: float | Mapping[str, float]) -> None:
        """Creates the condition.

        Args:
          target: share of successes, in [0, 1]; or one for each of several behaviors, all to be reached.

        Raises:
          ValueError: it is not.
        """
        for name, value in numbers_of("SuccessRate.target", target).items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}={value} is a share and must be in [0, 1].")
        super().__init__("SuccessRate.target", target)

    def _reached(self, evaluations: Sequence[Outcome], target: float) -> str | None:
        last = _last(evaluations)
        if last is None or not last.success_rate >= target:
            return None
        return f"the success rate of {last.episodes} episodes is {last.success_rate:.3g}, at least {target:g}"


@gin.configurable(module="alf")
class MeanReturn(TargetCondition):
    """Ends the run when the mean return of an evaluation is high enough."""

    def __init__(self, target: float | Mapping[str, float], episodes: int | None = None) -> None:
        """Creates the condition.

        Args:
          target: mean return, as the environment gives rewards; any number, 0 too. Or one for each of several behaviors, of
            the episodes of their agents, all to be reached.
          episodes: the mean is over the last so many episodes of evaluations, those of earlier ones too; None means over all
            of the last evaluation. Of a behavior at most 100, the returns that an evaluation remembers.

        Raises:
          ValueError: an argument is out of range.
        """
        numbers_of("MeanReturn.target", target)
        episodes = checked("MeanReturn", {"episodes": episodes}, {"episodes": "int | None"})["episodes"]
        if episodes is not None and episodes < 1:
            raise ValueError(f"MeanReturn.episodes={episodes} must be at least 1.")
        if episodes is not None and episodes > KEPT_RETURNS and isinstance(target, Mapping):
            raise ValueError(
                f"MeanReturn.episodes={episodes} is more than the {KEPT_RETURNS} returns of a behavior that an evaluation "
                f"remembers: give at most {KEPT_RETURNS}, or None for all episodes of the last evaluation."
            )
        super().__init__("MeanReturn.target", target)
        self._episodes = episodes

    def _reached(self, evaluations: Sequence[Outcome], target: float) -> str | None:
        last = _last(evaluations)
        if last is None:
            return None
        mean, over = last.average_return, last.episodes
        if self._episodes is not None:
            returns = [value for evaluation in evaluations for value in evaluation.returns][-self._episodes :]
            if len(returns) < self._episodes:
                return None
            mean, over = sum(returns) / len(returns), len(returns)
        if not mean >= target:
            return None
        return f"the mean return of {over} evaluation episodes is {mean:.6g}, at least {target:g}"


@gin.configurable(module="alf")
class Plateau(TargetCondition):
    """Ends the run when evaluations get no better."""

    def __init__(self, evaluations: int = 10, min_improvement: float | Mapping[str, float] = 0.0) -> None:
        """Creates the condition.

        Args:
          evaluations: so many in a row
          min_improvement: that have not raised the best mean return by more than this end the run. By behavior: that have
            not raised the best mean return of any of them.

        Raises:
          ValueError: an argument is out of range.
        """
        evaluations = checked("Plateau", {"evaluations": evaluations}, {"evaluations": "int"})["evaluations"]
        if not 1 <= evaluations < KEPT_EVALUATIONS:
            raise ValueError(f"Plateau.evaluations={evaluations} must be at least 1 and below {KEPT_EVALUATIONS}.")
        for name, value in numbers_of("Plateau.min_improvement", min_improvement).items():
            if value < 0.0:
                raise ValueError(f"{name}={value} must be 0 or more.")
        super().__init__("Plateau.min_improvement", min_improvement)
        self._evaluations = evaluations

    def _reached(self, evaluations: Sequence[Outcome], target: float) -> str | None:
        means = [evaluation.average_return for evaluation in evaluations if evaluation.episodes]
        if len(means) <= self._evaluations:
            return None
        best, newest = max(means[: -self._evaluations]), max(means[-self._evaluations :])
        if newest > best + target:
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
        secs = checked("TimeLimit", {"secs": secs}, {"secs": "float"})["secs"]
        if not secs > 0:
            raise ValueError(f"TimeLimit.secs={secs} must be above 0.")
        self._secs = secs

    def __call__(self, run: Standing) -> str | None:
        """See `StopCondition`."""
        return f"the time limit of {self._secs:g} s is reached" if run.seconds >= self._secs else None


def first_reason(conditions: Iterable[StopCondition], run: Standing) -> str | None:
    """Why the first of `conditions` that holds ends the run; None when none does.

    Raises:
      ValueError: one gives neither a text nor None.
    """
    for condition in conditions:
        why = condition(run)
        if why is None:
            continue
        if not isinstance(why, str) or not why:
            name = condition.__qualname__ if isinstance(condition, types.FunctionType) else type(condition).__name__
            raise ValueError(
                f"The stop condition {name} gave {why!r}: have it give a clause that says why the run may end, or None while "
                "it may not."
            )
        return why
    return None


def check_targets(conditions: Iterable[StopCondition], success_threshold: Any, behaviors: Sequence[str]) -> None:
    """Raises ValueError where a target is for a behavior that there is not, or that nothing tells the success of.

    Args:
      conditions: of the run.
      success_threshold: `TrainerConfig.reward_success_threshold`.
      behaviors: of the environment; empty where it has a single agent.
    """
    setting = "TrainerConfig.reward_success_threshold"
    check_names(setting, success_threshold, behaviors)
    judged = success_threshold if isinstance(success_threshold, Mapping) else {}
    for condition in conditions:
        if not isinstance(condition, TargetCondition):
            continue
        check_names(condition.name, condition.target, behaviors)
        if not isinstance(condition, SuccessRate) or not isinstance(condition.target, Mapping):
            continue
        missing = [name for name in condition.target if name not in judged]
        if missing:
            raise ValueError(
                f"{condition.name} names {missing[0]!r}, and nothing tells when its agents succeed: set {setting} = "
                f"{{{missing[0]!r}: ...}}, the return from which on they do."
            )


def check_judged(conditions: Iterable[StopCondition], evaluates: bool, ends: bool) -> None:
    """Looks for conditions that judge by evaluations in a run that makes none.

    Args:
      conditions: of the run.
      evaluates: whether it evaluates on its own, or has been evaluated.
      ends: whether anything but the conditions ends it.

    Raises:
      GinConfigError: nothing would ever end it; else it is only said that they never hold.
    """
    judging = [condition.name for condition in conditions if isinstance(condition, TargetCondition)]
    if evaluates or not judging:
        return
    never = f"{judging[0]} judges by evaluations, and this run makes none of its own"
    how = "set TrainerConfig.evaluate=True, or steps_between_evaluation_periods of its schedule."
    others = [condition for condition in conditions if not isinstance(condition, TargetCondition)]
    if not ends and not others:
        raise GinConfigError(f"{never}, so it would never end: {how}")
    logging.warning("%s, so that it never holds: %s", never, how)
