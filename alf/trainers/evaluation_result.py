"""What an evaluation came to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from alf.trainers.agent_evaluation import BehaviorEvaluation


class Evaluation(NamedTuple):
    """What some episodes came to.

    Attributes:
      episodes: how many have ended; without any, the four numbers that follow are NaN.
      average_return: mean of `returns`.
      std_return: their standard deviation.
      average_length: mean number of actions.
      success_rate: share of episodes that succeeded: by their return, where there is a threshold, or as the environment says.
        Where thresholds are set by behavior, the lowest of their success rates.
      environment_steps: actions taken, those of episodes that did not end included.
      returns: of each episode, rewards as the environment gives them.
      step: global counter of the weights that played.
      average_shaped_return: as `average_return`, of the rewards that are learned from (`reward_shaping_fn`); None
        where these are those of the environment.
      behaviors: the same of the episodes of single agents, by the names of their behaviors; empty for a single agent.
      complete: whether all that was asked for has ended. Where some was given up, as it went on for too long or was cut again
        and again, those that have ended may be the easy ones: such an evaluation ends no run and makes no checkpoint the best.
    """

    episodes: int
    average_return: float
    std_return: float
    average_length: float
    success_rate: float = math.nan
    environment_steps: int = 0
    returns: tuple[float, ...] = ()
    step: int = 0
    average_shaped_return: float | None = None
    behaviors: tuple[BehaviorEvaluation, ...] = ()
    complete: bool = True

    def behavior(self, name: str) -> BehaviorEvaluation | None:
        """What the agents of one behavior came to; None where there is none of this name."""
        return next((b for b in self.behaviors if b.name == name), None)

    def score(self, behavior: str | None) -> tuple[float, int]:
        """What judges the weights: the mean return of all, or of the agents of one behavior, and of how many episodes.

        Of none, and NaN, where the evaluation is not `complete`.
        """
        judged = self if behavior is None else self.behavior(behavior)
        if judged is None or not self.complete:
            return math.nan, 0
        return judged.average_return, judged.episodes

    def plain(self) -> list[Any]:
        """As lists, text and numbers, for files and other processes."""
        return [*self[:-2], [list(b) for b in self.behaviors], self.complete]

    @classmethod
    def of_plain(cls, row: Sequence[Any]) -> Evaluation:
        """The evaluation of which `plain` gave `row`, now or in an earlier version with fewer attributes."""
        found = cls(*row)
        behaviors = tuple(BehaviorEvaluation(*b)._replace(returns=tuple(b[-1])) for b in found.behaviors)
        return found._replace(returns=tuple(found.returns), behaviors=behaviors)
