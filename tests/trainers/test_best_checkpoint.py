"""Which checkpoint is the best one where several agents act: by the return of a behavior, or the rating of self-play."""

from __future__ import annotations

import csv
import functools
from types import SimpleNamespace

import gin
import pytest

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.bin import status
from alf.bin.run_view import view
from alf.trainers.agent_evaluation import BehaviorEvaluation
from alf.trainers.evaluation import Evaluation
from alf.trainers.evaluations import Evaluations
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.trainers.self_play import SelfPlay
from tests.environments.small_agents import SmallAgents
from tests.trainers.many_agents import behaviors, bind_hands, ppo
from tests.trainers.small_run import make_algorithm

pytestmark = pytest.mark.slow


@pytest.fixture
def small_agents(small_config):
    """Makes a trainer of agents that do not learn, in an environment whose rewards follow a script."""
    gin.bind_parameter("create_environment.env_name", SmallAgents)
    rewards = SmallAgents.rewards
    both = functools.partial(Behaviors, behaviors={"*": Behavior(make_algorithm, trained=False)})

    def make(**kwargs):
        return small_config(SyncOffPolicyTrainer, algorithm_ctor=both, **kwargs).create_trainer()

    yield make
    SmallAgents.rewards = rewards


def _records(tmp_path):
    index = RunIndex.load(str(tmp_path / "run"))
    return index.best(), {r.step: r for r in index.records()}


# By evaluation; chasers decide 4, 2 and 1 times, the runner twice.
_REWARDS = [(1.0, 50.0), (3.0, 0.0), (2.0, 0.0)]


@pytest.mark.parametrize(
    ("best_by", "best"), [("chaser", (2, 7.0, 3)), ("runner", (1, 100.0, 1)), (None, (1, 107.0, 1))]
)
def test_by_the_return_of_a_behavior(best_by, best, small_agents, tmp_path):
    def script(run):
        chaser, runner = _REWARDS[min(len(run.evaluations), 2)]
        SmallAgents.rewards = {"chaser": chaser, "runner": runner}

    plan = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 1, "num_iterations": 3, "checkpoint_interval": 0}
    trainer = small_agents(best_by=best_by, stop_conditions=[script], **plan)
    trainer.train()
    found, records = _records(tmp_path)
    assert (found.step, found.reward, found.reward_episodes) == best
    # One is written whenever there is a new best one, and at the end.
    assert sorted(records) == sorted({1, best[0], 3})
    told = "\n".join(status.describe(view(str(tmp_path / "run"))))
    whose = "" if best_by is None else f" of {best_by}"
    assert f"return {best[1]:.2f} ({best[2]} episodes{whose})" in told


def test_an_evaluation_beside_training_judges_by_it_too(small_agents, tmp_path):
    with small_agents(best_by="chaser", num_iterations=1) as trainer:
        trainer.initialize()
        trainer.save()
        chaser = BehaviorEvaluation("chaser", 4, 2.5, 0.0, 1.0, 0.0, ())
        trainer._judge(Evaluation(1, 99.0, 0.0, 1.0, step=0, behaviors=(chaser,)))
        assert (_records(tmp_path)[0].reward, _records(tmp_path)[0].reward_episodes) == (2.5, 4)
        nobody = chaser._replace(episodes=0, average_return=float("nan"))
        trainer._judge(Evaluation(1, 999.0, 0.0, 1.0, step=0, behaviors=(nobody,)))
        assert _records(tmp_path)[0].reward == 2.5


def test_the_best_of_the_whole_is_not_the_best_of_a_behavior():
    """Otherwise a checkpoint more is written whenever the other behaviors have done well."""
    held = Evaluations(lambda: SimpleNamespace(report=lambda result: None), best_by="chaser")
    chaser = BehaviorEvaluation("chaser", 1, 0.0, 0.0, 1.0, 0.0, ())
    returns = [(1.0, 5.0), (9.0, 4.0), (0.0, 6.0), (10.0, 6.0)]
    results = [
        Evaluation(1, whole, 0.0, 1.0, behaviors=(chaser._replace(average_return=own),)) for whole, own in returns
    ]
    assert [held.record(result, 1, False) for result in results] == [True, False, True, False]


