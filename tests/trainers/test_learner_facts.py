"""What is told of learners beside their losses: the entropy of the actions, against plain sums over what was recorded."""

from __future__ import annotations

import csv

import gin
import numpy as np
import pytest

from alf.algorithms.behaviors import Behaviors
from alf.trainers.learner_facts import LearnerFacts
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from tests.trainers.many_agents import behaviors, bind_pursuit, dqn, ppo

pytestmark = pytest.mark.slow


def _entropy(exp):
    """The mean entropy of a categorical policy over the decisions of a batch, step by step."""
    logits, step_type = (x.numpy() for x in (exp.rollout_info.action_distribution["logits"], exp.step_type))
    found = []
    for at in np.ndindex(step_type.shape):
        if step_type[at] != 2:
            p = np.exp(logits[at].astype(np.float64) - logits[at].max())
            p /= p.sum()
            found.append(-sum(x * np.log(x) for x in p))
    return np.mean(found)


def _last(tmp_path):
    with open(tmp_path / "run" / "train" / "stats.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))[-1]


@pytest.mark.parametrize("done_condition", ["any", "all"])
def test_the_entropy_of_the_actions_of_each_behavior(done_condition, small_config, tmp_path):
    bind_pursuit(done_condition=done_condition)
    ctor = behaviors(chaser=ppo(), runner=dqn())
    config = small_config(SyncOffPolicyTrainer, algorithm_ctor=ctor, num_iterations=3, unroll_length=8)
    batches = []
    with config.create_trainer() as trainer:
        trainer.initialize()
        assert isinstance(trainer.algorithm, Behaviors)
        trainer.algorithm.by_name["chaser"].add_experience_observer(batches.append)
        trainer.train()
    assert any((exp.step_type == 2).numpy().any() for exp in batches)
    row = _last(tmp_path)
    assert float(row["Metrics/chaser/ActionEntropy"]) == pytest.approx(_entropy(batches[-1]), rel=1e-5)
    assert 0.5 < float(row["Metrics/chaser/ActionEntropy"]) <= np.log(5)
    # Its actions are the best ones or any: no distribution is recorded.
    assert "Metrics/runner/ActionEntropy" not in row
    # Only joined steps can be dropped.
    assert ("Metrics/chaser/DroppedSteps" in row) is (done_condition == "all")


def test_of_a_single_agent(small_config, tmp_path):
    gin.bind_parameter("create_environment.env_name", "CartPole-v1")
    batches = []
    with small_config(SyncOffPolicyTrainer, num_iterations=2).create_trainer() as trainer:
        trainer.initialize()
        trainer.algorithm.add_experience_observer(batches.append)
        assert LearnerFacts(trainer.algorithm).scalars() == {}
        trainer.train()
    assert float(_last(tmp_path)["Metrics/ActionEntropy"]) == pytest.approx(_entropy(batches[-1]), rel=1e-5)
