"""The entropy bonus where entropies are estimated: every loss that has one follows the gradient of the entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.ppo_loss import PPOInfo, PPOLoss
from alf.data_structures import TrainingInfo
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.utils import rng
from tests.algorithms.loss_cases import Info, numeric_gradient
from tests.algorithms.test_bc_algorithm import EPISODE, expert, make

tfd = tfp.distributions
SHAPE = [2, 40_000]
NUMBER = tensor_spec.BoundedTensorSpec([], tf.float32, -9.0, 9.0)
# Of a policy: two means, two logits.
START = np.array([-0.5, 0.8, 0.4, -0.3])


def mixture(params: tf.Tensor) -> Any:
    """SHAPE times a distribution whose entropy has no closed form, and through whose samples no gradient flows."""
    params = tf.broadcast_to(params, [*SHAPE, 4])
    return tfd.MixtureSameFamily(tfd.Categorical(logits=params[..., 2:]), tfd.Normal(params[..., :2], 0.5))


def entropy(params: np.ndarray) -> float:
    """By quadrature."""
    weights, total = np.exp(params[2:]) / np.exp(params[2:]).sum(), 0.0
    for x in np.arange(-8.0, 8.0, 0.01):
        p = 0.0
        for mean, weight in zip(params[:2], weights, strict=True):
            p += weight * np.exp(-2.0 * (x - mean) ** 2) / (0.5 * np.sqrt(2.0 * np.pi))
        total -= 0.01 * p * np.log(p + 1e-300)
    return total


def of_actor_critic(info: TrainingInfo) -> tf.Tensor:
    return ActorCriticLoss(NUMBER, entropy_regularization=1.0)(info, tf.zeros(SHAPE)).loss


def of_ppo(info: TrainingInfo) -> tf.Tensor:
    none, acted = tf.zeros(SHAPE), mixture(tf.constant(START, tf.float32))
    loss = PPOLoss(NUMBER, entropy_regularization=1.0, normalize_advantages=False)
    return loss(info._replace(rollout_info=PPOInfo(acted, none, none)), none).loss


def of_cloning(info: TrainingInfo) -> tf.Tensor:
    """Without the likelihood, which has a gradient of its own."""
    env = PolicyUnittestEnv(1, EPISODE, seed=0)
    algorithm = make(env, expert(env, 1), entropy_regularization=1.0)
    return algorithm.calc_loss(info).loss + info.info.action_distribution.log_prob(info.action)


@pytest.mark.parametrize("loss", [of_actor_critic, of_ppo, of_cloning])
def test_the_bonus_raises_entropies_that_are_estimated(loss: Callable[[TrainingInfo], tf.Tensor]) -> None:
    """Nothing else has a gradient: advantages are zero."""
    params, none = tf.Variable(START.astype(np.float32)), tf.zeros(SHAPE)
    with tf.GradientTape() as tape, rng.scope(tf.constant([1, 2])):
        info = TrainingInfo(none, tf.ones(SHAPE, tf.int32), none, tf.ones(SHAPE), Info(mixture(params)))
        # The last row is only looked at.
        mean = tf.reduce_mean(loss(info)[0])
    expected = numeric_gradient(entropy, START.copy())
    assert np.abs(expected).max() > 0.2
    np.testing.assert_allclose(-tape.gradient(mean, params), expected, atol=0.03)
