"""Evaluation beside training: its own environment, its own random numbers, and no effect on what is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep, StepType
from alf.drivers.base import MOST_CUTS
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.episode_video import EpisodeVideo
from alf.trainers.agent_evaluation import recorder_of
from alf.trainers.counts import Count, EnvironmentEpisodes
from alf.trainers.evaluation_log import EvaluationLog, Played
from alf.trainers.evaluation_result import Evaluation as Evaluation

_LAST = int(StepType.LAST)

# How many evaluations a run remembers.
KEPT_EVALUATIONS = 1000


class EpisodeRecorder:
    """Returns, lengths and successes of the episodes that an evaluation asks for; an observer of a driver.

    Each of B rows gives its share of the episodes, or plays its share of the steps and ends its episode: taking those
    that end first would favour short episodes.
    """

    def __init__(
        self,
        count: Count,
        batch_size: int,
        success_threshold: float | Mapping[str, float] | None = None,
        successes: Callable[[], np.ndarray | None] = lambda: None,
        shape: Callable[[np.ndarray], np.ndarray] | None = None,
        observation_spec: Any = (),
        restarts: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates the recorder.

        Args:
          count: episodes, or steps of single environments.
          batch_size: B.
          success_threshold: an episode with at least this return is a success; by behavior, an agent's episode.
          successes: what the environment says about the last step, bool [B], or None.
          shape: from rewards [B] to those that are learned from, [B], where these are others.
          observation_spec: of the environment; where it has agents, their episodes are recorded too.
          restarts: how often the environment was built anew so far. The episodes that this cut count for nothing, and their
            rows play others; those of agents count as they were.
        """
        whole, more = divmod(int(count.value), batch_size)
        self._wanted = np.full(batch_size, whole) + (np.arange(batch_size) < more)
        self._by_episodes = isinstance(count, EnvironmentEpisodes)
        self._threshold = None if isinstance(success_threshold, Mapping) else success_threshold
        self._by_behavior = tuple(success_threshold) if isinstance(success_threshold, Mapping) else ()
        self._successes = successes
        self._restarts, self._restarted = restarts, restarts()
        self._cuts_in_a_row = 0
        # Rows whose episode, or the one that is only made up to end at once, was cut by a restart.
        self._cut = np.zeros(batch_size, bool)
        self._shape = shape
        self._return = np.zeros(batch_size)
        self._shaped_return = np.zeros(batch_size)
        self._length = np.zeros(batch_size, np.int64)
        self._owes = self._wanted > 0
        # Rows whose last observation, of an episode that was asked for, is yet to come.
        self._closing = np.zeros(batch_size, bool)
        self.agents = recorder_of(observation_spec, batch_size, success_threshold)
        self._told = success_threshold is not None
        self.returns: list[float] = []
        self.shaped_returns: list[float] = []
        self.lengths: list[int] = []
        self.succeeded: list[bool] = []
        self.steps = 0

    @property
    def done(self) -> bool:
        """Whether all that was asked for is there."""
        return not self._owes.any()

    @property
    def always_cut(self) -> bool:
        """Whether episodes were cut `MOST_CUTS` times since one has counted."""
        return self._cuts_in_a_row >= MOST_CUTS

    def longest_open(self) -> int:
        """Actions of the longest episode that is waited for."""
        return int(self._length[self._owes].max(initial=0))

    def __call__(self, trajectory: Any) -> None:
        """Takes in a step of the batch: step_type, next_step_type int32 [B], reward float32 [B], and observations."""
        acting = np.asarray(trajectory.step_type) != _LAST
        if self.agents is not None:
            self.agents.take(trajectory, np.where(acting, self._owes, self._closing))
        self._return += np.where(acting, trajectory.reward, 0.0)
        if self._shape is not None:
            self._shaped_return += np.where(acting, self._shape(np.asarray(trajectory.reward)), 0.0)
        self._length += acting
        counted = acting & self._owes
        self.steps += int(np.count_nonzero(counted))
        if not self._by_episodes:
            self._wanted -= counted
        ended = acting & (np.asarray(trajectory.next_step_type) == _LAST)
        if self.agents is not None:
            self._closing = ended & self._owes
        restarts = self._restarts()
        self._cut |= restarts != self._restarted
        self._cuts_in_a_row += restarts != self._restarted
        self._restarted = restarts
        for row in np.flatnonzero(ended & self._owes & ~self._cut):
            self._end(int(row))
        self._cut &= ~ended
        self._return[ended] = self._shaped_return[ended] = 0.0
        self._length[ended] = 0

    def finish(self, time_step: ActionTimeStep) -> None:
        """Takes in where the environment stands after the last step, [B, ...]: what agents see there ends their episodes."""
        if self.agents is not None:
            self.agents.take(time_step, self._closing)
        self._closing[:] = False

    def _end(self, row: int) -> None:
        self._cuts_in_a_row = 0
        said = self._successes()
        self._told |= said is not None
        self.returns.append(float(self._return[row]))
        self.lengths.append(int(self._length[row]))
        if self._shape is not None:
            self.shaped_returns.append(float(self._shaped_return[row]))
        enough = self._threshold is not None and self.returns[-1] >= self._threshold
        self.succeeded.append(enough or (said is not None and bool(said[row])))
        if self._by_episodes:
            self._wanted[row] -= 1
        self._owes[row] = self._wanted[row] > 0

    def result(self, step: int) -> Evaluation:
        """What the episodes so far came to; the success rate is NaN where nothing tells of successes."""
        behaviors = () if self.agents is None else self.agents.result()
        if not self.returns:
            nan = math.nan
            return Evaluation(0, nan, nan, nan, nan, self.steps, (), step, behaviors=behaviors, complete=self.done)
        rates = [b.success_rate for b in behaviors if b.name in self._by_behavior]
        if not rates and self._told:
            rates = [float(np.mean(self.succeeded))]
        return Evaluation(
            len(self.returns),
            float(np.mean(self.returns)),
            float(np.std(self.returns)),
            float(np.mean(self.lengths)),
            float(np.min(rates)) if rates else math.nan,
            self.steps,
            tuple(self.returns),
            step,
            float(np.mean(self.shaped_returns)) if self.shaped_returns else None,
            behaviors,
            self.done,
        )

    @property
    def tells_success(self) -> bool:
        """Whether there is a threshold, or the environment has told of success."""
        return self._told


