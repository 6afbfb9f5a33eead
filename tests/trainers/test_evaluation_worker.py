"""Evaluations that a worker plays: the same numbers as in the learner's process, and training that never waits for them.

The workers here are threads of this process: what crosses is the same as between processes.
"""

from __future__ import annotations

import csv
import threading
import time

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.distributed import in_process_engine, member, ray_engine
from alf.distributed.in_process_engine import InProcessEngine
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.utils import create_environment
from alf.trainers import evaluation_worker, remote
from alf.trainers import seeds as run_seeds
from alf.trainers.building import build_algorithm
from alf.trainers.counts import EnvironmentEpisodes
from alf.trainers.evaluation import Evaluator
from alf.trainers.evaluation_result import Evaluation
from alf.trainers.evaluation_worker import EvaluationWorker
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.policy_trainer import create_evaluation_environment
from alf.trainers.remote_evaluation import make_evaluator
from alf.trainers.run_index import RunIndex
from alf.trainers.schedule import Schedule
from alf.trainers.worker_table import lines, read_workers
from alf.utils import gin_utils

FIXED = "tests.trainers.fixed_episodes:FixedEpisodes"
PATIENCE_SECS = 60.0


@pytest.fixture(autouse=True)
def _workers_are_threads(monkeypatch, _small_bindings):
    monkeypatch.setattr(ray_engine, "RayEngine", lambda address: InProcessEngine())
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    gin.bind_parameter("create_environment.env_name", FIXED)
    gin.bind_parameter("create_environment.num_parallel_environments", 2)


@pytest.fixture
def remote_config(small_config):
    def make(trainer=AsyncOffPolicyTrainer, **kwargs):
        settings = {"num_workers": 1, "num_envs": 2, "mini_batch_size": None, "evaluation_worker": True}
        evaluation = {} if "schedule" in kwargs else {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 3}
        return small_config(trainer, **{**settings, **evaluation, **kwargs})

    return make


def _algorithm(config):
    env = create_environment(nonparallel=True, seed=1)
    try:
        algorithm = build_algorithm(config, env)
        return algorithm, PolicyDriver(env, algorithm).weights()
    finally:
        env.close()


def _worker(config, rows=2, epsilon_greedy=0.0, threshold=None, number=1, life=0):
    return EvaluationWorker(number, life, remote.worker_settings(config, 5, (0, 0)), rows, epsilon_greedy, threshold)


def _prefer(weights, action):
    """The weights with a last bias that makes the policy always take `action`."""
    return [
        np.array([-100.0, 100.0] if action else [100.0, -100.0], np.float32) if w.shape == (2,) else w for w in weights
    ]


# ---- the worker ----


def test_it_plays_by_the_weights_that_it_is_sent(small_config):
    """Rewards are the actions, and an episode has five."""
    _, weights = _algorithm(small_config(AsyncOffPolicyTrainer))
    worker = _worker(small_config(AsyncOffPolicyTrainer), threshold=3.0)
    worker.begin()
    for number, action in enumerate((1, 0, 1)):
        answer = worker.evaluate(number, 10 + number, _prefer(weights, action), "episodes", 3, 100 + number, 50)
        result = Evaluation.of_plain(answer["result"])
        assert result.returns == (5.0 * action,) * 3
        assert (result.step, result.success_rate) == (100 + number, float(action))
        assert answer["tells_success"]
        assert answer["picture"] is None
        assert worker.beat()["version"] == 10 + number
    assert worker.beat()["steps"] >= 3 * 15
    worker.end()
    worker.end()


def test_the_same_number_has_the_same_answer(small_config):
    _, weights = _algorithm(small_config(AsyncOffPolicyTrainer))
    worker = _worker(small_config(AsyncOffPolicyTrainer))
    with pytest.raises(RuntimeError, match="Evaluation worker 1 has not begun"):
        worker.evaluate(0, 0, weights, "episodes", 1, 0, 50)
    assert worker.begin() == worker.begin()
    answer = worker.evaluate(7, 0, _prefer(weights, 1), "episodes", 1, 0, 50)
    steps = worker.beat()["steps"]
    assert worker.evaluate(7, 0, _prefer(weights, 0), "episodes", 1, 0, 50) is answer
    assert worker.beat()["steps"] == steps
    worker.end()


