"""Who wins: joint episodes of two behaviors, and ratings of those who play them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.data_structures import Experience, StepType
from alf.environments.agents import OBSERVATION, REWARD, STEP_TYPE
from alf.metrics.agent_episodes import UNSHAPED_REWARD


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
    the mean over its slots of the rewards that are learned from; idle slots get none. What a failure of the environment
    has cut, or made up, has no result and is no match. It is known by its LAST, at which no agent of any behavior ends,
    nobody gets a reward, and all is seen as in the step before.
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
        # What the first behavior sees next, and what all saw last, flat leaves by id.
        self._next: dict[int, list[np.ndarray]] = {}
        self._last: dict[int, list[np.ndarray]] = {}

    def take(self, exp: Experience) -> list[Match]:
        """Takes in experience; the matches that end in it, in the order of time.

        Args:
          exp: [Q, T, B, ...] with a bootstrap [Q, B, ...], of environments with agents.
        """
        step_type, version, env_id = (np.asarray(x) for x in (exp.step_type, exp.policy_version, exp.env_id))
        self._make_room(int(env_id.max()) + 1)
        gain = self._reward(exp, self._names[0]) - self._reward(exp, self._names[1])
        uneventful = _uneventful_ends(exp)
        found = []
        for q in range(len(step_type)):
            rows = env_id[q, 0]
            self._forget_after_gaps(exp, q, rows)
            counts = ~self._seen_again(exp, q, rows, uneventful[q])
            for t in range(step_type.shape[1]):
                self._lead[rows] += gain[q, t]
                begins = rows[step_type[q, t] == StepType.FIRST]
                self._lead[begins], self._known[begins] = 0.0, True
                self._version[begins] = version[q, t][step_type[q, t] == StepType.FIRST]
                is_last = step_type[q, t] == StepType.LAST
                ends = rows[is_last & counts[t] & self._known[rows]]
                found += [Match(_score(self._lead[e]), int(self._version[e])) for e in ends]
                self._known[rows[is_last]] = False
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

    def _seen_again(self, exp: Experience, q: int, rows: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Of the steps `asked` bool [T, B] those at which all that is seen is as in the step before."""
        seen = [x for part in exp.observation.values() for x in tf.nest.flatten(part[OBSERVATION])]
        again = np.zeros_like(asked)
        for t, i in np.argwhere(asked):
            before = [np.asarray(x[q, t - 1, i]) for x in seen] if t else self._last.get(int(rows[i]), [])
            same = [np.array_equal(a, x[q, t, i]) for a, x in zip(before, seen, strict=False)]
            again[t, i] = bool(same) and all(same)
        last = [np.asarray(x[q, -1]) for x in seen]
        self._last.update({row: [x[i] for x in last] for i, row in enumerate(rows.tolist())})
        return again


def _uneventful_ends(exp: Experience) -> np.ndarray:
    """Where an episode of the environment ends at which no agent does, or gets anything, bool [Q, T, B]."""
    found = np.asarray(exp.step_type) == StepType.LAST
    for part in exp.observation.values():
        step_type, reward = (np.asarray(x) for x in (part[STEP_TYPE], part.get(UNSHAPED_REWARD, part[REWARD])))
        found &= ((step_type != StepType.LAST) & (reward == 0.0)).all(-1)
    return found


def _score(lead: float) -> float:
    return 0.5 if abs(lead) < _DRAW else float(lead > 0)
