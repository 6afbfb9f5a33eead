"""Runs of recurrent networks: that sequences too short to learn a memory from are told of."""

from __future__ import annotations

import pytest
import tensorflow as tf

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from tests.algorithms.networks import recurrent

FROM_NOTHING = "each from an empty memory, and so learn to do without one: set TrainerConfig.use_rollout_state=True"
TOO_SHORT = "within which nothing is worth remembering: set some tens of steps for mini_batch_length"


def _remembering(observation_spec, action_spec, debug_summaries=False):
    actor, value = recurrent(observation_spec, action_spec, 4)
    adam = tf.keras.optimizers.legacy.Adam(1e-3)
    return PPOAlgorithm(observation_spec, action_spec, actor, value, loss_class=PPOLoss, optimizer=adam)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mini_batch_length": 1}, f"sequences of 1 steps, {FROM_NOTHING}"),
        ({"mini_batch_length": 1, "use_rollout_state": True}, f"sequences of 1 steps, {TOO_SHORT}"),
        ({"mini_batch_length": 2, "use_rollout_state": True}, f"sequences of 2 steps, {TOO_SHORT}"),
        (
            {"mini_batch_length": None, "unroll_length": 1, "use_rollout_state": True},
            f"sequences of 1 steps, {TOO_SHORT}",
        ),
        ({"mini_batch_length": 4, "use_rollout_state": True}, None),
        ({"mini_batch_length": 4}, None),
        ({"mini_batch_length": None, "use_rollout_state": True}, None),
    ],
)
def test_sequences_too_short_for_a_memory_are_told_of(small_config, logged, settings, told):
    with small_config(SyncOffPolicyTrainer, algorithm_ctor=_remembering, **settings).create_trainer() as trainer:
        trainer.initialize()
    warnings = [line for line in logged if "Recurrent networks learn" in line]
    assert len(warnings) == (told is not None)
    assert told is None or told in warnings[0]


def test_networks_without_a_memory_may_learn_from_single_steps(small_config, logged):
    with small_config(SyncOffPolicyTrainer, mini_batch_length=1, use_rollout_state=True).create_trainer() as trainer:
        trainer.initialize()
    assert not any("Recurrent networks learn" in line for line in logged)
