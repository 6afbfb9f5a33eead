"""Trainers whose experience comes from workers: all that works with environment threads of one process works with them.

The workers here are threads of this process: what crosses is the same as between processes.
"""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest

from alf.distributed import ray_engine
from alf.distributed.in_process_engine import InProcessEngine
from alf.trainers import remote
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.schedule import Schedule
from alf.trainers.self_play import SelfPlay
from alf.trainers.worker_table import read_workers
from tests.replay.q_learning import TinyQ
from tests.trainers.worker_algorithms import make_hands, make_mixed

FIXED = "tests.trainers.fixed_episodes:FixedEpisodes"
HANDS = """
import alf.environments.suite_agents
create_environment.env_name = 'rock_paper_scissors'
create_environment.env_load_fn = @alf.environments.suite_agents.load
alf.environments.suite_agents.load.steps = 3
alf.environments.suite_agents.load.behaviors = {'player_0': 'left', 'player_1': 'right'}
"""
# Two workers of two environment threads with two rows each; segments of 4 steps, 4 of them a batch.
W, N, B, T, Q = 2, 2, 2, 4, 4


@pytest.fixture(autouse=True)
def _workers_are_threads(monkeypatch, _small_bindings):
    monkeypatch.setattr(ray_engine, "RayEngine", lambda address: InProcessEngine())
    gin.bind_parameter("create_environment.env_name", FIXED)
    gin.bind_parameter("create_environment.num_parallel_environments", B)
    gin.bind_parameter("AsyncOffPolicyDriver.learn_queue_cap", Q)


@pytest.fixture
def remote_config(small_config):
    def make(trainer=AsyncOffPolicyTrainer, **kwargs):
        return small_config(trainer, **{"num_workers": W, "num_envs": N, "mini_batch_size": None, **kwargs})

    return make


def _watch(trainer):
    """The experience that the algorithm gets."""
    seen = []
    trainer.initialize()
    trainer.algorithm.add_experience_observer(seen.append)
    return seen


def _in_turns():
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "sync")


def test_a_run_counts_saves_and_tells_of_its_workers(remote_config, tmp_path):
    trainer = remote_config(summary_interval=1, evaluate=True, eval_interval=2, num_eval_episodes=3).create_trainer()
    seen = _watch(trainer)
    trainer.train()
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (3, 3 * Q * T * B)
    assert len(seen) == 3
    assert trainer._num_rows == W * N * B
    ids = np.concatenate([exp.env_id.numpy().ravel() for exp in seen])
    assert set(ids) <= set(range(W * N * B))
    assert int(trainer.driver.get_metrics()[1].result()) > 0
    (evaluation,) = trainer._evaluations.history.all
    assert (evaluation.step, evaluation.episodes) == (2, 3)
    problems: list[str] = []
    table = read_workers(str(tmp_path / "run"), problems)
    assert problems == []
    assert [row["worker"] for row in table["workers"]] == [0, 1]
    assert {row["restarts"] for row in table["workers"]} == {0}
    assert "2 workers of 2 environment threads each" in table["pool"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "train" / "stats.jsonl").read_text().splitlines()]
    assert rows[-1]["Driver/workers"] == W
    assert "Driver/lost_requests" in rows[-1]


def test_in_turns_every_batch_is_of_all_workers_and_of_the_newest_weights(remote_config):
    _in_turns()
    trainer = remote_config().create_trainer()
    seen = _watch(trainer)
    trainer.train()
    for exp in seen:
        assert sorted(set(exp.env_id.numpy().ravel())) == list(range(W * N * B))
    assert trainer.driver.stats()["lag_max"] == 0


