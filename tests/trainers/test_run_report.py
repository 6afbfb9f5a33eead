"""What a run leaves behind: rows that go on when it is resumed, evaluation, learning rates, the report."""

from __future__ import annotations

import csv
import glob
import pathlib
import re
from types import SimpleNamespace

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from alf.metrics.episode_log import Signal
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps
from alf.trainers.evaluation_result import Evaluation
from alf.trainers.hparams import used_settings
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.run_report import RunReport, learning_rate
from alf.trainers.schedule import Schedule
from tests.algorithms.off_policy import make
from tests.environments.small_agents import SmallAgents
from tests.trainers.many_agents import behaviors, ppo
from tests.trainers.small_run import fail_after

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def _every_iteration():
    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)


def _rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _events(folder):
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            yield from ((value.tag, event.step) for value in event.summary.value)


def test_a_run_killed_after_a_checkpoint_goes_on_without_a_gap(small_config, tmp_path):
    gin.bind_parameter("StatsReporter.log_episodes", True)
    settings = {"summary_interval": 1, "checkpoint_interval": 2, "evaluate": True, "eval_interval": 1}
    settings |= {"num_eval_episodes": 1, "unroll_length": 16}
    killed = small_config(SyncOffPolicyTrainer, **settings, num_iterations=100).create_trainer()
    killed.initialize()
    fail_after(killed, 3)
    # The process is gone before it can save what it has: the newest checkpoint is that of iteration 2.
    killed._saver.save_after = lambda error: None
    with pytest.raises(MemoryError, match="on purpose"):
        killed.train()
    train = tmp_path / "run" / "train"
    assert [row["iteration"] for row in _rows(train / "stats.csv")] == ["1", "2", "3"]
    episodes = _rows(train / "episodes.csv")
    assert episodes
    assert float(episodes[-1]["Train/loss/Mean"]) != 0.0

    resumed = small_config(SyncOffPolicyTrainer, **settings, num_iterations=4).create_trainer()
    resumed.train()
    rows = _rows(train / "stats.csv")
    assert [int(row["iteration"]) for row in rows][:4] == [1, 2, 3, 4]
    for axis in ("global_step", "env_steps", "episodes", "seconds"):
        values = [float(row[axis]) for row in rows]
        assert values == sorted(values), axis
    steps = [step for tag, step in _events(train) if tag == "Losses/loss"]
    assert steps[:4] == [1, 2, 3, 4]
    assert [int(row["global_step"]) for row in _rows(tmp_path / "run" / "eval" / "stats.csv")] == [1, 2, 3, 4]
    assert [step for tag, step in _events(tmp_path / "run" / "eval") if tag == "Metrics/AverageReturn"] == [1, 2, 3, 4]
    episodes = _rows(train / "episodes.csv")
    assert [int(row["episode"]) for row in episodes] == list(range(1, len(episodes) + 1))
    assert {"iteration", "in_heatup", "evaluation_return", "Reward/Stdev"} <= set(episodes[-1])


def test_what_evaluates_beside_training_is_among_the_settings_used(small_config, tmp_path):
    """They are written down after the first iteration, before the first evaluation begins."""
    gin.bind_parameter("EvaluationBeside.stall_timeout_secs", 60.0)
    settings = {"evaluate": True, "evaluate_beside": True, "num_eval_episodes": 1, "num_iterations": 1}
    small_config(SyncOffPolicyTrainer, **settings).create_trainer().train()
    assert (
        "EvaluationBeside.stall_timeout_secs = 60.0" in (tmp_path / "run" / "configured.gin").read_text().splitlines()
    )


def test_a_checkpoint_leaves_no_episode_to_be_lost(small_config, tmp_path):
    gin.bind_parameter("StatsReporter.log_episodes", True)
    gin.bind_parameter("StatsReporter.flush_secs", 1e9)
    trainer = small_config(
        SyncOffPolicyTrainer, checkpoint_interval=3, num_iterations=3, unroll_length=64
    ).create_trainer()
    trainer.initialize()
    save, found = trainer._saver.save, []
    train = tmp_path / "run" / "train"

    def saved(*args):
        found.append([len(_rows(train / name)) for name in ("stats.csv", "episodes.csv")])
        return save(*args)

    trainer._saver.save = saved
    trainer.train()
    assert found == [[len(_rows(train / "stats.csv")) - 1, len(_rows(train / "episodes.csv"))]]


