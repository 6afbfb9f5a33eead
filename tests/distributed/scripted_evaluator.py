"""A worker for evaluations that needs no TensorFlow, and does as its script says."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_HANG_SECS = 60.0


class Boom(Exception):
    """What scripted workers raise."""


class Play:
    """What one test's workers do, and what became of them.

    Attributes:
      scripts: by life, or None for all others: "fails", "hangs" (and steps), "stands still", "cannot begin", "begins
        late" or "does not end".
      asked: life, number, version, sum of the weights and what else each was asked for, in order.
      ended: lives whose `end` was called.
      let_go: ends all that hangs.
    """

    def __init__(self) -> None:
        self.scripts: dict[int | None, str] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.weights: list[np.ndarray] = []
        self.ended: list[int] = []
        self.let_go = threading.Event()

    def script_of(self, life: int) -> str:
        return self.scripts.get(life, self.scripts.get(None, ""))


# Of the test that runs in this process.
PLAYS: dict[int, Play] = {}


class ScriptedEvaluator:
    def __init__(self, number: int, life: int, play: int) -> None:
        self._play, self._number, self._life = PLAYS[play], number, life
        self._steps, self._version = 0, -1
        self._last: tuple[int, Any] = (-1, None)

    def begin(self) -> dict[str, Any]:
        if self._play.script_of(self._life) == "cannot begin":
            raise Boom("no environment")
        if self._play.script_of(self._life) == "begins late":
            self._play.let_go.wait(_HANG_SECS)
        return {"pid": 1, "host": "here"}

    def evaluate(self, number: int, version: int, weights: list[np.ndarray], *what: Any) -> Any:
        self._play.asked.append((self._life, number, version, float(weights[0].sum()), *what))
        self._play.weights.append(weights[0])
        if self._last[0] == number:
            return self._last[1]
        self._version = version
        script = self._play.script_of(self._life)
        if script == "fails":
            raise Boom("boom")
        if script in ("hangs", "stands still"):
            self._play.let_go.wait(_HANG_SECS)
        self._steps += 10
        self._last = number, (number, version, *what)
        return self._last[1]

    def beat(self) -> dict[str, Any]:
        self._steps += self._play.script_of(self._life) == "hangs"
        return {"pid": 1, "host": "here", "version": self._version, "steps": self._steps, "timings": {}}

    def end(self) -> None:
        self._play.ended.append(self._life)
        if self._play.script_of(self._life) == "does not end":
            self._play.let_go.wait(_HANG_SECS)
