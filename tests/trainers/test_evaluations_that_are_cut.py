"""Evaluating and playing where restarts and values that are not finite cut episodes: what is cut counts for nothing."""

from __future__ import annotations

import logging

import gymnasium
import numpy as np
import pytest

from alf.bin.episodes import EpisodesError, run_episodes
from alf.bin.play import Player
from alf.drivers.recording import record_episodes
from alf.environments import RestartingEnvironment
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter
from alf.environments.utils import create_environment
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps
from alf.trainers.evaluation import Evaluator
from tests.drivers.counting import CountingAlgorithm


class _NeverFinite(gymnasium.Env):
    """Every episode would take six steps, and gives a reward that is no number at the fourth."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 9.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(5)
        self.time = 0

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.time += 1
        reward = np.nan if self.time == 4 else 1.0
        return np.full(3, self.time, np.float32), reward, self.time == 6, False, {}


def _never_finite():
    env = create_environment(_NeverFinite, num_parallel_environments=2, seed=1, nonfinite="truncate")
    return env, CountingAlgorithm(env, recurrent=False)


@pytest.mark.parametrize("count", [EnvironmentEpisodes(2), EnvironmentSteps(20)])
def test_an_evaluation_ends_where_every_episode_is_cut(tmp_path, count, caplog):
    env, algorithm = _never_finite()
    evaluator = Evaluator(env, algorithm, 0.0, 0, str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="absl"):
        result = evaluator.play(count, 0)
    evaluator.close()
    assert result is not None
    assert result.episodes == 0
    assert env.cuts == 100
    assert "Evaluation: episodes were cut 100 times in a row" in caplog.text


def test_the_command_ends_too():
    env, algorithm = _never_finite()
    with pytest.raises(
        EpisodesError, match=r"cut 100 times in a row, .* and 0 of 2 have ended: correct the environment"
    ):
        run_episodes(env, algorithm, 2, 0.0, 0)
    env.close()


def test_recording_ends_too():
    env, algorithm = _never_finite()
    with pytest.raises(ValueError, match="Of 4 episodes, 0 were recorded before they were cut 100 times in a row, "):
        record_episodes(algorithm, env, 4, random_seed=0)
    env.close()


def test_playing_ends_too():
    env = create_environment(_NeverFinite, nonparallel=True, seed=1, nonfinite="truncate")
    with pytest.raises(
        EpisodesError, match=r"cut 100 times in a row, .* and 0 of 3 have ended: correct the environment"
    ):
        Player(env, CountingAlgorithm(env, recurrent=False), sleep_time_per_step=0.0).play(3)
    env.close()


@pytest.mark.parametrize("at", [3, 6, 9])
def test_an_episode_that_a_restart_cut_is_played_again(at):
    counter = StepCounter()

    def build(seed):
        return FaultyEnvironment(CountingEnvironment(1, episode_lengths=[7]), raise_at=[at], counter=counter)

    env = RestartingEnvironment(build, seed=0)
    returns = Player(env, CountingAlgorithm(env, recurrent=False), sleep_time_per_step=0.0).play(2)
    assert env.restarts == 1
    env.close()
    assert len(returns) == 2
    assert all(28 <= x < 29 for x in returns), "1 + 2 + ... + 7, and a little for the actions"