@pytest.mark.parametrize("rows", [1, 3])
def test_its_numbers_are_those_of_an_evaluator_with_the_same_seeds(small_config, tmp_path, rows):
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")
    config = small_config(AsyncOffPolicyTrainer)
    algorithm, weights = _algorithm(config)
    env_seed, acting_seed = run_seeds.of_worker(5, 1, 0, 0).evaluation.spawn(2)
    env = create_evaluation_environment(rows, env_seed)
    local = Evaluator(env, algorithm, 0.7, run_seeds.integer(acting_seed), str(tmp_path))
    wanted = [local.play(EnvironmentEpisodes(4), step) for step in (1, 2)]
    local.close()
    worker = _worker(config, rows, 0.7)
    worker.begin()
    found = [worker.evaluate(n, n, weights, "episodes", 4, n, 1000) for n in (1, 2)]
    assert [Evaluation.of_plain(answer["result"]) for answer in found] == wanted
    assert len(set(wanted[0].returns)) > 1
    worker.end()


def test_weights_of_another_algorithm_are_refused(small_config):
    _, weights = _algorithm(small_config(AsyncOffPolicyTrainer))
    worker = _worker(small_config(AsyncOffPolicyTrainer))
    worker.begin()
    with pytest.raises(ValueError, match="are not those of this algorithm"):
        worker.evaluate(0, 0, weights[:-1], "episodes", 1, 0, 50)
    worker.end()


def test_what_it_cannot_make_is_closed_and_told(small_config, monkeypatch):
    made = []

    def create(rows, seed):
        made.append(create_evaluation_environment(rows, seed))
        return made[-1]

    def fail(config, env):
        raise ArithmeticError("no networks")

    monkeypatch.setattr(evaluation_worker, "create_evaluation_environment", create)
    monkeypatch.setattr(evaluation_worker, "build_algorithm", fail)
    closed = []
    worker = _worker(small_config(AsyncOffPolicyTrainer))
    monkeypatch.setattr(type(create_environment(nonparallel=True, seed=1)), "close", lambda self: closed.append(self))
    with pytest.raises(ArithmeticError, match="no networks"):
        worker.begin()
    assert closed == made


# ---- in a run ----


def _rows(tmp_path):
    with open(tmp_path / "run" / "eval" / "stats.csv", newline="") as file:
        return list(csv.DictReader(file))


def _tags(tmp_path):
    events = list((tmp_path / "run" / "eval").glob("events.out.tfevents.*"))
    found = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset([str(e) for e in events])]
    return {(event.step, value.tag) for event in found for value in event.summary.value}


def test_a_run_records_what_its_worker_plays_as_its_own(remote_config, tmp_path):
    trainer = remote_config(num_iterations=4, summary_interval=1, reward_success_threshold=4.0).create_trainer()
    trainer.initialize()
    evaluator = trainer._pool.evaluator
    after, evaluated = trainer._after_iteration, []

    def watched():
        after()
        # As slow a learner as lets each evaluation come to its end.
        deadline = time.monotonic() + PATIENCE_SECS
        while evaluator._errand is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        evaluated.append(evaluator.played)

    trainer._after_iteration = watched
    trainer.train()
    history = trainer._evaluations.history.all
    assert [e.step for e in history] == [1, 2, 3, 4]
    assert {e.episodes for e in history} == {3}
    # The last is due when the run ends already, and is played by the learner itself.
    assert evaluated == [1, 2, 3, 3]
    assert {(e.step, "Metrics/AverageReturn") for e in history} <= _tags(tmp_path)
    assert {(e.step, "Metrics/SuccessRate") for e in history} <= _tags(tmp_path)
    assert len(_rows(tmp_path)) == 4
    best = RunIndex.load(str(tmp_path / "run")).best()
    assert best.reward == max(e.average_return for e in history)
    assert best.step == next(e.step for e in history if e.average_return == best.reward)
    problems: list[str] = []
    table = read_workers(str(tmp_path / "run"), problems)
    assert problems == []
    assert [row["worker"] for row in table["workers"]] == [0, "evaluator"]
    assert table["workers"][1]["evaluations"] == 3
    assert any("evaluations" in line for line in lines(table))
    assert any(line.split()[:2] == ["evaluator", "stopped"] for line in lines(table))


