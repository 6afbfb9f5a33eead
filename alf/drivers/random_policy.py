"""Acting at random, to warm up."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.unroll import Call, Policy
from alf.utils import rng


def random_policy(policy: Policy, random_action: Callable[[ActionTimeStep], Nest]) -> Policy:
    """Acts at random; what else acting gives and records is that of `policy`.

    Args:
      policy: gives the rest.
      random_action: see `RLAlgorithm.random_action`.
    """

    def act(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
        policy_step, version = policy(call, time_step, state, t)
        with rng.scope(call.seed + tf.stack([1, t])):
            return policy_step._replace(action=random_action(time_step)), version

    return act
