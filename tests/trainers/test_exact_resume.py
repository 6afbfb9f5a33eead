"""An interrupted run that goes on is bit for bit the run that was never interrupted."""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import threading
import time

import gin
import numpy as np
import pytest

from alf.drivers import threads
from alf.metrics.tables import read_csv
from alf.trainers.counts import EnvironmentSteps
from alf.trainers.evaluations import Evaluations
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.run_index import RunIndex
from alf.trainers.schedule import Schedule
from alf.trainers.seeds import reseed_process
from tests.trainers.fixed_episodes import FixedEpisodes
from tests.trainers.small_run import fail_after

pytestmark = pytest.mark.slow

EXACT = {"exact_resume": True, "checkpoint_interval": 2}


def _run(trainer_class, small_config, **kwargs):
    trainer = small_config(trainer_class, **{**EXACT, **kwargs}).create_trainer()
    trainer.train()
    return trainer


def _assert_same(a, b):
    for x, y in zip(a.algorithm.variables, b.algorithm.variables, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=x.name)
    assert (a.counters.iterations, a.counters.env_steps) == (b.counters.iterations, b.counters.env_steps)
    for x, y in zip(a.driver.get_metrics(), b.driver.get_metrics(), strict=True):
        for name, value in x.state_dict().items():
            np.testing.assert_array_equal(value, y.state_dict()[name], err_msg=f"{x.name} {name}")


@pytest.mark.parametrize(
    ("trainer_class", "bindings"),
    [
        (SyncOffPolicyTrainer, {}),
        (OnPolicyTrainer, {}),
        (AsyncOffPolicyTrainer, {"mode": "lockstep"}),
        (AsyncOffPolicyTrainer, {"mode": "sync", "num_actor_queues": 1, "actor_queue_cap": 2}),
    ],
    ids=["sync_trainer", "on_policy_trainer", "async_lockstep", "async_sync_with_actors"],
)
def test_two_halves_make_the_whole(trainer_class, bindings, small_config, tmp_path):
    for name, value in bindings.items():
        gin.bind_parameter(f"AsyncOffPolicyDriver.{name}", value)
    whole = _run(trainer_class, small_config, root_dir=str(tmp_path / "whole"), num_iterations=4)
    _run(trainer_class, small_config, num_iterations=2)
    halves = _run(trainer_class, small_config, num_iterations=4)
    _assert_same(whole, halves)
    # Though environments and driver were made anew at the checkpoint between.
    assert whole.driver.stats()["env_steps"] == whole.counters.env_steps
    lags = whole.driver.lag_histogram()
    assert lags is None or lags.sum() == whole.counters.env_steps / whole.driver._batch_size


def test_an_iteration_that_a_signal_cuts_is_made_again(small_config, tmp_path):
    """After the first of its two updates, which do not count."""
    whole = _run(OnPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=4)
    cut = small_config(OnPolicyTrainer, **EXACT, num_iterations=4).create_trainer()
    cut.initialize()
    train, updates = cut.algorithm.train, []

    def interrupted():
        updates.append(train())
        if len(updates) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    object.__setattr__(cut.algorithm, "train", interrupted)
    cut.train()
    assert (cut.counters.iterations, cut.counters.env_steps, len(updates)) == (2, 64, 5)
    _assert_same(whole, _run(OnPolicyTrainer, small_config, num_iterations=4))


@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])
def test_a_trainer_that_improves_twice_makes_the_whole_too(trainer_class, small_config, tmp_path):
    """Its first part ends with a periodic checkpoint, at which the environments are closed."""
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    whole = _run(trainer_class, small_config, root_dir=str(tmp_path / "whole"), num_iterations=4)
    twice = Schedule(improve_steps="2 training_steps", improve_is="additional")
    with small_config(trainer_class, **EXACT, num_iterations=0, schedule=twice).create_trainer() as trainer:
        trainer.improve()
        assert trainer.counters.iterations == 2
        trainer.improve()
        trainer.driver.stop()
        _assert_same(whole, trainer)


RANDOM_FIRST = {"num_iterations": 0, "schedule": Schedule("40 env_steps", improve_steps="4 training_steps")}


@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])
def test_after_a_random_heatup(trainer_class, small_config, tmp_path):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    whole = _run(trainer_class, small_config, root_dir=str(tmp_path / "whole"), **RANDOM_FIRST)
    half = Schedule("40 env_steps", improve_steps="2 training_steps")
    _run(trainer_class, small_config, num_iterations=0, schedule=half)
    halves = _run(trainer_class, small_config, **RANDOM_FIRST)
    _assert_same(whole, halves)
    assert whole.counters[Phase.HEATUP].of(EnvironmentSteps) >= EnvironmentSteps(40)