def test_episodes_tell_which_are_of_the_heatup(small_config, tmp_path):
    """Those of its first segment too, and those of the first iteration after it not."""
    gin.bind_parameter("StatsReporter.log_episodes", True)
    schedule = Schedule(heatup_steps=EnvironmentSteps(2 * 128), improve_steps="2 training_steps")
    trainer = small_config(
        SyncOffPolicyTrainer, schedule=schedule, num_iterations=2, unroll_length=128
    ).create_trainer()
    trainer.train()
    in_heatup = [row["in_heatup"] for row in _rows(tmp_path / "run" / "train" / "episodes.csv")]
    heatup = trainer.counters[Phase.HEATUP].of(EnvironmentEpisodes).value
    assert 0 < heatup < len(in_heatup)
    assert in_heatup == ["1"] * int(heatup) + ["0"] * (len(in_heatup) - int(heatup))


def test_an_asynchronous_run_tells_its_time_and_writes_a_report(small_config, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(logging, "info", lambda text, *args: said.append(text % args))
    trainer = small_config(AsyncOffPolicyTrainer, summary_interval=1, num_iterations=4).create_trainer()
    trainer.initialize()
    trainer.reporter.add("Own/score", 2.0)
    trainer.train()
    train = tmp_path / "run" / "train"
    rows = _rows(train / "stats.csv")
    assert rows[0]["Own/score"] == "2.0"
    assert float(rows[0]["Train/learning_rate"]) == pytest.approx(1e-3)
    last = {k: float(v) for k, v in rows[-2].items() if v}
    learner = last["Time/learner_training"] + last["Time/learner_waiting"] + last["Time/learner_other"]
    assert learner == pytest.approx(1.0)
    assert all(0.0 <= last[f"Time/{n}"] <= 1.0 for n in ("environment", "inference", "collecting_waiting"))
    documented = re.findall(r"`([^`]+)`", (DOCS / "metrics.md").read_text())
    unknown = [tag for tag in rows[-1] if not tag.startswith("Own/") and not _is_one_of(tag, documented)]
    assert not unknown, f"docs/metrics.md does not say what these are: {unknown}"
    tags = {tag for tag, _ in _events(train)}
    assert {"staleness/lag", "_hparams_/session_start_info", "gin/operative_config"} <= tags
    report = (tmp_path / "run" / "report.html").read_text()
    assert "num_iterations=4 is reached" in report
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in said
    timings = trainer.driver.timings()
    assert timings.threads == 2
    assert min(timings) > 0.0


def _is_one_of(tag, documented):
    return tag in documented or any(d.endswith("/...") and tag.startswith(d[:-3]) for d in documented)


def _report(tmp_path, optimizers, **settings):
    settings = {"strict": False, "summary_interval": 1, "summaries_flush_secs": 1, "summary_max_queue": 1, **settings}
    config = SimpleNamespace(**settings)
    counters = SimpleNamespace(global_steps=3, iterations=3, env_steps=30, seconds=2.0)
    algorithm = SimpleNamespace(
        last_train_metrics={},
        optimized_variables=lambda: [(o, []) for o in optimizers],
        memories=dict,
        action_distribution_spec=(),
    )
    driver = SimpleNamespace(
        get_metrics=list, stats=dict, timings=lambda: None, observers=[], lag_histogram=lambda: np.zeros(3, np.int64)
    )
    return RunReport(str(tmp_path), config, counters, algorithm, driver, 1)


def test_summaries_are_held_back_as_the_configuration_says(tmp_path):
    report = _report(tmp_path, [], summaries_flush_secs=3600, summary_max_queue=3)
    seen = []
    for _ in range(5):
        report.summarize()
        seen.append(len((tmp_path / "train" / "stats.jsonl").read_text().splitlines()))
    report.close()
    assert seen == [1, 1, 1, 4, 4]
    assert len(_rows(tmp_path / "train" / "stats.csv")) == 5


def test_each_optimiser_has_its_learning_rate(tmp_path):
    adam = tf.keras.optimizers.legacy.Adam
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)
    decaying = adam(schedule)
    decaying.iterations.assign(4)
    assert learning_rate(decaying) == pytest.approx(0.6)
    report = _report(tmp_path, [adam(0.25, name="actor"), decaying, tf.keras.optimizers.Adam(0.5, name="other")])
    report.summarize()
    report.close()
    (row,) = _rows(tmp_path / "train" / "stats.csv")
    assert float(row["Train/learning_rate/0_actor"]) == 0.25
    assert float(row["Train/learning_rate/1_Adam"]) == pytest.approx(0.6)
    assert float(row["Train/learning_rate/2_other"]) == 0.5