def test_what_others_were_judged_by_counts_no_more(small_agents, tmp_path, logged):
    """The return as a whole is above that of a behavior: a run that goes on by that one has its own best checkpoint."""
    plan = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 1, "checkpoint_interval": 0}
    small_agents(num_iterations=1, **plan).train()
    whole = _records(tmp_path)[0]
    small_agents(num_iterations=2, best_by="chaser", **plan).train()
    best, records = _records(tmp_path)
    assert best.step == 2
    assert best.reward < whole.reward
    assert (records[1].reward, records[1].kinds) == (None, [])
    assert (
        "Checkpoints were judged by the return as a whole, and are by 'chaser' now: the best so far is forgotten."
        in logged
    )
    small_agents(num_iterations=3, best_by="chaser", **plan).train()
    assert _records(tmp_path)[1][2].reward == best.reward


def test_after_a_save_that_failed_the_best_of_the_others_is_saved(small_config, tmp_path, monkeypatch):
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")
    returns = {1: 50.0, 2: 100.0, 3: 80.0, 4: 60.0}

    def play(self, count, step, *rest):
        return Evaluation(5, returns[step], 0.0, 9.0, returns=(returns[step],) * 5, step=step)

    monkeypatch.setattr(Evaluations, "play", play)
    plan = {"evaluate": True, "eval_interval": 1, "num_iterations": 4, "checkpoint_interval": 0}
    trainer = small_config(SyncOffPolicyTrainer, **plan).create_trainer()
    trainer.initialize()
    write, writes = trainer._saver.checkpointer._checkpoint.write, []

    def fail_at_the_second(path):
        writes.append(path)
        if len(writes) == 2:
            raise OSError(28, "No space left on device")
        return write(path)

    trainer._saver.checkpointer._checkpoint.write = fail_at_the_second
    trainer.train()
    best, records = _records(tmp_path)
    assert {step: record.reward for step, record in records.items()} == {1: 50.0, 3: 80.0, 4: 60.0}
    assert best.step == 3
    judged = [(80.0, 5), (80.5, 0), (None, 0), (80.5, 1)]
    assert [trainer._saver.is_best(*one) for one in judged] == [False, False, False, True]


@pytest.mark.parametrize(
    ("best_by", "says"),
    [("chasr", "TrainerConfig.best_by names 'chasr'.* mean 'chaser'"), ("xyz", "It has 'chaser', 'runner'")],
)
def test_a_name_that_no_agent_has_is_refused(best_by, says, small_agents):
    with pytest.raises(ValueError, match=says), small_agents(best_by=best_by) as trainer:
        trainer.initialize()


def test_a_single_agent_has_no_name(small_config):
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")
    config = small_config(SyncOffPolicyTrainer, best_by="agent")
    with pytest.raises(ValueError, match="best_by='agent' names a behavior, and the environment has a single agent"):
        config.create_trainer().initialize()


def test_by_the_rating_of_self_play(small_config, tmp_path):
    """The return of the game is always 0; every checkpoint has the rating that the statistics of its step tell."""
    bind_hands()
    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)
    play = SelfPlay("left", "right", every="1 training_steps", snapshot_every="2 training_steps", latest_ratio=0.0)
    ctor = behaviors(left=ppo(), right=ppo(trained=False))
    plan = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 1, "num_iterations": 8, "checkpoint_interval": 1}
    config = small_config(SyncOffPolicyTrainer, algorithm_ctor=ctor, self_play=play, summary_interval=1, **plan)
    config.create_trainer().train()
    with open(tmp_path / "run" / "train" / "stats.csv", encoding="utf-8") as file:
        # The last summary of a run may tell of a step once more.
        rows = {int(row["global_step"]): row for row in csv.DictReader(file) if row["SelfPlay/Elo"]}
    best, records = _records(tmp_path)
    rated = {step: r for step, r in records.items() if float(rows[step]["SelfPlay/Matches"])}
    assert len(rated) >= 4
    for step, record in records.items():
        expected = (float(rows[step]["SelfPlay/Elo"]), int(float(rows[step]["SelfPlay/Matches"])))
        assert (record.reward, record.reward_episodes) == (pytest.approx(expected[0]), expected[1]) or step not in rated
        assert (record.reward is None) is (step not in rated)
    assert best.reward == max(r.reward for r in rated.values())
    assert len({r.reward for r in rated.values()}) > 1
    assert f"rating {best.reward:.2f} ({best.reward_episodes} matches)" in "\n".join(
        status.describe(view(str(tmp_path / "run")))
    )
