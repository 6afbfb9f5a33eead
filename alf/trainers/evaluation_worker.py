"""The worker that plays a run's evaluations: episodes of its own, by the weights that it is sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from alf.distributed.run_marks import RunMarks
from alf.distributed.worker import place
from alf.drivers.arguments import closed_if_it_fails
from alf.trainers import remote
from alf.trainers import seeds as run_seeds
from alf.trainers.building import build_algorithm
from alf.trainers.counts import UNITS
from alf.trainers.evaluation import Evaluator
from alf.trainers.run_environments import create_evaluation_environment

# How long an end waits for an evaluation to end.
_END_SECS = 2.0


class EvaluationWorker:
    """Plays one evaluation at a time, and answers with plain data; `RemoteEvaluator` says what is called, and when.

    `begin` and `evaluate` are called one at a time; `beat` and `end` at any time beside them.
    """

    def __init__(
        self,
        number: int,
        life: int,
        learners: dict[str, Any],
        rows: int,
        epsilon_greedy: float,
        success_threshold: float | Mapping[str, float] | None,
    ) -> None:
        """Creates a worker that has not begun.

        Args:
          number: of the worker.
          life: how many of this number came before.
          learners: what the learner tells of its configuration, see `remote.worker_settings`.
          rows: B, environments that are stepped together.
          epsilon_greedy: chance of a sampled instead of the most likely action.
          success_threshold: as of `EpisodeRecorder`.
        """
        self._number, self._life = number, life
        self._learners = learners
        self._rows = rows
        self._epsilon_greedy = epsilon_greedy
        self._success_threshold = success_threshold
        self._marks = RunMarks()
        self._playing = threading.Lock()
        self._evaluator: Evaluator | None = None
        self._version: int | None = None
        self._steps = 0
        self._last: tuple[int, dict[str, Any]] | None = None

    def begin(self) -> dict[str, Any]:
        """Makes environment and algorithm; called again it only answers.

        Returns:
          `pid` and `host`.
        """
        with self._playing:
            if self._evaluator is None:
                with remote.configured(self._number, self._life, **self._learners) as (config, seeds):
                    self._evaluator = self._make(config, seeds)
            return place()

    def _make(self, config: Any, seeds: run_seeds.Seeds) -> Evaluator:
        env_seed, acting_seed = seeds.evaluation.spawn(2)
        env = create_evaluation_environment(self._rows, env_seed)
        with closed_if_it_fails([env]):
            algorithm = build_algorithm(config, env)
            seed = run_seeds.integer(acting_seed)
            return Evaluator(env, algorithm, self._epsilon_greedy, seed, os.devnull, self._success_threshold)

    def evaluate(
        self,
        number: int,
        version: int,
        weights: list[np.ndarray],
        unit: str,
        value: int,
        step: int,
        max_episode_steps: int,
    ) -> dict[str, Any]:
        """Plays whole episodes by these weights.

        Args:
          number: of the evaluation; asked for the same number again, the worker gives the same answer.
          version: of the weights, which signs of life tell.
          weights: of `PolicyDriver.weights`.
          unit: of the count that is asked for, see `counts.UNITS`.
          value: of that count.
          step: global counter of the weights, noted in the result.
          max_episode_steps: see `Evaluator.play`.

        Returns:
          `result`, as `Evaluation.plain`; `tells_success`; `picture`: None, or the bytes of a GIF, uint8 [n], with its height
          and width in pixels.

        Raises:
          RuntimeError: the worker has not begun, or was ended meanwhile.
          Exception: whatever the environment or the algorithm fails with.
        """
        with self._playing:
            if self._last is not None and self._last[0] == number:
                return self._last[1]
            evaluator = self._evaluator
            if evaluator is None:
                raise RuntimeError(f"Evaluation worker {self._number} has not begun, or was ended: call begin() first.")
            evaluator.load(weights)
            self._version = version
            result = evaluator.play(UNITS[unit](value), step, max_episode_steps, self._step)
            if result is None:
                self._close()
                raise RuntimeError(f"Evaluation worker {self._number} was ended while it played.")
            played = evaluator.told(result)
            picture = played.picture
            shown = None
            if picture is not None:
                shown = (np.frombuffer(picture.encoded, np.uint8), picture.height, picture.width)
            answer = {"result": result.plain(), "tells_success": played.tells_success, "picture": shown}
            self._last = number, answer
            return answer

    def _step(self) -> bool:
        """Counts a step of the batch; returns whether the evaluation is to end."""
        self._steps += self._rows
        return self._marks.finished is not None

    def beat(self) -> dict[str, Any]:
        """A sign of life: `pid`, `host`, `version` of the weights, None before the first, and `steps` so far."""
        return {**place(), "version": self._version, "steps": self._steps, "timings": {}}

    def end(self) -> None:
        """Ends what is played and closes the environment; any number of times."""
        self._marks.signal_finished("the learner has ended it")
        # One that does not end within this time closes it itself.
        if self._playing.acquire(timeout=_END_SECS):
            try:
                self._close()
            finally:
                self._playing.release()

    def _close(self) -> None:
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is None:
            return
        try:
            evaluator.close()
        except Exception as e:
            logging.warning("Evaluation worker %d ended with %s: %s", self._number, type(e).__name__, e)