def test_a_heatup_that_was_interrupted_begins_anew(small_config, tmp_path, caplog):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    gin.bind_parameter("StatsReporter.log_episodes", True)
    gin.bind_parameter("create_environment.env_name", functools.partial(FixedEpisodes, 3))
    whole = _run(AsyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), **RANDOM_FIRST)
    first = small_config(AsyncOffPolicyTrainer, **EXACT, **RANDOM_FIRST).create_trainer()
    first.initialize()
    batches = []

    def interrupt_the_second(exp):
        batches.append(exp)
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    first.algorithm.add_experience_observer(interrupt_the_second)
    first.train()
    assert first.counters[Phase.HEATUP].of(EnvironmentSteps) > EnvironmentSteps(0)
    assert [r.step for r in RunIndex.load(str(tmp_path / "run")).records()] == [0]
    with caplog.at_level("INFO", logger="absl"):
        _assert_same(whole, _run(AsyncOffPolicyTrainer, small_config, **RANDOM_FIRST))
    assert "begins anew" in caplog.text
    tables = [(tmp_path / name / "train" / "episodes.csv").read_text().splitlines() for name in ("whole", "run")]
    assert len(tables[0]) == len(tables[1]) > 1, "nothing of the part that is replaced"


def test_no_episode_has_two_rows(small_config, tmp_path, monkeypatch):
    """Those of the iteration after the periodic checkpoint, which is made again, are gone."""
    gin.bind_parameter("StatsReporter.log_episodes", True)
    gin.bind_parameter("create_environment.env_name", functools.partial(FixedEpisodes, 3))
    _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=4)
    after = SyncOffPolicyTrainer._after_iteration

    def interrupted(trainer):
        after(trainer)
        if trainer.counters.iterations == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SyncOffPolicyTrainer, "_after_iteration", interrupted)
    assert _run(SyncOffPolicyTrainer, small_config, num_iterations=4).counters.iterations == 3
    monkeypatch.setattr(SyncOffPolicyTrainer, "_after_iteration", after)
    _run(SyncOffPolicyTrainer, small_config, num_iterations=4)
    tables = [list(read_csv(str(tmp_path / name / "train" / "episodes.csv"))) for name in ("whole", "run")]
    columns = ("episode", "iteration", "row", "return")
    assert [[row[c] for c in columns] for row in tables[0]] == [[row[c] for c in columns] for row in tables[1]]


@pytest.mark.parametrize("beside", [False, True])
def test_evaluations_after_a_resume_are_those_of_the_whole(beside, small_config, tmp_path):
    """With sampled actions, so that an evaluation follows from its random numbers."""
    settings = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 2, "epsilon_greedy": 1.0}
    settings |= {"evaluate_beside": beside, "checkpoint_max_to_keep": None}
    whole = _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=4, **settings)
    _run(SyncOffPolicyTrainer, small_config, num_iterations=2, **settings)
    halves = _run(SyncOffPolicyTrainer, small_config, num_iterations=4, **settings)
    _assert_same(whole, halves)
    both = [{e.step: e for e in trainer._evaluations.history.all} for trainer in (whole, halves)]
    shared = sorted(both[0].keys() & both[1].keys())
    assert shared[-1] == 4
    assert beside or shared == [1, 2, 3, 4]
    for step in shared:
        assert both[0][step].returns == both[1][step].returns, step
    assert len({both[0][step].returns for step in shared}) > 1, "they do not repeat the first one's numbers"


EVALUATED = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 2, "epsilon_greedy": 1.0}


def test_checkpoints_by_env_steps_are_made_where_an_evaluation_has_just_saved(small_config, tmp_path):
    settings = EVALUATED | {"checkpoint_at_evaluation": True, "checkpoint_interval": 0, "checkpoint_env_steps": 32}
    whole = _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=5, **settings)
    _run(SyncOffPolicyTrainer, small_config, num_iterations=3, **settings)
    periodic = [r.step for r in RunIndex.load(str(tmp_path / "run")).records() if "periodic" in r.kinds]
    assert periodic == [0, 2], "env steps 16, 32 and 48 were evaluated, and saved"
    _assert_same(whole, _run(SyncOffPolicyTrainer, small_config, num_iterations=5, **settings))


def test_metrics_are_whole_in_a_checkpoint_that_an_evaluation_saves(small_config, tmp_path, monkeypatch):
    """Metrics are counted by a thread of their own, which may come behind an evaluation."""
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    settings = EVALUATED | {"checkpoint_at_evaluation": True}
    whole = _run(AsyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=4, **settings)
    feed = threads.feed

    def slowly(*args):
        time.sleep(0.3)
        feed(*args)

    with monkeypatch.context() as slow:
        slow.setattr(threads, "feed", slowly)
        _run(AsyncOffPolicyTrainer, small_config, num_iterations=2, **settings)
    _assert_same(whole, _run(AsyncOffPolicyTrainer, small_config, num_iterations=4, **settings))


