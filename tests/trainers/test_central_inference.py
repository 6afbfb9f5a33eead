"""Trainers that act in environments of workers. The workers here are threads of this process."""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest

from alf.distributed import ray_engine
from alf.distributed.in_process_engine import InProcessEngine
from alf.trainers import remote, remote_environments
from alf.trainers import seeds as run_seeds
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.policy_trainer import create_training_environment
from alf.trainers.worker_table import lines, read_workers

FIXED = "tests.trainers.fixed_episodes:FixedEpisodes"
# Two workers of two environments with two rows each; segments of 4 steps, 4 of them a batch.
W, N, B, T, Q = 2, 2, 2, 4, 4


@pytest.fixture(autouse=True)
def _workers_are_threads(monkeypatch, _small_bindings):
    monkeypatch.setattr(ray_engine, "RayEngine", lambda address: InProcessEngine())
    gin.bind_parameter("create_environment.env_name", FIXED)
    gin.bind_parameter("create_environment.num_parallel_environments", B)
    gin.bind_parameter("AsyncOffPolicyDriver.learn_queue_cap", Q)


@pytest.fixture
def central(small_config):
    def make(trainer=AsyncOffPolicyTrainer, **kwargs):
        settings = {"num_workers": W, "num_envs": N, "mini_batch_size": None, "central_inference": True, **kwargs}
        return small_config(trainer, **settings)

    return make


def test_a_run_counts_saves_and_tells_of_its_workers(central, tmp_path):
    trainer = central(summary_interval=1, evaluate=True, eval_interval=2, num_eval_episodes=3).create_trainer()
    seen = []
    trainer.initialize()
    trainer.algorithm.add_experience_observer(seen.append)
    trainer.train()
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (3, 3 * Q * T * B)
    assert trainer._num_rows == W * N * B
    assert set(np.concatenate([exp.env_id.numpy().ravel() for exp in seen])) <= set(range(W * N * B))
    assert int(trainer.driver.get_metrics()[1].result()) > 0
    (evaluation,) = trainer._evaluations.history.all
    assert (evaluation.step, evaluation.episodes) == (2, 3)
    table = read_workers(str(tmp_path / "run"), problems := [])
    assert problems == []
    assert [row["worker"] for row in table["workers"]] == [0, 1]
    assert "2 workers that step 2 environments each" in table["pool"]
    shown = "\n".join(lines(table))
    assert "lag" not in shown, "they have no weights"
    assert "waits for learner" in shown
    rows = [json.loads(line) for line in (tmp_path / "run" / "train" / "stats.jsonl").read_text().splitlines()]
    assert rows[-1]["Driver/workers"] == W
    assert {"Driver/worker_restarts", "Driver/lost_requests", "Driver/workers_steps_per_sec"} <= set(rows[-1])


def test_one_more_worker_may_play_the_evaluations(central, tmp_path):
    """Nothing then steps an environment in this process."""
    settings = {"evaluate": True, "evaluation_worker": True, "eval_interval": 1, "num_eval_episodes": 2}
    trainer = central(num_iterations=4, summary_interval=1, **settings).create_trainer()
    trainer.train()
    evaluations = trainer._evaluations.history.all
    assert evaluations
    assert all(e.episodes == 2 for e in evaluations)
    rows = read_workers(str(tmp_path / "run"), [])["workers"]
    assert [row["worker"] for row in rows] == [0, 1, "evaluator"]
    assert trainer.driver.stats()["evaluator_restarts"] == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["sync", "lockstep"])
def test_a_run_is_that_of_local_environments_with_the_same_seeds(central, tmp_path, monkeypatch, mode):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")

    def weights(name, **kwargs):
        trainer = central(root_dir=str(tmp_path / name), **kwargs).create_trainer()
        trainer.train()
        return [v.numpy() for v in trainer.algorithm.trainable_variables]

    wanted = weights("remote")
    seeds = [s for w in range(W) for s in run_seeds.of_worker(1, w, 0, 0).environments.spawn(N)]
    monkeypatch.setattr(
        AsyncOffPolicyTrainer,
        "_create_environment",
        lambda self, **_: create_training_environment(random_seed=seeds.pop(0)),
    )
    for mine, theirs in zip(weights("local", num_workers=0, num_envs=W * N), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert seeds == []


def test_workers_and_their_lives_draw_different_numbers(central, monkeypatch):
    drawn = []

    def watched(random_seed):
        drawn.append(tuple(random_seed.generate_state(4)))
        return create_training_environment(random_seed=random_seed)

    monkeypatch.setattr(remote_environments, "create_training_environment", watched)
    settings = remote.worker_settings(central(), 5, (0, 0))
    assert json.loads(json.dumps(settings)) == settings
    for number, life, iteration in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 3)]:
        for env in remote_environments.make_environments(number, life, **{**settings, "place": (iteration, 0)}):
            env.close()
    assert len(drawn) == len(set(drawn)) == 4 * N


def test_environments_are_closed_when_one_cannot_be_made(central, monkeypatch):
    closed = []

    def broken(random_seed):
        if random_seed.spawn_key[-1] == N - 1:
            raise RuntimeError("no more")
        env = create_training_environment(random_seed=random_seed)
        close = env.close
        env.close = lambda: (closed.append(env), close())
        return env

    monkeypatch.setattr(remote_environments, "create_training_environment", broken)
    with pytest.raises(RuntimeError, match="no more"):
        remote_environments.make_environments(0, 0, **remote.worker_settings(central(), 5, (0, 0)))
    assert len(closed) == N - 1


def test_a_resumed_run_has_fresh_workers_and_may_have_none(central, monkeypatch):
    drawn = []
    of_worker = run_seeds.of_worker
    monkeypatch.setattr(remote.run_seeds, "of_worker", lambda *place: drawn.append(place) or of_worker(*place))
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "sync")
    central().create_trainer().train()
    resumed = central(num_iterations=5).create_trainer()
    resumed.train()
    assert (resumed.counters.iterations, resumed.counters.env_steps) == (5, 5 * Q * T * B)
    assert sorted(drawn) == [(1, 0, 0, 0, 0), (1, 0, 0, 3, 0), (1, 1, 0, 0, 0), (1, 1, 0, 3, 0)]
    local = central(num_iterations=6, num_workers=0, num_envs=W * N).create_trainer()
    local.train()
    assert local.counters.iterations == 6
    assert local.driver.stats().get("workers") is None


def test_what_cannot_be_made_ends_the_run_with_its_own_error(central):
    gin.bind_parameter("create_environment.env_name", "NoSuchEnvironment-v7")
    with pytest.raises(Exception, match="NoSuchEnvironment"):
        central().create_trainer().train()


@pytest.mark.parametrize(
    ("trainer", "settings", "message"),
    [
        (SyncOffPolicyTrainer, {}, "num_workers=2 is for @async_off_policy_trainer"),
        (AsyncOffPolicyTrainer, {"exact_resume": True, "checkpoint_interval": 1}, "cannot go with exact_resume"),
    ],
)
def test_what_central_inference_cannot_do(central, trainer, settings, message):
    with pytest.raises(ValueError, match=message):
        central(trainer, **settings).create_trainer()