def test_evaluations_of_an_interrupted_run_are_remembered(tmp_path):
    def result(step, mean, episodes=5):
        return Evaluation(episodes, mean, 1.0, 9.0, step=step)

    first = _report(tmp_path, [])
    first.evaluated(result(1, 50.0))
    first.evaluated(result(1, 70.0)._replace(complete=False))  # those that ended may be the easy ones
    first.evaluated(result(2, 40.0))
    first.evaluated(result(3, np.nan, episodes=0))
    first.evaluated(result(9, 99.0))
    assert first._best == 99.0
    first.close()
    second = _report(tmp_path, [])
    second._progress = SimpleNamespace(start=lambda: None, stop=lambda: None)
    second.start()
    assert second._best == 50.0
    assert second._last_evaluation == (40.0, 1.0, 5)
    rows = _rows(tmp_path / "eval" / "stats.csv")
    told = [(row["global_step"], row["env_steps"], row["complete"]) for row in rows]
    assert told == [("1", "10", "1"), ("1", "10", "0"), ("2", "20", "1"), ("3", "30", "1")]
    assert rows[3]["Metrics/AverageReturn"] == ""


def test_damaged_evaluations_are_passed_over(tmp_path):
    lines = ["global_step,env_steps,episodes,Metrics/AverageReturn,Metrics/AverageReturn_std"]
    lines += [
        "1,10,5,50.0,1.0",
        "1,10,5,5x.0,1.0",
        "1,10,many,70.0,1.0",
        "2,20,5,40.0,2.0",
        "2,20,,,",
        "3,30,5,\udcff,1",
    ]
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "stats.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    report = _report(tmp_path, [])
    report._progress = SimpleNamespace(start=lambda: None, stop=lambda: None)
    report.start()
    assert (report._best, report._last_evaluation) == (50.0, (40.0, 2.0, 5))
    (tmp_path / "eval" / "stats.csv").write_text("global_step\n1\n")
    again = _report(tmp_path, [])
    again._progress = report._progress
    again.start()
    assert again._best is None


@gin.configurable
def _used(a=1, b=None, c=(1, 2), d=True, e="text"):
    return a, b, c, d, e


def test_settings_that_were_used():
    gin.bind_parameter("_used.a", 2.5)
    _used()
    found = {k.rpartition(".")[2]: v for k, v in used_settings().items() if "_used." in k}
    assert found == {"a": 2.5, "c": "(1, 2)", "d": True, "e": "text"}


