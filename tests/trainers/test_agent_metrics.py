"""What a run with several agents tells of each behavior: summaries, display, evaluations, and after a resume."""

from __future__ import annotations

import csv
import functools
import json
import math
import pathlib

import gin
import numpy as np
import pytest

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.environments.utils import create_environment
from alf.trainers.building import build_algorithm
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps
from alf.trainers.evaluation import Evaluator
from alf.trainers.evaluations import History
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.progress import State, behavior_rows
from alf.trainers.report import write_report
from alf.trainers.stopping import MeanReturn, Plateau, Standing, SuccessRate
from tests.environments.small_agents import SmallAgents
from tests.metrics.test_reporter import _events
from tests.trainers.small_run import make_algorithm

# An episode of the environment has three chasers, which decide 4, 2 and 1 times, and a runner, which decides twice.
CHASERS, RUNNERS = [4.0, 2.0, 1.0], [4.0]


@pytest.fixture(autouse=True)
def _small_agents():
    gin.bind_parameter("create_environment.env_name", SmallAgents)
    gin.bind_parameter("create_environment.num_parallel_environments", 2)
    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)
    rewards = SmallAgents.rewards
    yield
    SmallAgents.rewards = rewards


@pytest.fixture
def agents_config(small_config):
    # What is told of them does not depend on whether they learn, which would have to be traced.
    both = functools.partial(Behaviors, behaviors={"*": Behavior(make_algorithm, trained=False)})
    return functools.partial(small_config, algorithm_ctor=both, summary_interval=1)


def _rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# ---- evaluation ----


@pytest.fixture
def algorithm(agents_config):
    env = create_environment(nonparallel=True, seed=1)
    yield build_algorithm(agents_config(SyncOffPolicyTrainer), env)
    env.close()


@pytest.mark.parametrize(
    ("count", "rows", "episodes"),
    [(EnvironmentEpisodes(3), 2, 3), (EnvironmentEpisodes(1), 1, 1), (EnvironmentSteps(9), 1, 3)],
)
def test_the_agents_of_the_episodes_that_were_asked_for(algorithm, tmp_path, count, rows, episodes):
    env = create_environment(num_parallel_environments=rows, seed=1)
    evaluator = Evaluator(env, algorithm, 0.0, 1, str(tmp_path), {"chaser": 2.0, "runner": 5.0})
    for step in range(2):
        result = evaluator.play(count, step)
        chaser, runner = result.behaviors
        assert (chaser.name, chaser.episodes, chaser.average_length) == ("chaser", 3 * episodes, np.mean([4, 2, 1]))
        assert sorted(chaser.returns) == sorted(CHASERS * episodes)
        assert (chaser.average_return, chaser.std_return) == (np.mean(CHASERS), np.std(CHASERS))
        assert runner == ("runner", episodes, 4.0, 0.0, 2.0, 0.0, (4.0,) * episodes)
        assert chaser.success_rate == pytest.approx(2 / 3)
        # Of the run as a whole the lowest, and rewards of all agents together.
        assert result.success_rate == 0.0
        assert result.returns == (11.0,) * episodes
    evaluator.report(result)
    evaluator.close()
    written = {tag: value for tag, _, value in _events(tmp_path)}
    assert written["Metrics/chaser/AverageReturn"] == pytest.approx(np.mean(CHASERS))
    assert written["Metrics/runner/SuccessRate"] == 0.0
    assert written["Metrics/SuccessRate"] == 0.0


def test_one_threshold_is_for_the_environment_as_a_whole(algorithm, tmp_path):
    evaluator = Evaluator(create_environment(nonparallel=True, seed=1), algorithm, 0.0, 1, str(tmp_path), 11.0)
    result = evaluator.play(EnvironmentEpisodes(1), 0)
    assert result.success_rate == 1.0
    assert all(math.isnan(b.success_rate) for b in result.behaviors)
    evaluator.report(result)
    evaluator.close()
    assert not any("r/SuccessRate" in tag for tag, _, _ in _events(tmp_path))