def test_a_failure_costs_no_metrics(small_config, monkeypatch):
    """They are in the checkpoint that is written after it, whatever their thread was behind by then."""
    feed = threads.feed

    def slowly(*args):
        time.sleep(0.3)
        feed(*args)

    failing = small_config(AsyncOffPolicyTrainer, num_iterations=100).create_trainer()
    failing.initialize()
    fail_after(failing, 2)
    with monkeypatch.context() as slow, pytest.raises(MemoryError, match="on purpose"):
        slow.setattr(threads, "feed", slowly)
        failing.train()
    resumed = small_config(AsyncOffPolicyTrainer, num_iterations=100).create_trainer()
    resumed.initialize()
    counted = [[float(m.result()) for m in t.driver.get_step_metrics()] for t in (failing, resumed)]
    resumed.close()
    assert counted[0][1] > 0
    assert counted[0] == counted[1]


@pytest.mark.parametrize("exact", [False, True])
def test_observers_slower_than_learning_get_all_of_it(exact, small_config):
    """At the end, and at the checkpoints of a run that goes on exactly, though `stop` waits for threads less long."""
    taken, seen = [], []

    def slow(trajectory, *_):
        time.sleep(0.4)
        seen.append(trajectory.reward.size)

    class Watched(AsyncOffPolicyTrainer):
        def _init_driver(self, *args):
            driver = super()._init_driver(*args)
            driver.observers.append(slow)
            return driver

    gin.bind_parameter("AsyncOffPolicyDriver.learn_queue_cap", 6)
    gin.bind_parameter("AsyncOffPolicyDriver.stop_timeout_secs", 1.0)
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    settings = {"checkpoint_interval": 1, "exact_resume": True} if exact else {"checkpoint_interval": 0}
    trainer = small_config(Watched, num_iterations=3, **settings).create_trainer()
    trainer.initialize()
    trainer.algorithm.add_experience_observer(lambda exp: taken.append(exp.reward.shape.num_elements()))
    trainer.train()
    assert sum(seen) == sum(taken) > 0


def test_an_evaluation_beside_training_that_ends_last_is_in_the_last_checkpoint(small_config):
    settings = EVALUATED | {"eval_interval": 2, "evaluate_beside": True, "checkpoint_interval": 1, "num_iterations": 3}
    trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    trainer.initialize()
    gate, evaluator = threading.Event(), trainer._evaluations.prepare()
    play, after = evaluator.play, trainer._after_iteration
    evaluator.play = lambda *args: (gate.wait(60), play(*args))[1]

    def watched():
        after()
        if trainer.counters.iterations == 3:
            gate.set()

    trainer._after_iteration = watched
    trainer.train()
    done = trainer._evaluations.history.all
    assert [evaluation.step for evaluation in done] == [2]
    with small_config(SyncOffPolicyTrainer, **settings).create_trainer() as again:
        again.initialize()
        assert [evaluation.returns for evaluation in again._evaluations.history.all] == [done[0].returns]
        assert again.counters[Phase.TEST].of(EnvironmentSteps) == trainer.counters[Phase.TEST].of(EnvironmentSteps)


def test_an_evaluation_that_was_interrupted_is_played_again(small_config, tmp_path, monkeypatch):
    settings = EVALUATED | {"eval_interval": 2}
    whole = _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=5, **settings)
    play = Evaluations.play

    def interrupted(self, count, step, *args):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return play(self, count, step, *args)

    with monkeypatch.context() as cut:
        cut.setattr(Evaluations, "play", interrupted)
        assert _run(SyncOffPolicyTrainer, small_config, num_iterations=5, **settings).counters.iterations == 4
    halves = _run(SyncOffPolicyTrainer, small_config, num_iterations=5, **settings)
    _assert_same(whole, halves)
    both = [{e.step: e.returns for e in trainer._evaluations.history.all} for trainer in (whole, halves)]
    assert both[0] == both[1]


def test_a_plain_run_resumes_on_other_numbers(small_config, tmp_path):
    """The oracle above can tell runs apart: without exact_resume the halves differ from the whole."""
    whole = _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "w"), num_iterations=4, exact_resume=False)
    _run(SyncOffPolicyTrainer, small_config, num_iterations=2, exact_resume=False)
    halves = _run(SyncOffPolicyTrainer, small_config, num_iterations=4, exact_resume=False)
    with pytest.raises(AssertionError):
        _assert_same(whole, halves)


def test_what_draws_from_the_process_draws_by_the_iteration():
    def drawn(iteration):
        reseed_process(np.random.SeedSequence(3), iteration)
        return random.random(), float(np.random.random())

    at_four, at_five, again = drawn(4), drawn(5), drawn(4)
    assert again == at_four
    assert at_four[0] != at_five[0]
    assert at_four[1] != at_five[1]


