"""The phases of a trainer, one by one and strung together by a schedule.

Two environments with episodes of 5 actions and segments of 4 steps: an environment ends an episode in its steps 5, 11,
17, ... (the step after each leads to the next first observation), and a segment of both is 8 environment steps.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
from types import SimpleNamespace

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.trainers import improving, progress
from alf.trainers.checkpointing import Checkpointer
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.run_index import RunIndex
from alf.trainers.schedule import Schedule
from alf.trainers.stopping import MeanReturn, TimeLimit
from tests.trainers.fixed_episodes import FixedEpisodes

UNITS = (EnvironmentSteps, EnvironmentEpisodes, TrainingSteps)


@pytest.fixture(autouse=True)
def _fixed_episodes():
    gin.bind_parameter("create_environment.env_name", FixedEpisodes)
    gin.bind_parameter("create_environment.num_parallel_environments", 2)
    FixedEpisodes.resets = 0


def _totals(trainer, phase):
    return tuple(trainer.counters[phase].of(unit).value for unit in UNITS)


def _ends(segments):
    """Episodes that two environments have ended after so many segments."""
    return 2 * sum(1 for step in range(1, 4 * segments + 1) if step % 6 == 5)


def _watch(trainer):
    """The experience that the algorithm of a trainer gets."""
    seen = []
    trainer.initialize()
    trainer.algorithm.add_experience_observer(seen.append)
    return seen


def _prefer_action(action, trainer):
    weights = trainer.algorithm.trainable_variables
    bias = [w for w in weights if w.shape == [2]]
    assert len(bias) == 1
    bias[0].assign([-100.0, 100.0] if action else [100.0, -100.0])


def test_improve_runs_the_schedule(small_config):
    schedule = Schedule("20 env_steps", "3 training_steps", "2 episodes", "7 training_steps")
    trainer = small_config(SyncOffPolicyTrainer, schedule=schedule).create_trainer()
    seen = _watch(trainer)
    trainer.train()
    # 20 steps are 3 segments; after these each environment ends an episode in the fifth.
    assert _totals(trainer, Phase.HEATUP) == (40, _ends(5), 0)
    assert _totals(trainer, Phase.TRAIN) == (56, _ends(12) - _ends(5), 7)
    assert _totals(trainer, Phase.TEST) == (3 * 2 * 5, 3 * 2, 0)
    assert all(trainer.counters[phase].of(Seconds) > Seconds(0) for phase in Phase)
    assert len(seen) == 12
    assert int(trainer.algorithm.iterations) == trainer.counters.iterations == 7
    records = RunIndex.load(trainer._root_dir)
    best = max(e.average_return for e in trainer._evaluations.history.all)
    assert [e.step for e in trainer._evaluations.history.all] == [3, 6, 7]
    assert records.best() is not None
    assert (records.best().reward, records.best().reward_episodes) == (best, 2)
    assert records.run["why"] == "improve_steps: 7 training_steps are reached"


@pytest.mark.parametrize(
    ("improve", "iterations"),
    [("30 env_steps", 4), ("3 episodes", 3), (["9 training_steps", "16 env_steps"], 2), ("0.0001 seconds", 1)],
)
def test_improve_ends_by_any_unit_and_not_after_a_whole_period(small_config, improve, iterations):
    schedule = Schedule("0 env_steps", "1000 training_steps", "1 episodes", improve)
    trainer = small_config(SyncOffPolicyTrainer, schedule=schedule).create_trainer()
    trainer.train()
    assert trainer.counters.iterations == iterations


def test_total_and_additional_and_a_heatup_that_is_done_once(small_config):
    def run(**settings):
        schedule = Schedule("8 env_steps", improve_steps="2 training_steps", **settings)
        trainer = small_config(SyncOffPolicyTrainer, schedule=schedule).create_trainer()
        trainer.train()
        return trainer

    heatup = _totals(run(), Phase.HEATUP)
    assert heatup == (16, 2, 0)
    assert run().counters.iterations == 2
    more = run(improve_is="additional")
    assert more.counters.iterations == 4
    assert _totals(more, Phase.HEATUP) == heatup


@pytest.mark.parametrize(
    ("improve_is", "limit", "expected"), [("total", 6, [3 / 6, 4 / 6]), ("additional", 4, [1 / 4, 2 / 4])]
)
def test_the_share_done_is_of_what_is_to_be_done(small_config, improve_is, limit, expected):
    small_config(SyncOffPolicyTrainer, num_iterations=2).create_trainer().train()
    schedule = Schedule(improve_steps=f"{limit} training_steps", improve_is=improve_is)
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=0, schedule=schedule).create_trainer()
    trainer.initialize()
    shares, after = [], trainer._after_iteration
    trainer._after_iteration = lambda: (shares.append(trainer.share_done()), after())
    trainer.train()
    assert shares[:2] == pytest.approx(expected)
    assert shares[-1] == 1.0


def test_a_heatup_that_is_interrupted_again_loses_nothing(small_config, monkeypatch):
    schedule = Schedule("96 env_steps", improve_steps="1 training_steps")
    settings = {"schedule": schedule, "mini_batch_length": 2, "checkpoint_replay": True}
    settings["whole_replay_buffer_training"] = False
    done, begins, seeds = [], [], []
    create = SyncOffPolicyTrainer._create_environment

    def created(self, random_seed, **kwargs):
        seeds.append(random_seed.generate_state(1)[0])
        return create(self, random_seed=random_seed, **kwargs)

    monkeypatch.setattr(SyncOffPolicyTrainer, "_create_environment", created)
    for _ in range(3):
        trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
        trainer.initialize()
        done.append(
            (trainer.counters[Phase.HEATUP].of(EnvironmentSteps).value, trainer.algorithm.exp_replayer.total_steps)
        )
        seen = _watch(trainer)
        trainer.algorithm.add_experience_observer(
            lambda exp, seen=seen: len(seen) == 3 and os.kill(os.getpid(), signal.SIGTERM)
        )
        trainer.train()
        assert trainer.counters.iterations == 0
        begins.append((seeds[-1], seen[0].action.numpy().tolist()))
    assert done == [(0, 0), (24, 24), (48, 48)]
    # Nothing is in the memory twice: each part has environments and random actions of other seeds.
    for one, other in itertools.combinations(begins, 2):
        assert one[0] != other[0]
        assert one[1] != other[1]


@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, OnPolicyTrainer])
def test_heatup_at_random_or_by_the_policy_trains_nothing(trainer_class, small_config, tmp_path):
    for by_policy in (False, True):
        schedule = Schedule(improve_steps="1 training_steps", heatup_using_network_decisions=by_policy)
        root = str(tmp_path / str(by_policy))
        with small_config(trainer_class, root_dir=root, schedule=schedule).create_trainer() as trainer:
            seen = _watch(trainer)
            _prefer_action(0, trainer)
            before = [v.numpy() for v in trainer.algorithm.variables]
            done = trainer.heatup(EnvironmentSteps(80))
            assert tuple(done) == _totals(trainer, Phase.HEATUP)[:2]
            assert _totals(trainer, Phase.TRAIN) == (0, 0, 0)
            actions = np.concatenate([exp.action.numpy().ravel() for exp in seen])
            assert len(actions) == done.environment_steps >= 80
            assert set(actions) == ({0} if by_policy else {0, 1})
            for old, new in zip(before, trainer.algorithm.variables, strict=True):
                np.testing.assert_array_equal(old, new.numpy())


def test_counts_of_nothing_do_nothing(small_config):
    trainer = small_config(SyncOffPolicyTrainer).create_trainer()
    assert trainer.heatup(EnvironmentSteps(0)) == (0, 0)
    trainer.train_and_act(TrainingSteps(0))
    assert trainer.evaluate(EnvironmentEpisodes(0)) is False
    assert FixedEpisodes.resets == 0
    assert trainer.get_success_rate() is None
    trainer.close()


def test_act_train_and_evaluate_one_by_one(small_config):
    with small_config(SyncOffPolicyTrainer).create_trainer() as trainer:
        assert trainer.act(EnvironmentSteps(9)) == (16, 2)
        assert trainer.act(EnvironmentEpisodes(1)) == (8, 2)
        assert trainer.act(EnvironmentSteps(1), wait_for_full_episodes=True) == (8 + 8, 2)
        assert _totals(trainer, Phase.TRAIN) == (40, 6, 0)
        assert trainer.get_current_episodes_count() == 6
        trainer.train_and_act(TrainingSteps(2))
        assert _totals(trainer, Phase.TRAIN)[2] == 2
        trainer.train_and_act(EnvironmentSteps(17))
        assert _totals(trainer, Phase.TRAIN) == (40 + 16 + 24, _ends(10), 5)
        assert trainer.evaluate(EnvironmentEpisodes(3)) is False
        assert _totals(trainer, Phase.TEST) == (15, 3, 0)
        with trainer.phase_context(Phase.TEST):
            assert trainer.get_current_episodes_count() == 3
            with pytest.raises(ValueError, match="call evaluate"):
                trainer.act(EnvironmentSteps(1))
        for call in (trainer.act, trainer.heatup):
            with pytest.raises(ValueError, match=r"acting: count=.* it takes env_steps or episodes or seconds"):
                call(TrainingSteps(1))
        with pytest.raises(ValueError, match=r"evaluating: count=.* it takes episodes or env_steps"):
            trainer.evaluate(Seconds(1))
        assert trainer.phase is Phase.TRAIN


def test_counts_may_be_texts_as_in_a_schedule(small_config):
    with small_config(SyncOffPolicyTrainer).create_trainer() as trainer:
        assert trainer.act("9 env_steps") == (16, 2)
        trainer.train_and_act("2 training_steps")
        trainer.evaluate("3 episodes")
        assert (_totals(trainer, Phase.TRAIN)[2], _totals(trainer, Phase.TEST)[1]) == (2, 3)
        for call in (trainer.heatup, trainer.act, trainer.train_and_act, trainer.evaluate):
            with pytest.raises(ValueError, match="count=10 has no unit: write for example '10 "):
                call(10)


def test_act_until_an_episode_ends(small_config):
    with small_config(SyncOffPolicyTrainer).create_trainer() as trainer:
        none = trainer.act(EnvironmentSteps(1), until_episode_end=True)
        assert (none, none.episode_ended) == ((8, 0), False)
        first = trainer.act(EnvironmentSteps(1000), until_episode_end=True)
        assert (first, first.episode_ended) == ((8, 2), True)
        # Episodes of before do not count, and its end is that of the present phase.
        with trainer.phase_context(Phase.HEATUP):
            assert trainer.act(EnvironmentEpisodes(1000), until_episode_end=True) == (8, 2)
        with pytest.raises(ValueError, match="give one of the two"):
            trainer.act(EnvironmentSteps(1), True, until_episode_end=True)


def test_whether_a_behavior_is_due(small_config):
    schedule = Schedule("8 env_steps", improve_steps="2 training_steps")
    with small_config(SyncOffPolicyTrainer, schedule=schedule).create_trainer() as trainer:
        assert not trainer.should_train()
        trainer.heatup(EnvironmentSteps(8))
        assert trainer.should_train()
        for phase in (Phase.HEATUP, Phase.TEST):
            with trainer.phase_context(phase):
                assert not trainer.should_train()
        trained = 0
        while trainer.should_train():
            trainer.train_and_act(TrainingSteps(1))
            trained += 1
        assert trained == 2


def test_episodes_that_do_not_end_are_not_waited_for(small_config, caplog):
    gin.bind_parameter("create_environment.env_name", functools.partial(FixedEpisodes, None))
    schedule = Schedule("8 env_steps", "1 training_steps", "3 episodes", "1 training_steps", max_episode_steps=20)
    trainer = small_config(SyncOffPolicyTrainer, schedule=schedule, stop_conditions=[MeanReturn(-1e9)]).create_trainer()
    with caplog.at_level("WARNING"):
        trainer.train()
    assert _totals(trainer, Phase.HEATUP) == (8 + 40, 0, 0)
    assert _totals(trainer, Phase.TEST) == (2 * 20, 0, 0)  # two episodes side by side
    assert "HEATUP: in 2 of 2 environments the episode has not ended after 20 more steps" in caplog.text
    assert "Evaluation: an episode has not ended after 20 steps" in caplog.text
    assert np.isnan(trainer.get_success_rate())
    assert not trainer.should_stop()


def test_stop_conditions_end_training(small_config, caplog):
    schedule = Schedule("0 env_steps", "2 training_steps", "2 episodes")
    conditions = {"stop_conditions": [TimeLimit(1e9), MeanReturn(0.0)], "reward_success_threshold": 1.0}
    config = small_config(SyncOffPolicyTrainer, schedule=schedule, **conditions)
    trainer = config.create_trainer()
    trainer.train()
    assert trainer.counters.iterations == 2
    assert trainer.should_stop()
    index = RunIndex.load(trainer._root_dir)
    assert "the mean return of 2 evaluation episodes is" in index.run["why"]
    assert index.run["status"] == "finished"
    # It is as finished when it is called again, by what the checkpoint remembers of the evaluation.
    again = config.create_trainer()
    again.train()
    assert again.counters.iterations == 2
    assert again._evaluations.history.all == trainer._evaluations.history.all


@pytest.mark.parametrize("evaluated", [False, True])
def test_the_time_limit_counts_what_checkpoints_take(small_config, monkeypatch, evaluated):
    """By a clock that goes on while one is written only."""
    now = [0.0]
    monkeypatch.setattr(improving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    settings = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 1} if evaluated else {}
    settings |= {"checkpoint_interval": 1, "num_iterations": 9, "stop_conditions": [TimeLimit(3.0)]}
    trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    trainer.initialize()
    save = trainer._saver.save

    def slowly(*args):
        now[0] += 1.0
        save(*args)

    trainer._saver.save = slowly
    trainer.train()
    assert trainer.counters.iterations <= 3  # an evaluation may save too
    assert "the time limit of 3 s is reached" in RunIndex.load(trainer._root_dir).run["why"]


def test_the_success_rate_is_that_of_the_last_evaluation(small_config):
    rates = []
    with small_config(SyncOffPolicyTrainer, reward_success_threshold=5.0).create_trainer() as trainer:
        trainer.initialize()
        for action in (1, 0):
            _prefer_action(action, trainer)
            trainer.evaluate(EnvironmentEpisodes(4))
            rates.append(trainer.get_success_rate())
    assert rates == [1.0, 0.0]


def test_another_schedule_for_a_live_run(small_config):
    with small_config(SyncOffPolicyTrainer, num_iterations=2).create_trainer() as trainer:
        trainer.improve()
        trainer.set_schedule_params(Schedule("8 env_steps", improve_steps="1 training_steps", improve_is="additional"))
        trainer.improve()
        assert trainer.counters.iterations == 3
        assert _totals(trainer, Phase.HEATUP)[0] >= 8


def test_time_left_and_the_end_in_view_are_those_of_the_schedule_in_force(small_config, monkeypatch, caplog):
    """By a clock by which an iteration takes five seconds, which tells of each."""
    small_config(SyncOffPolicyTrainer, num_iterations=4).create_trainer().train()
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level("INFO", "absl")
    with small_config(SyncOffPolicyTrainer, num_iterations=8).create_trainer() as trainer:
        trainer.initialize()
        after, goals, planned = trainer._after_iteration, [], {7: "16 training_steps"}
        shown = trainer._report._progress

        def after_iteration():
            now[0] += 5.0
            if trainer.counters.iterations in planned:
                trainer.set_schedule_params(Schedule(improve_steps=planned[trainer.counters.iterations]))
            goals.append(shown._goal)
            after()

        trainer._after_iteration = after_iteration
        trainer.train_and_act("1 training_steps")
        trainer.improve()
    told = [line.partition(", iteration")[0] for line in caplog.messages if "iteration" in line and "elapsed" in line]
    assert told[1:5] == ["done 75%", "done 44%", "done 50%, 0:00:40 left", "done 56%, 0:00:35 left"]
    assert goals[1:3] == ["until 8 iterations", "until 16 iterations"]


def test_a_heatup_alone_leaves_the_end_to_the_limits(small_config, caplog):
    config = small_config(SyncOffPolicyTrainer, num_iterations=3, num_env_steps=0, schedule=Schedule("16 env_steps"))
    with config.create_trainer() as trainer, caplog.at_level("INFO", "absl"):
        trainer.train()
    assert (trainer.counters.iterations, _totals(trainer, Phase.HEATUP)[0]) == (3, 24)
    assert "num_iterations=3 is reached" in caplog.text


def test_a_trainer_that_has_ended_evaluates_but_acts_no_more(small_config):
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer()
    trainer.train()
    for more in (trainer.act, trainer.heatup, trainer.train_and_act):
        with pytest.raises(RuntimeError, match=r"closed.*: make another one"):
            more(EnvironmentSteps(8))
    assert trainer.counters.iterations == 1
    trainer.evaluate(EnvironmentEpisodes(1))
    evaluator, closed = trainer._evaluations.prepare(), []
    close = evaluator.close
    evaluator.close = lambda: closed.append(close())
    trainer.close()
    assert len(closed) == 1, "its environment too"


def test_checkpoints_of_earlier_versions_are_resumed(small_config):
    config = small_config(SyncOffPolicyTrainer, num_iterations=2)
    first = config.create_trainer()
    first.train()
    objects = {name: first._saver.checkpointer._objects[name] for name in ("algorithm", "metrics", "counters")}
    Checkpointer(first._saver.checkpointer.directory, objects).save(99)
    with small_config(SyncOffPolicyTrainer, num_iterations=3).create_trainer() as second:
        second.initialize()
        assert _totals(second, Phase.TRAIN) == (16, 0, 2)
        second.improve()
        assert second.counters.iterations == 3


@pytest.mark.parametrize(
    ("mode", "actors", "by_policy"),
    [
        ("sync", 0, False),
        ("lockstep", 0, False),
        ("lockstep", 1, False),
        ("async", 0, False),
        ("async", 1, False),
        ("lockstep", 0, True),
    ],
)
def test_heatup_of_the_asynchronous_driver(small_config, mode, actors, by_policy):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)
    gin.bind_parameter("AsyncOffPolicyDriver.num_actor_queues", actors)
    gin.bind_parameter("AsyncOffPolicyDriver.actor_queue_cap", 1 + actors)
    schedule = Schedule("40 env_steps", heatup_using_network_decisions=by_policy, improve_steps="9 training_steps")
    with small_config(AsyncOffPolicyTrainer, schedule=schedule).create_trainer() as trainer:
        seen = _watch(trainer)
        _prefer_action(0, trainer)
        before = [v.numpy() for v in trainer.algorithm.variables]
        done = trainer.heatup(EnvironmentSteps(40))
        for old, new in zip(before, trainer.algorithm.variables, strict=True):
            np.testing.assert_array_equal(old, new.numpy())
        assert _totals(trainer, Phase.TRAIN) == (0, 0, 0)
        assert _totals(trainer, Phase.HEATUP) == (*done, 0)
        assert done.environment_steps == 16 * len(seen) >= 40
        if mode != "async":
            # A batch is a segment of each of two environment threads, 16 steps; all have ended an episode in the fifth.
            assert done == (80, 2 * _ends(5))
        # From the first batch on, though the environments run ahead of the learner.
        assert [set(exp.action.numpy().ravel()) for exp in seen] == len(seen) * [{0} if by_policy else {0, 1}]
        trainer.algorithm.train = lambda **kwargs: 0
        trainer.train_and_act(TrainingSteps(9))
        assert _totals(trainer, Phase.HEATUP) == (*done, 0)
        assert _totals(trainer, Phase.TRAIN)[0::2] == (9 * 16, 9)
        late = [set(exp.action.numpy().ravel()) for exp in seen[-9:]]
        # What was on its way: a batch in lockstep, at most Q + N = 4 segments otherwise, of which one may overtake another.
        if mode == "async":
            assert sum(bool(segment.any()) for exp in seen[-9:] for segment in exp.action.numpy()) <= 4
        else:
            on_their_way = {"sync": 0, "lockstep": 1}[mode]
            assert late[on_their_way:] == [{0}] * (9 - on_their_way)
        if mode == "lockstep" and not by_policy:
            assert late[0] == {0, 1}


def test_a_trainer_that_cannot_only_act_says_so(small_config):
    class Plain(SyncOffPolicyTrainer):
        _collect = SyncOffPolicyTrainer.__mro__[2]._collect

    with small_config(Plain).create_trainer() as trainer, pytest.raises(ValueError, match="defines no _collect"):
        trainer.act(EnvironmentSteps(1))


def test_totals_are_int64_variables(small_config):
    counters = small_config(SyncOffPolicyTrainer).create_trainer().counters
    for phase in Phase:
        totals = counters[phase]
        assert [v.dtype for v in (totals.environment_steps, totals.episodes, totals.training_steps)] == [tf.int64] * 3
        assert totals.seconds.dtype == tf.float64