def test_the_history_keeps_what_it_is_given(algorithm, tmp_path):
    evaluator = Evaluator(create_environment(nonparallel=True, seed=1), algorithm, 0.0, 1, str(tmp_path))
    history, again = History(), History()
    history.add(evaluator.play(EnvironmentEpisodes(1), 0))
    evaluator.close()
    again.deserialize(history.serialize().encode())
    assert str(again.all) == str(history.all)
    assert again.last.behavior("runner").returns == (4.0,)
    assert again.last.behavior("nobody") is None
    # What runs wrote before they told whether all was there, and before there were behaviors.
    again.deserialize(json.dumps([list(history.last)[:-1]]).encode())
    assert str(again.all) == str(history.all)
    again.deserialize(json.dumps([list(history.last)[:-2]]).encode())
    assert again.last.behaviors == ()


# ---- training ----


def test_a_run_tells_of_each_behavior_and_goes_on_when_it_is_resumed(agents_config, tmp_path):
    gin.bind_parameter("StatsReporter.log_episodes", True)
    settings = {"unroll_length": 5, "evaluate": True, "eval_interval": 4, "num_eval_episodes": 1}
    counts = []
    for iterations in (4, 8):
        run = agents_config(SyncOffPolicyTrainer, num_iterations=iterations, **settings).create_trainer()
        run.train()
        state = run._report.state()
        counts.append(run._report._agents.scalars()["runner/NumberOfEpisodes"])
    assert state.behaviors["runner"][:2] == (4.0, 0.0)
    assert state.behaviors["chaser"][0] == pytest.approx(np.mean(CHASERS), abs=0.5)
    # An episode is five rows of each environment.
    assert counts[1] >= 2 * counts[0] > 0

    root = tmp_path / "run"
    last = _rows(root / "train" / "stats.csv")[-1]
    assert float(last["Metrics/runner/AverageReturn"]) == 4.0
    assert float(last["Metrics/runner/AverageEpisodeLength"]) == 2.0
    assert float(last["Metrics/chaser/0/AverageReturn"]) == 4.0
    # The last ten of returns 2, 2, 1, 1, and so on.
    assert float(last["Metrics/chaser/1/AverageReturn"]) == 1.4
    assert "Metrics/runner/0/AverageReturn" not in last
    as_json = json.loads((root / "train" / "stats.jsonl").read_text().splitlines()[-1])
    assert as_json["Metrics/runner/AverageReturn"] == 4.0
    tags = {tag for tag, _, _ in _events(root / "train")}
    assert {"Metrics/chaser/AverageReturn", "Metrics_vs_EnvironmentSteps/chaser/AverageReturn"} <= tags

    agents = _rows(root / "train" / "agents.csv")
    assert [int(row["agent"]) for row in agents] == list(range(1, len(agents) + 1))
    seen = {(r["behavior"], r["slot"], float(r["return"]), int(r["length"]), int(r["cut"])) for r in agents}
    assert seen == {
        ("chaser", "0", 4.0, 4, 1),
        ("chaser", "1", 2.0, 2, 0),
        ("chaser", "1", 1.0, 1, 1),
        ("runner", "0", 4.0, 2, 0),
    }
    assert sum(row["behavior"] == "runner" for row in agents) == counts[1]
    evaluations = _rows(root / "eval" / "stats.csv")
    assert [float(row["Metrics/runner/AverageReturn"]) for row in evaluations] == [4.0, 4.0]
    page = pathlib.Path(write_report(str(root))).read_text()
    assert "Return of agents" in page
    assert "runner" in page


def test_the_agents_of_all_environment_threads(agents_config):
    def shaped(*args, **kwargs):
        algorithm = make_algorithm(*args, **kwargs)
        algorithm._reward_shaping_fn = lambda reward: 100.0 * reward
        return algorithm

    # What the environment gives is told, not what is learned from.
    behaviors = {"runner": Behavior(shaped, trained=False), "chaser": Behavior(make_algorithm, trained=False)}
    settings = {"algorithm_ctor": functools.partial(Behaviors, behaviors=behaviors), "num_envs": 2}
    with agents_config(AsyncOffPolicyTrainer, unroll_length=5, **settings).create_trainer() as run:
        run.act(EnvironmentEpisodes(8))
        run.driver.stop()
        assert run._report.state().behaviors["runner"][:2] == (4.0, 0.0)
        scalars = run._report._agents.scalars()
        episodes = int(run.driver.get_metrics()[0].result())
    # Each segment is an episode: all that the driver counts have ended for the agents too.
    assert scalars["runner/NumberOfEpisodes"] == episodes >= 8
    assert scalars["chaser/NumberOfEpisodes"] == 3 * episodes
    assert scalars["chaser/0/AverageReturn"] == 4.0


