"""TD3's delayed actor: what an update that leaves it alone computes, and that nothing else depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.ddpg_algorithm import DdpgInfo
from alf.data_structures import Experience
from alf.utils import rng
from tests.algorithms.off_policy import make
from tests.algorithms.test_off_policy_losses import BOX, OBS, B, T, experience, randomize, training_info

PERIOD = 3


def td3(period: int = PERIOD) -> Any:
    """With the same weights each time; steps of plain gradient descent."""
    optimizers = {f"{name}_optimizer": tf.keras.optimizers.legacy.SGD(0.05) for name in ("actor", "critic")}
    algorithm = make("td3", OBS, BOX, layers=(8,), actor_update_period=period, target_policy_noise=0.0, **optimizers)
    randomize(algorithm)
    return algorithm


def actor_of(algorithm: Any) -> list[tf.Variable]:
    return list(algorithm._actor_network.trainable_variables)


def critics_of(algorithm: Any) -> list[tf.Variable]:
    return [v for network in algorithm._critic_networks for v in network.trainable_variables]


def loss_and_gradients(algorithm: Any, exp: Experience, since: int) -> Any:
    """Traced: the loss [T, B], what is told of it, and the gradients of actor and critics, `since` updates after a move."""
    algorithm._update_targets._since.assign(since)
    variables = [*actor_of(algorithm), *critics_of(algorithm)]

    @tf.function(autograph=False)
    def run() -> Any:
        with tf.GradientTape() as tape, rng.scope(tf.constant([1, 2])):
            info = algorithm.calc_loss(training_info(algorithm, exp))
            total = tf.reduce_sum(info.loss)
        gradients = tape.gradient(total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return info.loss, info.extra["actor_loss"], gradients

    loss, told, gradients = run()
    count = len(actor_of(algorithm))
    return loss.numpy(), float(told), [g.numpy() for g in gradients[:count]], [g.numpy() for g in gradients[count:]]


def test_the_actor_has_a_gradient_where_it_moves_and_all_else_is_the_same() -> None:
    exp = experience(BOX)
    loss, told, of_actor, of_critics = loss_and_gradients(td3(1), exp, 0)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in of_actor)
    for since in range(PERIOD):
        found = loss_and_gradients(td3(), exp, since)
        np.testing.assert_allclose(found[0], loss, rtol=1e-6)
        assert found[1] == pytest.approx(told, rel=1e-6)
        moves = since == PERIOD - 1
        for gradient, expected in zip(found[2], of_actor, strict=True):
            np.testing.assert_allclose(gradient, expected * moves, rtol=1e-5, atol=1e-7)
        for gradient, expected in zip(found[3], of_critics, strict=True):
            np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.fixture
def eagerly() -> Iterator[None]:
    yield
    tf.config.run_functions_eagerly(False)


def test_the_actor_moves_in_every_last_update_of_a_period(eagerly: None) -> None:
    """Six updates in one traced call end where six do step by step, in each of which the weights are looked at."""
    recorded = experience(BOX)._replace(rollout_info=DdpgInfo())
    exp = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), recorded)
    traced, plain = td3(), td3()
    traced.train_from(exp, num_updates=2 * PERIOD, mini_batch_length=T)
    assert exp.step_type.shape == [B, T]
    tf.config.run_functions_eagerly(True)
    for update in range(2 * PERIOD):
        before = [[v.numpy() for v in of(plain)] for of in (actor_of, critics_of)]
        plain.train_from(exp, num_updates=1, mini_batch_length=T)
        moved = [
            any((v.numpy() != w).any() for v, w in zip(of(plain), old, strict=True))
            for of, old in zip((actor_of, critics_of), before, strict=True)
        ]
        assert moved == [update % PERIOD == PERIOD - 1, True]
    for one, other in zip(traced.variables, plain.variables, strict=True):
        if one.dtype == tf.float32:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
