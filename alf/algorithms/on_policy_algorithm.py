"""Algorithms whose loss re-runs what was acted."""

from __future__ import annotations

import gin

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING
from alf.data_structures import ActionTimeStep, Experience, Nest, PolicyStep


def time_step_of(exp: Experience) -> ActionTimeStep:
    """The time step of experience, any leading axes."""
    return ActionTimeStep(*exp[: len(ActionTimeStep._fields)])


@gin.configurable(module="alf")
class OnPolicyAlgorithm(OffPolicyAlgorithm):
    """An algorithm whose `train_step` is its `rollout`, re-run under the current weights."""

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """`rollout` of the recorded time slice [B, ...]."""
        return self.rollout(time_step_of(inputs), state, OFF_POLICY_TRAINING)
