"""Acting at random, to warm up."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.unroll import Call, Decision, Policy, queue_decision
from alf.utils import rng


def random_policy(
    policy: Policy, random_action: Callable[[ActionTimeStep], Nest], decide: Decision = queue_decision
) -> Policy:
    """Acts at random; what else acting gives and records is that of `policy`.

    Args:
      policy: gives the rest.
      random_action: see `RLAlgorithm.random_action`.
      decide: puts its action in the place of the policy's.
    """

    def act(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
        policy_step, version = policy(call, time_step, state, t)
        with rng.scope(call.seed + tf.stack([1, t])):
            return decide(call, time_step, state, policy_step, random_action(time_step)), version

    return act