def test_weights_are_those_of_the_moment_when_it_begins(remote_config):
    """What is learned while it is under way does not show."""
    trainer = remote_config().create_trainer()
    with trainer:
        trainer.initialize()
        trainer._begin()
        beside, algorithm = trainer._evaluations._beside, trainer.algorithm
        (bias,) = [w for w in algorithm.trainable_variables if w.shape == [2]]
        for step, action in enumerate((1, 0)):
            bias.assign([-100.0, 100.0] if action else [100.0, -100.0])
            assert beside.start(EnvironmentEpisodes(2), step, 50)
            bias.assign([100.0, -100.0] if action else [-100.0, 100.0])
            result = beside.take(wait=True)
            # A tenth of the actions is sampled, of a policy that is sure.
            assert (result.step, result.returns) == (step, (5.0 * action,) * 2)


def test_a_worker_that_is_lost_costs_evaluations_and_nothing_else(remote_config, monkeypatch, logged):
    gin.bind_parameter("RemoteEvaluator.max_attempts", 1)

    def fail(self, *args):
        raise ArithmeticError("the evaluation broke")

    monkeypatch.setattr(EvaluationWorker, "evaluate", fail)
    trainer = remote_config(num_iterations=3, eval_interval=2).create_trainer()
    trainer.train()
    assert trainer.counters.iterations == 3
    assert trainer._evaluations.history.all == []
    assert trainer._pool.evaluator.skipped == 1
    assert any("The evaluation of version 2 is skipped" in line for line in logged)
    assert trainer.driver.stats()["skipped_evaluations"] == 1


def test_a_pending_evaluation_is_waited_for_at_the_end_but_not_for_ever(remote_config, monkeypatch):
    gin.bind_parameter("RemoteEvaluator.wait_timeout_secs", 0.3)
    monkeypatch.setattr(in_process_engine, "_STOP_TIMEOUT_SECS", 0.3)
    let_go = threading.Event()
    monkeypatch.setattr(EvaluationWorker, "evaluate", lambda self, *args: let_go.wait(PATIENCE_SECS))
    try:
        trainer = remote_config(num_iterations=3, eval_interval=2).create_trainer()
        trainer.train()
        assert trainer._pool.evaluator.skipped == 1
        assert trainer.counters.iterations == 3
    finally:
        let_go.set()


def test_without_workers_it_is_beside(remote_config):
    trainer = remote_config(SyncOffPolicyTrainer, num_workers=0).create_trainer()
    trainer.train()
    history = trainer._evaluations.history.all
    assert history[0].step == 1
    assert history[-1].step == 3
    assert trainer._evaluations._beside is not None


def test_a_schedule_ends_with_an_evaluation_of_what_it_ends_with(remote_config):
    schedule = Schedule("0 env_steps", "2 training_steps", "2 episodes", "3 training_steps")
    trainer = remote_config(schedule=schedule).create_trainer()
    trainer.train()
    assert [e.step for e in trainer._evaluations.history.all] == [2, 3]


def test_it_needs_something_to_evaluate(remote_config):
    with pytest.raises(ValueError, match="evaluation_worker=True has nothing to evaluate"):
        remote_config(evaluate=False)


def test_settings_that_only_the_worker_uses_are_looked_at_in_the_learner(remote_config):
    def evaluator(max_side):
        gin.bind_parameter("EpisodeVideo.max_side", max_side)
        return make_evaluator(InProcessEngine(), remote_config(), {}, 1)

    evaluator(100)
    assert "alf.EpisodeVideo.max_side" not in gin_utils.unused_bindings()
    with pytest.raises(ValueError, match=r"EpisodeVideo\.max_side=2 must be at least 8"):
        evaluator(2)
