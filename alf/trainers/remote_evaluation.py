"""Evaluations that a worker plays: what the learner sends, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.distributed.engine import Engine
from alf.distributed.remote_evaluator import RemoteEvaluator
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.episode_video import EpisodeVideo, Picture
from alf.trainers.config import TrainerConfig
from alf.trainers.counts import Count
from alf.trainers.evaluation_log import EvaluationLog, Played
from alf.trainers.evaluation_result import Evaluation

WORKER = "alf.trainers.evaluation_worker:EvaluationWorker"


def make_evaluator(engine: Engine, config: TrainerConfig, learners: dict[str, Any], rows: int) -> RemoteEvaluator:
    """The worker of a run that plays its evaluations, not started yet.

    Args:
      engine: runs it.
      config: of the run.
      learners: what workers are told of that, see `remote.worker_settings`.
      rows: B, environments that it steps together.

    Raises:
      ValueError: a setting of `EpisodeVideo` is out of its range.
    """
    # Made in the worker only: here its settings are looked at, and count as used.
    EpisodeVideo()
    threshold = config.reward_success_threshold
    settings = {
        "learners": learners,
        "rows": rows,
        "epsilon_greedy": config.epsilon_greedy,
        "success_threshold": dict(threshold) if isinstance(threshold, dict) else threshold,
    }
    # The numbers below are those of the workers that collect.
    return RemoteEvaluator(engine, config.num_workers, WORKER, settings)


class RemoteEvaluation:
    """Has a worker evaluate the weights of a moment while training goes on; a `Beside`.

    What becomes of the worker is no matter of training: where there is no answer, there is no result.
    """

    def __init__(
        self,
        evaluator: RemoteEvaluator,
        algorithm: RLAlgorithm,
        env: BatchedEnvironment,
        epsilon_greedy: float,
        log_dir: str,
    ) -> None:
        """Creates it; nothing is sent yet.

        Args:
          evaluator: calls the worker; it is started and stopped elsewhere.
          algorithm: whose weights are evaluated.
          env: tells what the environments are like; it is not stepped.
          epsilon_greedy: of the evaluations.
          log_dir: directory of the event file.
        """
        self._evaluator = evaluator
        self._algorithm = algorithm
        # Not driven: it knows which variables an evaluation reads.
        self._driver = PolicyDriver(env, algorithm, epsilon_greedy=epsilon_greedy)
        self._log = EvaluationLog(log_dir)
        self._played: Played | None = None

    @property
    def running(self) -> bool:
        """See `Beside`."""
        return self._evaluator.busy

    def start(self, count: Count, step: int, max_episode_steps: int) -> bool:
        """See `Beside`."""
        version = int(self._algorithm.iterations)
        what = (count.unit, int(count.value), step, max_episode_steps)
        return self._evaluator.ask(version, self._driver.weights, *what)

    def take(self, wait: bool = False, give_up: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """See `Beside`; an evaluation that cannot be had is not waited for."""
        answer = self._evaluator.take(wait, give_up)
        if answer is None:
            return None
        picture = None
        if answer["picture"] is not None:
            encoded, height, width = answer["picture"]
            picture = Picture(np.asarray(encoded).tobytes(), height, width)
        self._played = Played(Evaluation.of_plain(answer["result"]), answer["tells_success"], picture)
        return self._played.result

    def report(self, result: Evaluation) -> None:
        """See `Beside`."""
        played, self._played = self._played, None
        assert played is not None, "what was taken is reported once"
        assert played.result is result, "what was taken last is reported"
        self._log.write(played)

    def stop(self) -> None:
        """See `Beside`."""
        self._evaluator.stop()
        self._log.close()
