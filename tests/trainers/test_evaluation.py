"""Evaluation: exactly what was asked for, by which weights, beside training or not, and no effect on training."""

from __future__ import annotations

import csv
import functools
import math
import threading
import types

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.bin import episodes
from alf.bin.episodes import run_episodes
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.recording import record_episodes
from alf.environments import RestartingEnvironment
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter
from alf.environments.utils import create_environment
from alf.trainers.building import build_algorithm
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps
from alf.trainers.evaluation import EpisodeRecorder, Evaluation, Evaluator
from alf.trainers.evaluations import EvaluationBeside, History
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.trainers.schedule import Schedule
from alf.trainers.stopping import MeanReturn
from tests.drivers.counting import CountingAlgorithm
from tests.trainers.fixed_episodes import FixedEpisodes
from tests.trainers.small_run import make_algorithm


@pytest.fixture(autouse=True)
def _fixed_episodes():
    gin.bind_parameter("create_environment.env_name", FixedEpisodes)
    gin.bind_parameter("create_environment.num_parallel_environments", 2)
    FixedEpisodes.gate = None
    yield
    FixedEpisodes.gate = None


# ---- what is counted ----


def _play(recorder, lengths, most=10_000):
    """Plays rows whose e-th episode takes lengths[row][e] steps, reward 1 a step, until the recorder is done."""
    rows = len(lengths)
    episode, time, first = [0] * rows, [0] * rows, [True] * rows
    for step in range(most):
        if recorder.done:
            return step
        kinds, following, rewards = [], [], []
        for row in range(rows):
            if not first[row] and time[row] == 0:
                kinds.append(2)
                following.append(0)
                rewards.append(0.0)
                first[row] = True
                continue
            kinds.append(0 if time[row] == 0 else 1)
            time[row] += 1
            ends = time[row] == lengths[row][episode[row] % len(lengths[row])]
            following.append(2 if ends else 1)
            rewards.append(1.0)
            if ends:
                time[row], episode[row], first[row] = 0, episode[row] + 1, False
        recorder(
            types.SimpleNamespace(
                step_type=np.array(kinds), next_step_type=np.array(following), reward=np.array(rewards, np.float32)
            )
        )
    return most


def test_exactly_as_many_episodes_and_short_ones_are_not_favoured():
    recorder = EpisodeRecorder(EnvironmentEpisodes(5), 2)
    _play(recorder, [[1], [10]])
    assert sorted(recorder.lengths) == [1, 1, 1, 10, 10]
    result = recorder.result(7)
    assert (result.episodes, result.average_return, result.average_length, result.step) == (5, 4.6, 4.6, 7)
    assert result.std_return == pytest.approx(np.std([1, 1, 1, 10, 10]))
    assert (result.environment_steps, sorted(result.returns)) == (23, [1, 1, 1, 10, 10])


@pytest.mark.parametrize(("steps", "lengths"), [(1, [3]), (3, [3]), (4, [3, 4]), (7, [3, 4]), (8, [3, 4, 3])])
def test_steps_end_with_the_first_episode_at_or_past_them(steps, lengths):
    recorder = EpisodeRecorder(EnvironmentSteps(steps), 1)
    _play(recorder, [[3, 4]])
    assert recorder.lengths == lengths
    assert recorder.steps == sum(lengths)


def test_returns_by_the_rewards_that_are_learned_from():
    recorder = EpisodeRecorder(EnvironmentEpisodes(3), 2, shape=lambda reward: 10 * reward - 3)
    _play(recorder, [[2, 5], [4]])
    result = recorder.result(0)
    assert sorted(result.returns) == [2, 4, 5]
    assert result.average_shaped_return == pytest.approx(7 * np.mean([2, 4, 5]))
    plain = EpisodeRecorder(EnvironmentEpisodes(1), 1)
    _play(plain, [[2]])
    assert plain.result(0).average_shaped_return is None