@pytest.mark.slow
def test_rows_of_episodes_tell_the_replay_and_the_exploration(small_config, tmp_path):
    gin.bind_parameter("StatsReporter.log_episodes", True)
    gin.bind_parameter("ReplayBuffer.max_length", 40)

    def make_algorithm(observation_spec, action_spec, debug_summaries=False):
        return make("dqn", observation_spec, action_spec, epsilon_greedy=0.25)

    settings = {"algorithm_ctor": make_algorithm, "whole_replay_buffer_training": False, "mini_batch_length": 2}
    settings |= {"mini_batch_size": 8, "unroll_length": 32, "summary_interval": 1}
    trainer = small_config(SyncOffPolicyTrainer, **settings, num_iterations=4).create_trainer()
    trainer.train()
    train = tmp_path / "run" / "train"
    # Four rows, of which at most forty steps each are held.
    held = [float(row["Replay/transitions"]) for row in _rows(train / "stats.csv")]
    assert held == sorted(held)
    assert (held[0], held[-1]) == (128.0, 160.0)
    episodes = _rows(train / "episodes.csv")
    assert {float(row["replay_transitions"]) for row in episodes} <= {0.0, *held}
    assert float(episodes[-1]["replay_transitions"]) > 0.0
    # What is on disk was written by the last summary.
    ended = [float(row["Replay/episodes"]) for row in _rows(train / "stats.csv")]
    assert ended[-1] == trainer.algorithm.exp_replayer.num_episodes > 0
    assert {float(row["replay_episodes"]) for row in episodes} <= {0.0, *ended}
    assert float(episodes[-1]["Train/epsilon/Mean"]) == 0.25


@pytest.fixture
def told(monkeypatch):
    """The values that signals without a function of steps were given, by name."""
    gin.bind_parameter("StatsReporter.log_episodes", True)
    values: dict[str, list[float]] = {}
    add = Signal.add

    def watched(self, value):
        values.setdefault(self.name, []).append(value)
        add(self, value)

    monkeypatch.setattr(Signal, "add", watched)
    return values


def test_what_was_learned_is_told_once_with_evaluations_and_acting_between(told, small_config):
    with small_config(SyncOffPolicyTrainer, num_eval_episodes=1).create_trainer() as trainer:
        for _ in range(3):
            trainer.train_and_act(EnvironmentSteps(1))
            trainer.evaluate(EnvironmentEpisodes(1))
            with trainer.phase_context(Phase.HEATUP):
                trainer.act(EnvironmentSteps(1))
        assert trainer.counters.iterations == 3
    assert len(told["Train/loss"]) == len(set(told["Train/loss"])) == 3


@pytest.mark.slow
def test_a_behavior_that_waits_tells_no_loss_again(told, small_config):
    """The runner of these is idle in half of the time steps."""
    gin.bind_parameter("create_environment.env_name", SmallAgents)
    ctor = behaviors(chaser=ppo(), runner=ppo())
    trainer = small_config(
        SyncOffPolicyTrainer, algorithm_ctor=ctor, num_iterations=8, unroll_length=4
    ).create_trainer()
    trainer.train()
    trained = {name: int(one.iterations) for name, one in trainer.algorithm.by_name.items()}
    assert {name: len(told[f"Train/{name}/loss"]) for name in trained} == trained
    assert trained["runner"] < trained["chaser"]


def test_target_updates_are_marked(small_config, tmp_path):
    """Two updates an iteration, and the targets move with every fourth one: in every second iteration."""
    gin.bind_parameter("StatsReporter.log_episodes", True)

    def make_algorithm(observation_spec, action_spec, debug_summaries=False):
        return make("dqn", observation_spec, action_spec, target_update_period=4)

    settings = {"algorithm_ctor": make_algorithm, "whole_replay_buffer_training": False, "mini_batch_length": 2}
    settings |= {"mini_batch_size": 8, "unroll_length": 32, "summary_interval": 1}
    small_config(SyncOffPolicyTrainer, **settings, num_iterations=4).create_trainer().train()
    train = tmp_path / "run" / "train"
    marks = [float(row["Losses/target_update"]) for row in _rows(train / "stats.csv")]
    assert marks[:4] == [0.0, 0.5, 0.0, 0.5]
    # A row of an episode tells of the iterations since the one before.
    found = {float(row["Train/target_update/Max"]) for row in _rows(train / "episodes.csv") if row["iteration"] != "0"}
    assert found <= {0.0, 0.5}
    assert 0.5 in found
