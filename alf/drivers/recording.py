"""Records episodes that a policy plays, as a dataset to learn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from alf.algorithms.judging import judge
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import StepType
from alf.drivers.base import MOST_CUTS, cuts
from alf.drivers.policy_driver import PolicyDriver
from alf.replay.dataset import Steps
from alf.utils.common import check_sizes


class _Recorder:
    """An observer that keeps the episodes of each environment of a batch that came to an end of their own.

    What a restart, or a value that is not finite, has cut short is left out, and so are the episodes that are only made up
    to end at once.
    """

    def __init__(self, batch_size: int, cuts: Callable[[], int]) -> None:
        self.finished: list[list[list[Any]]] = [[] for _ in range(batch_size)]
        self._cuts, self._seen = cuts, cuts()
        self._cuts_in_a_row = 0
        self._cut = np.zeros(batch_size, bool)
        self._open: list[list[Any]] = [[] for _ in range(batch_size)]
        # What the next step of each environment came with.
        self._reward = np.zeros(batch_size, np.float32)
        self._discount = np.ones(batch_size, np.float32)

    def has(self, episodes: int) -> bool:
        """Whether each environment has finished so many episodes."""
        return all(len(finished) >= episodes for finished in self.finished)

    @property
    def always_cut(self) -> bool:
        """Whether episodes were cut `MOST_CUTS` times since one has been kept."""
        return self._cuts_in_a_row >= MOST_CUTS

    def __call__(self, trajectory: Any) -> None:
        observation, action = (
            tf.nest.map_structure(np.asarray, x) for x in (trajectory.observation, trajectory.action)
        )
        for b, step_type in enumerate(np.asarray(trajectory.step_type)):
            first = step_type == StepType.FIRST
            row = Steps(
                np.int32(step_type),
                np.float32(0.0 if first else self._reward[b]),
                np.float32(1.0 if first else self._discount[b]),
                tf.nest.map_structure(lambda x, b=b: x[b].copy(), observation),
                tf.nest.map_structure(lambda x, b=b: x[b].copy(), action),
            )
            self._open[b] = [row] if first else [*self._open[b], row]
            if step_type == StepType.LAST:
                if not self._cut[b]:
                    self.finished[b].append(self._open[b])
                    self._cuts_in_a_row = 0
                self._cut[b] = False
        # The environment has taken this step by now: what it cut ends with the next one.
        self._cut |= self._cuts() != self._seen
        self._cuts_in_a_row += self._cuts() != self._seen
        self._seen = self._cuts()
        self._reward = np.array(trajectory.reward, np.float32)
        self._discount = np.array(trajectory.discount, np.float32)


def record_episodes(
    algorithm: RLAlgorithm,
    env: Any,
    num_episodes: int,
    epsilon_greedy: float = 0.0,
    random_seed: int | None = None,
    max_steps_per_episode: int = 100_000,
) -> Steps:
    """Plays whole episodes, to be written with `alf.replay.dataset.write_dataset`.

    Args:
      algorithm: acts by its `predict`.
      env: a batched environment; every member of the batch gives the same number of episodes, so that short ones are not
        preferred.
      num_episodes: at least so many are recorded.
      epsilon_greedy: chance of a sampled instead of the most likely action.
      random_seed: of the acting; None draws one.
      max_steps_per_episode: gives up when episodes do not end.

    Returns:
      the steps of the episodes, one after the other, with the log-probabilities of discrete actions where the algorithm
      can tell them (`alf.algorithms.judging`).

    Raises:
      ValueError: too few episodes have ended within the limit, or each is cut, or a number is no whole one of at least 1.
    """
    check_sizes(num_episodes=num_episodes, max_steps_per_episode=max_steps_per_episode)
    recorder = _Recorder(env.batch_size, lambda: cuts(env))
    driver = PolicyDriver(env, algorithm, observers=[recorder], epsilon_greedy=epsilon_greedy, random_seed=random_seed)
    each = math.ceil(num_episodes / env.batch_size)
    driver.predict_until(lambda: recorder.has(each) or recorder.always_cut, each * max_steps_per_episode)
    if recorder.always_cut:
        raise ValueError(
            f"Of {num_episodes} episodes, {sum(map(len, recorder.finished))} were recorded before they were cut {MOST_CUTS} "
            "times in a row, by restarts or values that are not finite: correct the environment."
        )
    if not recorder.has(each):
        raise ValueError(
            f"Of {num_episodes} episodes, {sum(map(len, recorder.finished))} ended in {each * max_steps_per_episode} steps: "
            "give the environment a time limit, such as suite_gym.load.max_episode_steps, or raise max_steps_per_episode."
        )
    rows = [row for episodes in recorder.finished for episode in episodes[:each] for row in episode]
    steps = tf.nest.map_structure(lambda *x: np.stack(x), *rows)
    judged = judge(algorithm, steps, epsilon_greedy)
    if judged is None:
        return steps
    # Without samples each action was the most likely one, also where another batch size would round to another.
    chances = judged.log_probability if epsilon_greedy else np.zeros_like(judged.log_probability)
    return steps._replace(log_probability=chances)
