"""Exported policies that follow goals."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.exporting import exportable
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.data_structures import StepType
from alf.export import ExportError, export_policy
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


def test_goals_that_onnx_cannot_draw_are_told_in_a_sentence(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tf2onnx")
    policy = exportable(make_agent(goal_generator=RandomCategoricalGoalGenerator(OBS, 3)))
    with pytest.raises(
        ExportError, match=r"^ONNX has no Stateless\w+, by which this policy computes, .* leave the ONNX"
    ):
        export_policy(policy, str(tmp_path), onnx=True)
