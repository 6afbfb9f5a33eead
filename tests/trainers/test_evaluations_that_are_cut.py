"""Evaluating and playing where restarts and values that are not finite cut episodes, or some never end.

What is cut counts for nothing, and an evaluation of which some is given up judges nothing.
"""

from __future__ import annotations

import logging

import gin
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
from alf.trainers.evaluation import Evaluation, Evaluator
from alf.trainers.evaluations import History
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.trainers.schedule import Schedule
from alf.trainers.stopping import MeanReturn, Plateau, Standing, SuccessRate
from tests.drivers.counting import CountingAlgorithm
from tests.trainers.fixed_episodes import FixedEpisodes


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


def test_an_evaluation_of_which_some_never_ends_judges_nothing(tmp_path):
    """What has ended may be what is easy: here a row ends its first episode, and the other never does."""
    env = CountingEnvironment(2, episode_lengths=[3, 10**6])
    evaluator = Evaluator(env, CountingAlgorithm(env, recurrent=False), 0.0, 0, str(tmp_path), 0.0)
    cut = evaluator.play(EnvironmentEpisodes(3), 0, 50)
    evaluator.close()
    assert (cut.episodes, cut.success_rate, cut.complete) == (1, 1.0, False)
    assert Evaluation.of_plain(cut.plain()) == cut
    conditions = [SuccessRate(0.0), MeanReturn(-1e9), MeanReturn(-1e9, 2), Plateau(1)]
    run = Standing([cut] * 3, 0.0)
    assert run.last is None
    assert [condition(run) for condition in conditions] == [None] * 4
    whole = cut._replace(complete=True)
    assert all(condition(Standing([whole] * 3, 0.0)) for condition in conditions)
    history = History()
    assert [history.add(one) for one in (cut, whole, cut._replace(average_return=1e9))] == [False, True, False]
    assert history.add(whole._replace(average_return=whole.average_return + 1)), "above all that are complete"


class _EverySecondNeverEnds(FixedEpisodes):
    made = 0

    def __init__(self):
        _EverySecondNeverEnds.made += 1
        super().__init__(5 if _EverySecondNeverEnds.made % 2 else None)


def test_a_run_is_not_ended_by_it_and_has_no_best_checkpoint(small_config, tmp_path, caplog):
    gin.bind_parameter("create_environment.env_name", _EverySecondNeverEnds)
    gin.bind_parameter("create_environment.num_parallel_environments", 2)
    _EverySecondNeverEnds.made = 0
    settings = {
        "num_iterations": 0,
        "schedule": Schedule("0 env_steps", "1 training_steps", "3 episodes", "3 training_steps", max_episode_steps=20),
        "reward_success_threshold": 0.0,
        "stop_conditions": [SuccessRate(1.0)],
    }
    trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    with caplog.at_level(logging.WARNING, logger="absl"):
        trainer.train()
    assert [e.episodes for e in trainer._evaluations.history.all] == [2] * 3
    assert trainer.counters.iterations == 3
    assert [r.reward for r in RunIndex.load(str(tmp_path / "run")).records()] == [None]
    assert "over 2 episodes, success rate 1.00; others did not end, so that it ends no run" in caplog.text
