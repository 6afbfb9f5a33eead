"""Rows of episodes tell how far goal-conditioned environments are from their goals."""

from __future__ import annotations

import csv

import gin
import gymnasium
import numpy as np

from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from tests.replay.q_learning import TinyQ


class Approach(gymnasium.Env):
    """The goal is at (3, 4); each of five steps goes a fifth of the way there from (0, 0)."""

    def __init__(self):
        place = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = gymnasium.spaces.Discrete(2)
        self.time = 0

    def _observe(self):
        at = np.array([3.0, 4.0], np.float32) * np.float32(self.time / 5)
        return {"observation": at, "achieved_goal": at, "desired_goal": np.array([3.0, 4.0], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        return self._observe(), 0.0, self.time == 5, False, {}


class OfDicts(TinyQ):
    """Sees the observation alone."""

    def __init__(self, observation_spec, action_spec, debug_summaries=False):
        super().__init__(observation_spec["observation"], action_spec, debug_summaries)
        self._observation_spec = observation_spec

    def _q(self, observation):
        return super()._q(observation["observation"])


def test_rows_of_episodes_tell_the_distance(small_config, tmp_path):
    gin.bind_parameter("create_environment.env_name", Approach)
    gin.bind_parameter("StatsReporter.log_episodes", True)
    # Six rows, five steps and the end: an iteration is an episode of each environment.
    settings = {
        "algorithm_ctor": OfDicts,
        "unroll_length": 6,
        "num_iterations": 3,
        "whole_replay_buffer_training": False,
    }
    small_config(SyncOffPolicyTrainer, **settings, mini_batch_length=2, mini_batch_size=4).create_trainer().train()
    with open(tmp_path / "run" / "train" / "episodes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    told = [row for row in rows if row["Goal/distance/Mean"] not in ("", "nan")]
    assert told
    for row in told:
        # 5, 4, 3, 2, 1 and 0 away.
        np.testing.assert_allclose(float(row["Goal/distance/Mean"]), 2.5, rtol=1e-5)
        np.testing.assert_allclose(float(row["Goal/distance/Max"]), 5.0, rtol=1e-5)
        np.testing.assert_allclose(float(row["Goal/distance/Min"]), 0.0, atol=1e-5)
