"""Who wins: joint episodes of two behaviors, and ratings of those who play them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.data_structures import Experience, StepType
from alf.environments.agents import OBSERVATION, REWARD, STEP_TYPE


def expected_score(rating: float, other: float) -> float:
    """The score that a player is expected to reach: 1 for a win, 0.5 for a draw, 0 for a loss.

    Elo, "The Rating of Chessplayers, Past and Present" (1978): 1 / (1 + 10^((other - rating) / 400)).
    """
    return 1.0 / (1.0 + 10.0 ** ((other - rating) / 400.0))


# Returns that are nearer are equal but for rounding.
_DRAW = 1e-6


class Match(NamedTuple):
    """A joint episode that has ended.

    Attributes:
      score: of the first behavior: 1 where its return was higher, 0.5 where both were equal, else 0.
      version: of the weights that made the first step.
    """

    score: float
    version: int


class Matches:
    """Joint episodes of two behaviors, followed through the experience that a learner gets.

    A joint episode is that of the environment, from FIRST to LAST. The return of a behavior is the sum over its steps of
    the mean over its slots of the rewards that are learned from; idle slots get none.
    """

    def __init__(self, first: str, second: str) -> None:
        """Creates it; no episode is open.

        Args:
          first: name of the behavior whose scores are told.
          second: of the other one.
        """
        self._names = first, second
        # Of each environment, by id: how far the first is ahead, the version at FIRST, and whether all since is known.
        self._lead = np.zeros(0)
        self._version = np.zeros(0, np.int64)
        self._known = np.zeros(0, bool)
        # What the first behavior sees next, flat leaves by id.
        self._next: dict[int, list[np.ndarray]] = {}

    def take(self, exp: Experience) -> list[Match]:
        """Takes in experience; the matches that end in it, in the order of time.

        Args:
          exp: [Q, T, B, ...] with a bootstrap [Q, B, ...], of environments with agents.
        """
        step_type, version, env_id = (np.asarray(x) for x in (exp.step_type, exp.policy_version, exp.env_id))
        self._make_room(int(env_id.max()) + 1)
        gain = self._reward(exp, self._names[0]) - self._reward(exp, self._names[1])
        found = []
        for q in range(len(step_type)):
            rows = env_id[q, 0]
            self._forget_after_gaps(exp, q, rows)
            for t in range(step_type.shape[1]):
                self._lead[rows] += gain[q, t]
                begins = rows[step_type[q, t] == StepType.FIRST]
                self._lead[begins], self._known[begins] = 0.0, True
                self._version[begins] = version[q, t][step_type[q, t] == StepType.FIRST]
                ends = rows[step_type[q, t] == StepType.LAST]
                ends = ends[self._known[ends]]
                found += [Match(_score(self._lead[e]), int(self._version[e])) for e in ends]
                self._known[ends] = False
        return found

    def _make_room(self, count: int) -> None:
        missing = count - len(self._lead)
        if missing > 0:
            self._lead, self._version, self._known = (
                np.concatenate([x, np.zeros(missing, x.dtype)]) for x in (self._lead, self._version, self._known)
            )

    def _reward(self, exp: Experience, name: str) -> np.ndarray:
        """Mean reward of the slots of a behavior, float64 [Q, T, B]; nothing where they begin or are idle."""
        part = exp.observation[name]
        told = np.isin(np.asarray(part[STEP_TYPE]), (StepType.MID, StepType.LAST))
        return np.where(told, np.asarray(part[REWARD], np.float64), 0.0).mean(-1)

    def _forget_after_gaps(self, exp: Experience, q: int, rows: np.ndarray) -> None:
        """Where a segment does not go on where the last one of its environment ended, the episode is not known whole."""
        name = self._names[0]
        begin = [np.asarray(x[q, 0]) for x in tf.nest.flatten(exp.observation[name][OBSERVATION])]
        after = exp.bootstrap.time_step.observation[name][OBSERVATION]
        end: list[Any] = [np.asarray(x[q]) for x in tf.nest.flatten(after)]
        for i, row in enumerate(rows.tolist()):
            expected = self._next.get(row, [])
            self._known[row] &= all(np.array_equal(a, b[i]) for a, b in zip(expected, begin, strict=False))
            self._next[row] = [x[i] for x in end]


def _score(lead: float) -> float:
    return 0.5 if abs(lead) < _DRAW else float(lead > 0)