def test_a_run_ends_when_every_behavior_has_reached_its_target(agents_config):
    def script(run):
        """In the third evaluation chasers get what they need, in the fifth the runner does."""
        done = len(run.evaluations)
        SmallAgents.rewards = {"chaser": 3.0 if done >= 2 else 0.0, "runner": 2.0 if done >= 4 else 0.0}

    config = agents_config(
        SyncOffPolicyTrainer,
        stop_conditions=[script, SuccessRate(1.0)],
        reward_success_threshold={"chaser": 2.0, "runner": 4.0},
        num_iterations=8,
        evaluate=True,
        eval_interval=1,
        num_eval_episodes=1,
    )
    with config.create_trainer() as run:
        run.improve()
        assert run.should_stop()
        assert run.get_success_rate() == 1.0
        history = run._evaluations.history.all
    assert [e.behavior("chaser").success_rate for e in history] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert [e.behavior("runner").success_rate for e in history] == [0.0, 0.0, 0.0, 0.0, 1.0]

    def ended(condition):
        return [condition(Standing(history[:n], 0.0)) is not None for n in range(1, 6)]

    # The mean over three chasers of one evaluation, and over a runner in each of three.
    assert ended(MeanReturn({"chaser": 7.0, "runner": 4 / 3}, 3)) == [False, False, False, False, True]
    assert ended(MeanReturn({"chaser": 7.0}, 3)) == [False, False, True, True, True]
    assert ended(SuccessRate({"chaser": 1.0})) == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reward_success_threshold": {"chasr": 1.0}}, "reward_success_threshold names 'chasr'.* mean 'chaser'"),
        ({"reward_success_threshold": {"xyz": 1.0}}, "names 'xyz'.* It has 'chaser', 'runner'"),
        ({"stop_conditions": [MeanReturn({"Runner": 1.0})]}, "MeanReturn.target names 'Runner'.* mean 'runner'"),
        ({"stop_conditions": [Plateau(3, {"run": 1.0})]}, "Plateau.min_improvement names 'run'.* mean 'runner'"),
        (
            {"stop_conditions": [SuccessRate({"runner": 0.5})], "reward_success_threshold": {"chaser": 1.0}},
            "SuccessRate.target names 'runner', and nothing tells when its agents succeed",
        ),
    ],
)
def test_names_that_no_agent_has_are_refused(agents_config, settings, says):
    with (
        pytest.raises(ValueError, match=says),
        agents_config(SyncOffPolicyTrainer, **settings).create_trainer() as run,
    ):
        run.initialize()


def test_a_run_of_a_single_agent_keeps_nothing_of_the_kind(small_config, tmp_path):
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")
    with small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer() as run:
        run.initialize()
        assert run._report._agents is None
        assert run._report.state().behaviors == {}
        # The counter of episodes is not among them: nothing observes trajectories.
        assert run.driver.observers == []
    one = small_config(SyncOffPolicyTrainer, root_dir=str(tmp_path / "b"), reward_success_threshold={"a": 1.0})
    with pytest.raises(ValueError, match="the environment has a single agent: give one number"):
        one.create_trainer().initialize()


def test_the_display_has_a_row_for_each_behavior():
    of_many = {f"b{i}": (float(i), 0.5, 10) for i in range(20)}
    state = State(1, 2, 3, None, 4, {}, behaviors=of_many)
    assert behavior_rows(state)[:2] == [
        ("return of b0", "0.0 ± 0.5 (last 10)"),
        ("return of b1", "1.0 ± 0.5 (last 10)"),
    ]
    assert len(behavior_rows(state)) == 8