def test_interrupted_between_two_checkpoints(small_config, tmp_path):
    whole = _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), num_iterations=5)
    _run(SyncOffPolicyTrainer, small_config, num_iterations=3, checkpoint_max_to_keep=1)
    names = [r.name for r in RunIndex.load(str(tmp_path / "run")).records()]
    assert names == ["ckpt-2", "ckpt-3"], "the periodic one stays, since the run goes on from it"
    again = _run(SyncOffPolicyTrainer, small_config, num_iterations=3)
    assert again.counters.iterations == 3, "a finished run stays as it is"
    _assert_same(whole, _run(SyncOffPolicyTrainer, small_config, num_iterations=5))


def test_what_exact_resume_needs(small_config):
    with pytest.raises(ValueError, match="checkpoint_interval=0 writes none: set it, or checkpoint_env_steps, above 0"):
        small_config(SyncOffPolicyTrainer, **EXACT | {"checkpoint_interval": 0})
    with pytest.raises(ValueError, match="exact_resume needs random_seed"):
        small_config(SyncOffPolicyTrainer, exact_resume=True, random_seed=None)
    with pytest.raises(ValueError, match="follows the clock"):
        small_config(SyncOffPolicyTrainer, exact_resume=True, checkpoint_save_secs=5)
    trainer = small_config(AsyncOffPolicyTrainer, exact_resume=True).create_trainer()
    with pytest.raises(ValueError, match="mode = 'lockstep'"):
        trainer.initialize()


SAMPLED = {
    "whole_replay_buffer_training": False,
    "mini_batch_length": 2,
    "mini_batch_size": 4,
    "checkpoint_replay": True,
}


@pytest.mark.parametrize("settings", [{"num_iterations": 5}, RANDOM_FIRST | SAMPLED], ids=["plain", "replay"])
def test_interrupted_before_the_first_checkpoint(settings, small_config, tmp_path):
    settings = settings | {"checkpoint_interval": 10}
    whole = _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), **settings)

    def interrupt(trainer):
        trainer.initialize()
        trainer.algorithm.add_after_train_hook(
            lambda: trainer.counters.iterations == 1 and os.kill(os.getpid(), signal.SIGTERM)
        )
        trainer.train()
        return trainer.counters.iterations

    assert interrupt(small_config(SyncOffPolicyTrainer, **EXACT | settings).create_trainer()) == 2
    again = _run(SyncOffPolicyTrainer, small_config, **settings)
    _assert_same(whole, again)
    assert again._iterations_here == again.counters.iterations, "from the beginning"


def test_a_later_schedule_may_have_other_evaluations(small_config):
    schedules = [
        Schedule("0 env_steps", "1 training_steps", f"{episodes} episodes", "2 training_steps", improve_is="additional")
        for episodes in (1, 2)
    ]
    settings = EXACT | {"num_iterations": 0, "schedule": schedules[0]}
    with small_config(SyncOffPolicyTrainer, **settings).create_trainer() as trainer:
        trainer.improve()
        trainer.set_schedule_params(schedules[1])
        trainer.improve()
        assert [e.episodes for e in trainer._evaluations.history.all] == [1, 1, 2, 2]


def test_what_the_time_went_to_adds_up_over_new_streams(small_config):
    trainer = small_config(SyncOffPolicyTrainer, **EXACT, num_iterations=5).create_trainer()
    trainer.initialize()
    seen = []
    after = trainer._after_iteration
    trainer._after_iteration = lambda: (seen.append(trainer.driver.timings()), after())
    trainer.train()
    for before, now in itertools.pairwise(seen):
        assert now.environment > before.environment
        assert now.inference > before.inference


def test_tables_of_a_run_that_goes_back_to_its_first_checkpoint(small_config, tmp_path):
    gin.bind_parameter("StatsReporter.log_episodes", True)
    gin.bind_parameter("create_environment.env_name", functools.partial(FixedEpisodes, 3))
    settings = RANDOM_FIRST | SAMPLED | {"checkpoint_interval": 10}
    _run(SyncOffPolicyTrainer, small_config, root_dir=str(tmp_path / "whole"), **settings)
    first = small_config(SyncOffPolicyTrainer, **EXACT | settings).create_trainer()
    first.initialize()
    first.algorithm.add_after_train_hook(lambda: os.kill(os.getpid(), signal.SIGTERM))
    first.train()
    assert first.counters.iterations == 1
    _run(SyncOffPolicyTrainer, small_config, **settings)
    tables = [(tmp_path / name / "train" / "episodes.csv").read_text().splitlines() for name in ("whole", "run")]
    assert len(tables[0]) == len(tables[1]) > 1