@pytest.mark.parametrize("at", [3, 7, 12])
def test_an_episode_that_a_restart_cut_is_played_anew(at):
    """In the first episode, on its last step (the seventh action), and in the second one."""
    counter = StepCounter()

    def build(seed):
        return FaultyEnvironment(CountingEnvironment(2, episode_lengths=[7]), raise_at=[at], counter=counter)

    env = RestartingEnvironment(build, seed=0)
    played = run_episodes(env, CountingAlgorithm(env, recurrent=False), 6, 0.0, 0)
    assert env.restarts == 1
    env.close()
    assert played.lengths == [7] * 6
    assert all(28 <= x < 29 for x in played.returns), "1 + 2 + ... + 7, and a little for the actions"


class _Poisoned(CountingEnvironment):
    """Shows a value that is not finite in row 1, at the step after row 0's first end."""

    calls = 0

    def _step(self, action):
        step = super()._step(action)
        self.calls += 1
        if self.calls == 4:
            step.observation[1, 2] = np.nan
        return step


def _cut_by_nan():
    return RestartingEnvironment(lambda seed=None: _Poisoned(2, episode_lengths=[3, 9]), nonfinite="truncate")


def test_an_episode_that_a_value_cut_is_played_anew():
    """And one that was only made up, to end with it, is none."""
    env = _cut_by_nan()
    played = run_episodes(env, CountingAlgorithm(env, recurrent=False), 4, 0.0, 0)
    assert env.cuts == 1
    assert sorted(set(played.lengths)) == [3, 9]


def test_long_plays_are_told_of(monkeypatch, caplog):
    monkeypatch.setattr(episodes, "_SECS_BETWEEN_LINES", 0.0)
    env = CountingEnvironment(1, episode_lengths=[3])
    with caplog.at_level("INFO", logger="absl"):
        run_episodes(env, CountingAlgorithm(env, recurrent=False), 2, 0.0, 0)
    assert "1 of 2 episodes have ended; the longest that goes on has 2 steps." in caplog.text
    env.close()


@pytest.mark.parametrize("crash", [False, True])
def test_a_dataset_has_whole_episodes_only(crash):
    counter = StepCounter()
    build = lambda seed=None: FaultyEnvironment(  # noqa: E731
        CountingEnvironment(2, episode_lengths=[3, 9]), raise_at=[4], counter=counter
    )
    env = RestartingEnvironment(build) if crash else _cut_by_nan()
    steps = record_episodes(CountingAlgorithm(env, recurrent=False), env, 6, random_seed=0)
    assert env.cuts == 1
    begins = np.flatnonzero(steps.step_type == 0)
    episodes = np.split(steps.observation[:, 2], begins[1:])
    assert {len(episode) for episode in episodes} == {4, 10}
    for episode in episodes:
        np.testing.assert_array_equal(episode, np.arange(len(episode)))


def test_a_dataset_has_as_many_episodes_of_each_row():
    env = CountingEnvironment(3, episode_lengths=[1, 1, 9])
    steps = record_episodes(CountingAlgorithm(env, recurrent=False), env, 3, random_seed=0)
    # Row 0 has had two when row 2 has had its first.
    np.testing.assert_array_equal(steps.observation[steps.step_type == 0], [[row, 0, 0] for row in range(3)])


def test_fewer_episodes_than_rows():
    recorder = EpisodeRecorder(EnvironmentEpisodes(1), 3)
    _play(recorder, [[4], [1], [1]])
    assert (recorder.lengths, recorder.steps) == ([4], 4)


@pytest.mark.parametrize(
    ("threshold", "said", "rate"),
    [
        (None, None, math.nan),
        (3.0, None, 0.5),
        (2.0, None, 1.0),
        (0.0, None, 1.0),
        (None, [True], 1.0),
        (3.0, [True], 1.0),
    ],
)
def test_success_by_return_or_by_what_the_environment_says(threshold, said, rate):
    recorder = EpisodeRecorder(EnvironmentEpisodes(4), 1, threshold, lambda: None if said is None else np.array(said))
    _play(recorder, [[2, 3]])
    assert recorder.result(0).success_rate == pytest.approx(rate, nan_ok=True)
    assert recorder.tells_success == (threshold is not None or said is not None)


