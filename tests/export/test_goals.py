"""Exported policies that follow goals."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from alf.algorithms.exporting import exportable
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.data_structures import StepType
from tests.algorithms.test_agent import OBS, make_agent


def test_who_calls_an_exported_model_chooses_the_goal() -> None:
    """By a step in mid-episode with the goal as the state before it."""
    policy = exportable(make_agent(goal_generator=RandomCategoricalGoalGenerator(OBS, 3)))
    goals = tf.one_hot([2, 0, 1], 3)
    inputs = {leaf.name: tf.zeros([3, *leaf.shape], leaf.dtype) for leaf in policy.inputs}
    inputs |= {"step_type": tf.fill([3], StepType.MID), "state_goal_generator_goal": goals}
    values = policy.functions["value"](inputs)
    np.testing.assert_array_equal(values["state_goal_generator_goal"], goals)
    np.testing.assert_array_equal(policy.functions["action"](inputs)["state_goal_generator_goal"], goals)
    assert len(np.unique(values["value"])) == 3