class Evaluator:
    """Plays whole episodes with the present policy and reports them under their own directory."""

    def __init__(
        self,
        env: BatchedEnvironment,
        algorithm: RLAlgorithm,
        epsilon_greedy: float,
        random_seed: int,
        log_dir: str,
        success_threshold: float | Mapping[str, float] | None = None,
    ) -> None:
        """Creates the evaluator.

        Args:
          env: batched environment of its own, closed by `close`.
          algorithm: whose policy plays; its variables are only read.
          epsilon_greedy: chance of a sampled instead of the most likely action.
          random_seed: of the samples.
          log_dir: directory of the event file.
          success_threshold: as of `EpisodeRecorder`.
        """
        self._env = env
        self._algorithm = algorithm
        self._success_threshold = success_threshold
        self._recorder: EpisodeRecorder | None = None
        self._video = EpisodeVideo()
        self._driver = PolicyDriver(
            env, algorithm, observers=[self._record], epsilon_greedy=epsilon_greedy, random_seed=random_seed
        )
        self._log = EvaluationLog(log_dir)
        env.after_building()

    def _record(self, trajectory: Any) -> None:
        assert self._recorder is not None
        self._recorder(trajectory)
        self._video.add(trajectory, self._env.render)

    def restart(self, env: BatchedEnvironment, random_seed: int) -> None:
        """Closes the environment and goes on in another one; no evaluation may be running.

        Args:
          env: as the one before, closed by `close`.
          random_seed: of the samples.
        """
        self._env.close()
        self._env = env
        self._driver.restart(env, random_seed)
        env.after_building()

    def _shaped(self, reward: np.ndarray) -> np.ndarray:
        return np.asarray(self._algorithm.shape_reward(tf.convert_to_tensor(reward, tf.float32)))

    def freeze(self) -> None:
        """Plays by the weights of this moment from now on; see `PolicyDriver.freeze`."""
        self._driver.freeze()

    def load(self, weights: Sequence[np.ndarray]) -> None:
        """Plays by weights from elsewhere from now on; see `PolicyDriver.load`."""
        self._driver.load(weights)

    def play(
        self,
        count: Count,
        step: int,
        max_episode_steps: int = 100_000,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Evaluation | None:
        """Plays from a reset exactly the episodes asked for, or to the first ends of episodes at or past the steps.

        Args:
          count: EnvironmentEpisodes or EnvironmentSteps.
          step: global counter of the weights, noted in the result.
          max_episode_steps: a longer episode ends the evaluation with those that have ended, which is not `complete` then, and
            so do `MOST_CUTS` cuts in a row.
          should_stop: asked at each step.

        Returns:
          what came of it; None when `should_stop` came true.
        """
        shape = self._shaped if self._algorithm.shapes_reward else None
        recorder = EpisodeRecorder(
            count,
            self._env.batch_size,
            self._success_threshold,
            lambda: self._env.successes,
            shape,
            self._env.observation_spec(),
            lambda: self._env.cuts,
        )
        self._recorder = recorder
        self._video.begin()
        stopped = False

        def over() -> bool:
            nonlocal stopped
            stopped = stopped or should_stop()
            hopeless = recorder.always_cut or recorder.longest_open() >= max_episode_steps
            return stopped or recorder.done or hopeless

        time_step, _ = self._driver.predict_until(over)
        if stopped:
            return None
        recorder.finish(time_step)
        if recorder.always_cut:
            logging.warning(
                "Evaluation: episodes were cut %d times in a row, by restarts or values that are not finite, and are not "
                "waited for; %d episodes of %s have ended.",
                MOST_CUTS,
                len(recorder.returns),
                count,
            )
        elif not recorder.done:
            logging.warning(
                "Evaluation: an episode has not ended after %d steps (Schedule.max_episode_steps) and is not waited "
                "for; %d episodes of %s have ended.",
                max_episode_steps,
                len(recorder.returns),
                count,
            )
        return recorder.result(step)

    def told(self, result: Evaluation) -> Played:
        """`result`, of the last evaluation, with what is shown beside it; the picture is handed out once."""
        success = self._recorder is not None and self._recorder.tells_success
        return Played(result, success, self._video.picture() if result.episodes else None)

    def report(self, result: Evaluation) -> None:
        """Writes the last evaluation into the event file; see `EvaluationLog`."""
        self._log.write(self.told(result))

    def close(self) -> None:
        """Closes the environment and the event file."""
        self._env.close()
        self._log.close()