def test_success_is_of_the_row_whose_episode_has_ended():
    recorder = EpisodeRecorder(EnvironmentEpisodes(3), 2, None, lambda: np.array([True, False]))
    _play(recorder, [[2], [3]])
    assert recorder.succeeded == [True, False, True]


@pytest.mark.parametrize(("limit", "episodes"), [(5, 0), (6, 2)])
def test_an_episode_is_waited_for_to_the_limit_and_no_longer(limit, episodes, tmp_path):
    env = CountingEnvironment(2, episode_lengths=[6])
    evaluator = Evaluator(env, CountingAlgorithm(env, recurrent=False), 0.0, 1, str(tmp_path))
    assert evaluator.play(EnvironmentEpisodes(2), 0, limit).episodes == episodes
    evaluator.close()


def test_without_an_episode_there_are_no_numbers():
    result = EpisodeRecorder(EnvironmentEpisodes(4), 1, 0.0).result(0)
    assert result.episodes == 0
    assert all(math.isnan(x) for x in (result.average_return, result.std_return, result.success_rate))
    history = History()
    assert history.add(result) is False
    whole = result._replace(episodes=1, average_return=-1.0, returns=(-1.0,), complete=True)
    assert history.add(whole) is True
    assert history.add(whole) is False
    again = History()
    again.deserialize(history.serialize().encode())
    assert str(again.all) == str(history.all)
    assert isinstance(again.last, Evaluation)


# ---- who plays ----


@pytest.fixture
def algorithm(small_config):
    env = create_environment(nonparallel=True, seed=1)
    yield build_algorithm(small_config(SyncOffPolicyTrainer), env)
    env.close()


def _prefer(algorithm, action):
    bias = next(w for w in algorithm.trainable_variables if w.shape == [2])
    bias.assign([-100.0, 100.0] if action else [100.0, -100.0])


def _evaluator(algorithm, tmp_path, **kwargs):
    return Evaluator(create_environment(nonparallel=True, seed=1), algorithm, 0.0, 1, str(tmp_path), **kwargs)


def test_the_present_weights_or_those_of_a_moment(algorithm, tmp_path):
    evaluator = _evaluator(algorithm, tmp_path)
    two = EnvironmentEpisodes(2)
    _prefer(algorithm, 0)
    assert evaluator.play(two, 1).returns == (0.0, 0.0)
    _prefer(algorithm, 1)
    assert evaluator.play(two, 2).returns == (5.0, 5.0)
    evaluator.freeze()
    _prefer(algorithm, 0)
    assert evaluator.play(two, 3).returns == (5.0, 5.0)
    evaluator.freeze()
    assert evaluator.play(two, 4).returns == (0.0, 0.0)
    evaluator.close()


def test_what_the_environment_says_about_success(algorithm, tmp_path):
    gin.bind_parameter("create_environment.env_name", functools.partial(FixedEpisodes, 5, True))
    evaluator = _evaluator(algorithm, tmp_path)
    assert evaluator.play(EnvironmentEpisodes(4), 0).success_rate == 0.5
    evaluator.close()
    env = create_environment(num_parallel_environments=3, seed=1)
    env.reset()
    for _ in range(5):
        env.step(np.zeros(3, np.int64))
    assert env.successes.tolist() == [True] * 3
    env.close()


def test_an_evaluation_that_is_stopped_has_no_result(algorithm, tmp_path):
    evaluator = _evaluator(algorithm, tmp_path)
    asked = iter([False, False, True])
    assert evaluator.play(EnvironmentEpisodes(4), 0, should_stop=lambda: next(asked)) is None
    evaluator.close()


def test_one_at_a_time_beside_training(algorithm, tmp_path):
    gate = FixedEpisodes.gate = threading.Event()
    evaluator = _evaluator(algorithm, tmp_path)
    beside = EvaluationBeside(evaluator)
    _prefer(algorithm, 1)
    assert beside.take() is None
    assert beside.start(EnvironmentEpisodes(2), 5, 100)
    _prefer(algorithm, 0)
    assert beside.take() is None
    assert not beside.start(EnvironmentEpisodes(2), 6, 100)
    gate.set()
    result = beside.take(wait=True)
    assert (result.returns, result.step) == ((5.0, 5.0), 5)
    assert beside.take(wait=True) is None
    gate.clear()
    assert beside.start(EnvironmentEpisodes(2), 7, 100)
    threading.Timer(0.2, gate.set).start()
    beside.stop()
    assert not [t for t in threading.enumerate() if t.name == "alf-evaluation"]
    evaluator.close()


