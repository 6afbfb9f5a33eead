"""What the episodes of an evaluation came to for each behavior, where several agents act."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from alf.environments.agents import IDLE, slots_of
from alf.metrics.agent_episodes import AgentStreams, agent_rows

# How many returns of a behavior an evaluation remembers; where agents come and go, there may be thousands.
KEPT_RETURNS = 100


class BehaviorEvaluation(NamedTuple):
    """What the episodes of single agents of one behavior came to.

    Attributes:
      name: of the behavior.
      episodes: how many have ended; without any, the four numbers that follow are NaN.
      average_return: mean return of an agent.
      std_return: standard deviation of their returns.
      average_length: mean number of actions.
      success_rate: share with at least the return that is a success for this behavior; NaN where none is set.
      returns: of the last `KEPT_RETURNS`.
    """

    name: str
    episodes: int
    average_return: float
    std_return: float
    average_length: float
    success_rate: float
    returns: tuple[float, ...]


class AgentRecorder:
    """Returns and lengths of all agents that an evaluation has in the episodes that it asks for."""

    def __init__(self, slots: Mapping[str, int], batch_size: int, thresholds: Mapping[str, float]) -> None:
        """Creates the recorder.

        Args:
          slots: K by the name of each behavior.
          batch_size: B.
          thresholds: by behavior, from which return on an agent's episode is a success.
        """
        self._open = {name: AgentStreams(batch_size, count) for name, count in slots.items()}
        self._thresholds = thresholds
        self.returns: dict[str, list[float]] = {name: [] for name in slots}
        self.lengths: dict[str, list[int]] = {name: [] for name in slots}

    def take(self, trajectory: Any, counted: np.ndarray) -> None:
        """Takes in what the agents see at a step of the batch.

        Args:
          trajectory: or time step, of which step_type int32 and observations [B, ...] are used.
          counted: bool [B], which rows are in an episode that is asked for.
        """
        for name, opened in self._open.items():
            env_step_type, step_type, reward = agent_rows(trajectory, name)
            step_type = np.where(counted[np.newaxis, :, np.newaxis], step_type, IDLE)
            ended = opened.take(env_step_type, step_type, reward)
            self.returns[name] += ended.returns.tolist()
            self.lengths[name] += ended.lengths.tolist()

    def succeeded(self, name: str) -> list[bool] | None:
        """Which episodes of a behavior were successes; None where no return is set for it."""
        threshold = self._thresholds.get(name)
        return None if threshold is None else [value >= threshold for value in self.returns[name]]

    def result(self) -> tuple[BehaviorEvaluation, ...]:
        """What the episodes so far came to, by the names of the behaviors."""
        return tuple(self._of(name) for name in self.returns)

    def _of(self, name: str) -> BehaviorEvaluation:
        returns, succeeded = self.returns[name], self.succeeded(name)
        if not returns:
            return BehaviorEvaluation(name, 0, math.nan, math.nan, math.nan, math.nan, ())
        return BehaviorEvaluation(
            name,
            len(returns),
            float(np.mean(returns)),
            float(np.std(returns)),
            float(np.mean(self.lengths[name])),
            math.nan if succeeded is None else float(np.mean(succeeded)),
            tuple(returns[-KEPT_RETURNS:]),
        )


def recorder_of(observation_spec: Any, batch_size: int, thresholds: Any) -> AgentRecorder | None:
    """The recorder for an environment with agents; None for one without.

    Args:
      observation_spec: of the environment.
      batch_size: B.
      thresholds: returns by behavior, or anything else where none are set.
    """
    slots = slots_of(observation_spec)
    if slots is None:
        return None
    counts = {name: of_one.count for name, of_one in slots.items()}
    return AgentRecorder(counts, batch_size, thresholds if isinstance(thresholds, Mapping) else {})


def told(b: BehaviorEvaluation) -> str:
    """What a person reads of it."""
    if not b.episodes:
        return "no episode of an agent has ended"
    success = "" if math.isnan(b.success_rate) else f", success rate {b.success_rate:.2f}"
    return f"return {b.average_return:.2f} ± {b.std_return:.2f} over {b.episodes} episodes of agents{success}"


def behavior_scalars(behaviors: Iterable[BehaviorEvaluation]) -> dict[str, float]:
    """`Metrics/<behavior>/...` of behaviors with episodes; `SuccessRate` where it is known."""
    found: dict[str, float] = {}
    for b in behaviors:
        if not b.episodes:
            continue
        found[f"Metrics/{b.name}/AverageReturn"] = b.average_return
        found[f"Metrics/{b.name}/AverageReturn_std"] = b.std_return
        found[f"Metrics/{b.name}/AverageEpisodeLength"] = b.average_length
        found[f"Metrics/{b.name}/NumberOfEpisodes"] = b.episodes
        if not math.isnan(b.success_rate):
            found[f"Metrics/{b.name}/SuccessRate"] = b.success_rate
    return found