@pytest.mark.slow
def test_in_turns_a_run_follows_from_its_seed(remote_config, tmp_path):
    _in_turns()
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")

    def weights(name, seed):
        trainer = remote_config(root_dir=str(tmp_path / name), random_seed=seed).create_trainer()
        trainer.train()
        return [v.numpy() for v in trainer.algorithm.trainable_variables]

    for a, b in zip(weights("a", 1), weights("b", 1), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_resumed_run_counts_on_with_fresh_workers(remote_config, monkeypatch):
    _in_turns()
    drawn = []
    of_worker = remote.run_seeds.of_worker
    monkeypatch.setattr(remote.run_seeds, "of_worker", lambda *place: drawn.append(place) or of_worker(*place))
    remote_config().create_trainer().train()
    second = remote_config(num_iterations=5).create_trainer()
    second.train()
    assert (second.counters.iterations, second.counters.env_steps) == (5, 5 * Q * T * B)
    assert sorted(drawn) == [(1, 0, 0, 0, 0), (1, 0, 0, 3, 0), (1, 1, 0, 0, 0), (1, 1, 0, 3, 0)]


@pytest.mark.slow
def test_a_run_goes_on_without_its_workers(remote_config, tmp_path):
    remote_config().create_trainer().train()
    table = tmp_path / "run" / "train" / "workers.json"
    assert table.is_file()
    local = remote_config(num_iterations=4, num_workers=0, num_envs=W * N).create_trainer()
    local.train()
    assert local.counters.env_steps == 4 * Q * T * B
    assert not table.exists()


def test_heatup_is_at_random_to_the_end_of_every_episode(remote_config):
    _in_turns()
    schedule = Schedule("32 env_steps", improve_steps="2 training_steps")
    with remote_config(schedule=schedule).create_trainer() as trainer:
        seen = _watch(trainer)
        (bias,) = [w for w in trainer.algorithm.trainable_variables if w.shape == [2]]
        bias.assign([100.0, -100.0])
        done = trainer.heatup(EnvironmentSteps(32))
        # The 32 steps are one batch, of 4 steps in every row; the episodes, of 5 actions, end in the next one.
        assert trainer.counters[Phase.HEATUP].of(EnvironmentSteps).value == done.environment_steps == 2 * Q * T * B
        assert done.episodes == W * N * B
        assert {int(a) for exp in seen for a in exp.action.numpy().ravel()} == {0, 1}
        heated = len(seen)
        trainer.act(EnvironmentSteps(32))
        assert {int(a) for exp in seen[heated:] for a in exp.action.numpy().ravel()} == {0}


def test_samples_are_drawn_from_the_learners_memory_which_a_resumed_run_has(remote_config, logged):
    gin.bind_parameter("ReplayBuffer.max_length", 100)

    def train(**kwargs):
        config = remote_config(
            algorithm_ctor=TinyQ,
            whole_replay_buffer_training=False,
            mini_batch_length=2,
            mini_batch_size=8,
            initial_collect_steps=100,
            checkpoint_replay=True,
            **kwargs,
        )
        trainer = config.create_trainer()
        trainer.train()
        return trainer

    steps = train().algorithm.exp_replayer.total_steps
    assert steps == (4 + 2) * Q * T * B
    resumed = train(num_iterations=4)
    assert any(f"The replay memory holds {steps} steps" in line for line in logged)
    assert resumed.algorithm.exp_replayer.total_steps == steps + Q * T * B


@pytest.mark.slow
def test_several_behaviors(remote_config):
    """One learns by PPO, one by DQN from its memory."""
    gin.parse_config(HANDS)
    trainer = remote_config(algorithm_ctor=make_mixed, num_updates_per_train_step=1).create_trainer()
    trainer.train()
    assert trainer.counters.env_steps == 3 * Q * T * B
    agents = trainer._report._agents
    assert agents is not None
    assert {name for name, _ in agents.returns().items()} == {"left", "right"}


@pytest.mark.slow
def test_self_play_reaches_the_workers(remote_config):
    """The opponent's weights go out with the learner's: what the workers act by is what the versions say."""
    _in_turns()
    gin.parse_config(HANDS)
    settings = SelfPlay("left", "right", every="1 training_steps", snapshot_every="2 training_steps", window=2)
    config = remote_config(algorithm_ctor=make_hands, self_play=settings, num_iterations=6)
    with config.create_trainer() as trainer:
        trainer.initialize()
        published = []
        publish = trainer._pool.publish
        trainer._pool.publish = lambda v, weights, random: (published.append(weights), publish(v, weights, random))
        trainer.improve()
        assert len(published) == 6
        for mine, sent in zip(trainer.algorithm.acting_variables(), published[-1], strict=True):
            np.testing.assert_array_equal(mine.numpy(), sent)
        opponent = {v.ref() for v in trainer.algorithm.by_name["right"].acting_variables()}
        assert opponent <= {v.ref() for v in trainer.algorithm.acting_variables()}


def test_old_segments_are_dropped_and_counted(remote_config):
    """By the learner, whose limit no worker has."""
    gin.bind_parameter("AsyncOffPolicyDriver.max_policy_lag", 0)
    trainer = remote_config(num_iterations=6).create_trainer()
    seen = _watch(trainer)
    trainer.train()
    assert len(seen) == 6
    assert trainer.driver.stats()["dropped_steps"] % (T * B) == 0


@pytest.mark.parametrize(
    ("trainer", "settings", "message"),
    [
        (OnPolicyTrainer, {}, "num_workers=2 is for @async_off_policy_trainer: OnPolicyTrainer collects"),
        (SyncOffPolicyTrainer, {}, "num_workers=2 is for @async_off_policy_trainer: SyncOffPolicyTrainer collects"),
        (AsyncOffPolicyTrainer, {"exact_resume": True, "checkpoint_interval": 1}, "cannot go with exact_resume"),
        (AsyncOffPolicyTrainer, {"num_workers": -1}, "num_workers=-1 must be at least 0"),
    ],
)
def test_what_workers_cannot_do(small_config, trainer, settings, message):
    with pytest.raises(ValueError, match=message):
        small_config(trainer, **{"num_workers": 2, **settings}).create_trainer()


def test_a_mode_that_workers_have_not(remote_config):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    with pytest.raises(ValueError, match="lockstep"):
        remote_config().create_trainer().train()


@pytest.mark.parametrize("error", [ImportError, ConnectionError, RuntimeError, ValueError])
def test_an_engine_that_cannot_be_had_is_told_with_the_setting(remote_config, monkeypatch, error):
    def fail(address):
        raise error(f"nothing at {address}")

    monkeypatch.setattr(ray_engine, "RayEngine", fail)
    with pytest.raises(ValueError, match=r"TrainerConfig.num_workers=2, ray_address='auto': nothing at auto"):
        remote_config(ray_address="auto").create_trainer().train()


def test_an_evaluation_has_one_version_of_the_weights(remote_config):
    """Workers act by ever newer ones meanwhile."""
    schedule = Schedule("0 env_steps", "1 training_steps", "2 episodes", "3 training_steps")
    trainer = remote_config(schedule=schedule, evaluate_beside=False).create_trainer()
    trainer.train()
    assert [e.step for e in trainer._evaluations.history.all] == [1, 2, 3]
    assert trainer.counters[Phase.TEST].of(EnvironmentEpisodes).value == 6