def test_freezing_refuses_a_policy_that_cannot_be_frozen(algorithm):
    predict = algorithm.predict

    def assigning(*args):
        algorithm.trainable_variables[0].assign_add(algorithm.trainable_variables[0])
        return predict(*args)

    object.__setattr__(algorithm, "predict", assigning)
    env = create_environment(nonparallel=True, seed=1)
    with pytest.raises(ValueError, match="variables"):
        PolicyDriver(env, algorithm).freeze()
    env.close()


# ---- in a run ----


def _weights(trainer):
    return [v.numpy() for v in trainer.algorithm.variables]


@pytest.mark.parametrize(("mode", "ways"), [("sync", [False]), ("lockstep", [False, True])])
def test_training_is_the_same_with_and_without_evaluation(mode, ways, small_config, tmp_path):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)

    def run(name, **evaluation):
        settings = {"root_dir": str(tmp_path / name), "num_iterations": 4, "num_updates_per_train_step": 1}
        trainer = small_config(AsyncOffPolicyTrainer, **settings, **evaluation).create_trainer()
        trainer.train()
        return trainer

    plain = run("plain")
    assert not plain._evaluations.history.all
    for beside in ways:
        evaluation = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 2, "evaluate_beside": beside}
        evaluated = run(f"evaluated_{beside}", **evaluation)
        assert len(evaluated._evaluations.history.all) >= (2 if beside else 4)
        for a, b in zip(_weights(plain), _weights(evaluated), strict=True):
            np.testing.assert_array_equal(a, b)
        assert list((tmp_path / f"evaluated_{beside}" / "eval").glob("events.out.tfevents.*"))


def test_an_evaluation_that_is_due_while_one_is_running_is_left_out(small_config, caplog):
    trainer = small_config(
        SyncOffPolicyTrainer,
        schedule=Schedule("0 env_steps", "1 training_steps", "1 episodes", "6 training_steps"),
        evaluate_beside=True,
    ).create_trainer()
    trainer.initialize()
    # Only the evaluation's environment is held.
    gate = threading.Event()
    play = trainer._evaluations.prepare().play
    trainer._evaluations.prepare().play = lambda *args: (gate.wait(30), play(*args))[1]
    after, iterations = trainer._after_iteration, []

    def watched():
        after()
        iterations.append(trainer.counters.iterations)
        if len(iterations) == 3:
            gate.set()
            trainer._evaluations._beside._thread.join(30)

    trainer._after_iteration = watched
    with caplog.at_level("WARNING"):
        trainer.train()
    assert "The evaluation of step 2 is left out" in caplog.text
    assert "The evaluation of step 3 is left out" in caplog.text
    done = trainer._evaluations.history.all
    assert done[0].step == 1
    assert done[-1].step == 6
    best = RunIndex.load(trainer._root_dir).best()
    assert best.reward == max(e.average_return for e in done)
    assert best.step == next(e.step for e in done if e.average_return == best.reward)


def test_what_ends_a_run_is_not_taken_back_by_another_evaluation(small_config):
    """The weights have gone on meanwhile, and may be worse."""

    def good(run):
        return "step 1 was good" if run.last is not None and run.last.step == 1 else None

    config = small_config(
        SyncOffPolicyTrainer,
        schedule=Schedule("0 env_steps", "1 training_steps", "1 episodes", "6 training_steps"),
        evaluate_beside=True,
        stop_conditions=[good],
    )
    trainer = config.create_trainer()
    trainer.initialize()
    after = trainer._after_iteration

    def watched():
        if trainer.counters.iterations == 3:
            trainer._evaluations._beside._thread.join(30)
        after()

    gate = threading.Event()
    play = trainer._evaluations.prepare().play
    trainer._evaluations.prepare().play = lambda *args: (gate.wait(30), play(*args))[1]
    trainer._after_iteration = lambda: (trainer.counters.iterations == 3 and gate.set(), watched())
    trainer.train()
    assert trainer.counters.iterations == 3
    assert [e.step for e in trainer._evaluations.history.all] == [1]
    again = config.create_trainer()
    again.train()
    assert again.counters.iterations == 3, "finished, and so it stays"


