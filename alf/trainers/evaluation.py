"""Evaluation beside training: its own environment, its own random numbers, and no effect on what is trained."""

from __future__ import annotations

from typing import Any, NamedTuple

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.metrics import AverageEpisodeLengthMetric, AverageReturnMetric
from alf.metrics.summary_writer import SummaryWriter


class Evaluation(NamedTuple):
    """What some episodes came to."""

    episodes: int
    average_return: float
    std_return: float
    average_length: float


class Evaluator:
    """Plays whole episodes with the present policy and reports them under their own directory."""

    def __init__(
        self,
        env: BatchedEnvironment,
        algorithm: RLAlgorithm,
        num_episodes: int,
        epsilon_greedy: float,
        random_seed: int,
        log_dir: str,
    ) -> None:
        """Creates the evaluator.

        Args:
          env: batched environment of its own, closed by `close`.
          algorithm: whose policy plays; its variables are only read.
          num_episodes: episodes in an evaluation.
          epsilon_greedy: chance of a sampled instead of the most likely action.
          random_seed: of the samples.
          log_dir: directory of the event file.
        """
        sizes: dict[str, Any] = {"num_envs": 1, "env_batch_size": env.batch_size, "buffer_size": num_episodes}
        self._return = AverageReturnMetric(**sizes)
        self._length = AverageEpisodeLengthMetric(**sizes)
        self._env = env
        self._num_episodes = num_episodes
        self._driver = PolicyDriver(
            env, algorithm, metrics=[self._return, self._length], epsilon_greedy=epsilon_greedy, random_seed=random_seed
        )
        self._writer = SummaryWriter(log_dir)

    def evaluate(self, step: int) -> Evaluation:
        """Plays, writes `Metrics/AverageReturn` and `Metrics/AverageEpisodeLength` at `step`, and returns them."""
        self._return.reset()
        self._length.reset()
        self._driver.run_episodes(self._num_episodes)
        result = Evaluation(
            self._return.num_episodes(),
            float(self._return.result()),
            self._return.std(),
            float(self._length.result()),
        )
        self._writer.scalars(
            {"Metrics/AverageReturn": result.average_return, "Metrics/AverageEpisodeLength": result.average_length},
            step,
        )
        self._writer.flush()
        return result

    def close(self) -> None:
        """Closes the environment and the event file."""
        self._env.close()
        self._writer.close()