@pytest.mark.parametrize(("interval", "told"), [(3, False), (4, True)])
def test_an_interval_that_never_comes_is_told(interval, told, small_config, caplog):
    config = small_config(SyncOffPolicyTrainer, num_iterations=3, evaluate=True, eval_interval=interval)
    with caplog.at_level("WARNING"):
        config.create_trainer()
    assert ("nothing is evaluated" in caplog.text) == told


def test_targets_without_evaluations_end_no_run(small_config):
    settings = {"num_iterations": 0, "schedule": Schedule(), "stop_conditions": [MeanReturn(1.0)]}
    trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    with trainer, pytest.raises(ValueError, match="would never end"):
        trainer.improve()


@pytest.mark.parametrize("beside", [False, True])
def test_evaluations_of_a_run_explore_as_the_config_says(beside, small_config):
    told = []

    def telling(observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        predict = algorithm.predict
        algorithm.predict = lambda *args: told.append(args[2]) or predict(*args)
        return algorithm

    settings = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 2, "evaluate_beside": beside}
    small_config(
        SyncOffPolicyTrainer, algorithm_ctor=telling, num_iterations=2, epsilon_greedy=0.375, **settings
    ).create_trainer().train()
    assert set(told) == {0.375}


@pytest.mark.parametrize("beside", [False, True])
def test_raw_and_shaped_returns_of_a_run(beside, small_config, tmp_path):
    def shaped(observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        algorithm._reward_shaping_fn = lambda reward: 0.5 * reward + 1
        return algorithm

    settings = {"num_iterations": 2, "evaluate": True, "eval_interval": 1, "num_eval_episodes": 2}
    trainer = small_config(
        SyncOffPolicyTrainer, algorithm_ctor=shaped, evaluate_beside=beside, **settings
    ).create_trainer()
    trainer.train()
    last = trainer._evaluations.history.last
    # An episode has five actions.
    assert last.average_shaped_return == pytest.approx(0.5 * last.average_return + 5)
    with open(tmp_path / "run" / "eval" / "stats.csv", newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["Metrics/AverageShapedReturn"]) == pytest.approx(last.average_shaped_return)
    assert float(row["Metrics/AverageReturn"]) == pytest.approx(last.average_return)
    (events,) = (tmp_path / "run" / "eval").glob("events.out.tfevents.*")
    records = tf.data.TFRecordDataset(str(events))
    found = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    tags = {value.tag for event in found for value in event.summary.value}
    assert {"Metrics/AverageShapedReturn", "Metrics/AverageReturn"} <= tags


def test_an_error_beside_training_ends_the_run_with_its_own_traceback(small_config):
    trainer = small_config(
        SyncOffPolicyTrainer, num_iterations=10_000, evaluate=True, eval_interval=1, evaluate_beside=True
    ).create_trainer()
    trainer.initialize()

    def broken(*args):
        raise ArithmeticError("the evaluation broke")

    trainer._evaluations.prepare().play = broken
    with pytest.raises(ArithmeticError, match="the evaluation broke") as raised:
        trainer.train()
    assert raised.traceback[-1].name == "broken"
    assert 1 <= trainer.counters.iterations < 10_000
    assert not [t for t in threading.enumerate() if t.name == "alf-evaluation"]


def test_an_evaluation_before_training_stays_in_the_tables(small_config, tmp_path):
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer()
    trainer.evaluate(EnvironmentEpisodes(1))
    trainer.train()
    with open(tmp_path / "run" / "eval" / "stats.csv", newline="") as file:
        assert [row["global_step"] for row in csv.DictReader(file)] == ["0"]
