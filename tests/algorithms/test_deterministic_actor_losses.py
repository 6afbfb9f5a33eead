"""Losses of the algorithms with a deterministic actor, and their gradients, against double loops on linear networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms import minibatch
from alf.algorithms.critic_algorithm import NetworkStates
from alf.algorithms.ddpg_algorithm import DdpgInfo
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sarsa_algorithm import SarsaInfo
from alf.algorithms.transitions import Transitions
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, StepType, TrainingInfo
from tests.algorithms.off_policy import make
from tests.algorithms.test_off_policy_losses import (
    BOX,
    GAMMA,
    OBS,
    STEPS,
    B,
    T,
    experience,
    linear,
    loss_and_gradients,
    n_step_targets,
    q_of,
    randomize,
    share,
    trained_rows,
)


def _actor(network: Any, obs: np.ndarray) -> np.ndarray:
    return 2.0 * np.tanh(linear(obs, network))


@pytest.mark.parametrize("n", STEPS)
def test_ddpg_loss_and_gradients(n: int) -> None:
    algorithm = make("ddpg", OBS, BOX, layers=None, critic_loss=OneStepTDLoss(GAMMA, n_step=n))
    _check_actor_critic(algorithm, experience(BOX), n, lambda action: action)


@pytest.mark.parametrize("n", STEPS)
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_td3_takes_the_smaller_of_two_targets_at_smoothed_actions(
    monkeypatch: pytest.MonkeyPatch, noise: float, n: int
) -> None:
    kw = {"target_policy_noise": noise, "target_policy_noise_clip": 0.5, "actor_update_period": 1}
    algorithm = make("td3", OBS, BOX, layers=None, critic_loss=OneStepTDLoss(GAMMA, n_step=n), **kw)
    drawn = np.random.RandomState(6).normal(size=(T, B, 1))
    monkeypatch.setattr(tf.random, "stateless_normal", lambda shape, seed: tf.constant(drawn, tf.float32))
    # In halves of the action's range, which are 2.
    smoothing = 2.0 * np.clip(noise * drawn, -0.5, 0.5)
    _check_actor_critic(algorithm, experience(BOX), n, lambda action: np.clip(action + smoothing, -2.0, 2.0))


@pytest.mark.parametrize("n", STEPS)
def test_sarsa_loss_and_gradients(n: int) -> None:
    """Its targets are values of the actions that were taken, by the target critic; at the end of an episode none was."""
    gin.bind_parameter("OneStepTDLoss.n_step", n)
    exp = experience(BOX)
    following = tf.concat([exp.action[1:], exp.action[-1:]], 0)
    algorithm = make("sarsa", OBS, BOX, GAMMA, layers=None)

    def supposed(_: np.ndarray) -> np.ndarray:
        own = _actor(algorithm._actor_network, exp.observation.numpy().astype(np.float64))
        ended = exp.step_type.numpy()[..., None] == StepType.LAST
        return np.where(ended, own, exp.action.numpy())

    _check_actor_critic(algorithm, exp._replace(rollout_info=SarsaInfo(following)), n, supposed)


def _check_actor_critic(algorithm: Any, exp: Experience, n: int, supposed: Callable[[np.ndarray], np.ndarray]) -> None:
    """`supposed`: from the target actor's actions [T, B, 1] to those that the targets are values of."""
    randomize(algorithm)
    next_action = supposed(_actor(algorithm._target_actor, exp.observation.numpy().astype(np.float64)))
    obs, action = exp.observation.numpy().astype(np.float64), exp.action.numpy().astype(np.float64)
    value = np.min([q_of(c, obs, next_action) for c in algorithm._target_critics], 0)
    targets = n_step_targets(exp, value, n)
    chosen = _actor(algorithm._actor_network, obs)
    rows = trained_rows(exp, n)
    losses, kernels = np.zeros((T, B)), [np.zeros(3) for _ in algorithm._critic_networks]
    actor_kernel, seen = np.zeros(2), np.zeros((T, B, 2))
    actor_weight = algorithm._actor_network.trainable_variables[0].numpy()[:, 0]
    slope = algorithm._critic_networks[0].trainable_variables[0].numpy()[2, 0]
    for t, b in rows:
        for i, critic in enumerate(algorithm._critic_networks):
            error = targets[t, b] - q_of(critic, obs[t, b], action[t, b])
            losses[t, b] += error**2 * share(n)
            kernels[i] += -2 * share(n) * error * np.concatenate([obs[t, b], action[t, b]])
            seen[t, b] += -2 * share(n) * error * critic.trainable_variables[0].numpy()[:2, 0]
        losses[t, b] -= q_of(algorithm._critic_networks[0], obs[t, b], chosen[t, b]) * share(n)
        ascent = share(n) * slope * 2.0 * (1 - (chosen[t, b, 0] / 2.0) ** 2)
        actor_kernel -= ascent * obs[t, b]
        seen[t, b] -= ascent * actor_weight
    variables = [n.trainable_variables[0] for n in (*algorithm._critic_networks, algorithm._actor_network)]
    loss, (*gradients, by_observation), _ = loss_and_gradients(algorithm, exp, [*variables, exp.observation])
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    for gradient, kernel in zip(gradients, [*kernels, actor_kernel], strict=True):
        np.testing.assert_allclose(gradient[:, 0], kernel, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(by_observation, seen, rtol=1e-3, atol=1e-4)


def test_sarsa_judges_by_the_action_that_was_taken_next() -> None:
    exp = experience(BOX)
    algorithm = make("sarsa", OBS, BOX, GAMMA, layers=None)
    randomize(algorithm)
    batch = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), exp)
    time_step = Experience(*(x[:, -1] if x != () else () for x in batch[:5]))
    trained = tf.nest.map_structure(lambda x: x[:, :-1], batch)
    bootstrap = Bootstrap(
        ActionTimeStep(time_step.step_type, time_step.reward, time_step.discount, time_step.observation)
    )
    noted = algorithm.preprocess_experience(trained._replace(bootstrap=bootstrap)).rollout_info.next_action.numpy()
    np.testing.assert_array_equal(noted[:, :-1], batch.action.numpy()[:, 1:-1])
    own = _actor(algorithm._actor_network, batch.observation.numpy()[:, -1].astype(np.float64))
    np.testing.assert_allclose(noted[:, -1], own, rtol=1e-4, atol=1e-5)


def test_sarsa_on_samples_judges_by_the_action_of_the_last_row() -> None:
    algorithm = make("sarsa", OBS, BOX, GAMMA, layers=None)
    batch = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), experience(BOX))
    batch = batch._replace(policy_version=batch.step_type)
    rows, extended = minibatch.with_last_row(batch, algorithm.preprocess_experience)
    assert extended
    np.testing.assert_array_equal(rows.rollout_info.next_action[:, :-1], batch.action[:, 1:])


def test_sarsa_learns_from_steps_of_which_nothing_is_known_behind_the_last() -> None:
    """As a memory hands them out that was filled step by step: the last row is only looked at."""
    algorithm = make("sarsa", OBS, BOX, GAMMA, layers=None)
    batch = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), experience(BOX))
    noted = algorithm.preprocess_experience(batch).rollout_info.next_action
    np.testing.assert_array_equal(noted[:, :-1], batch.action[:, 1:])
    algorithm.train_from(batch)
    assert np.isfinite(algorithm.last_train_metrics["loss"])


@pytest.mark.parametrize("n", STEPS[:3])
def test_sarsa_supposes_the_action_of_the_row_that_it_looks_at(n: int) -> None:
    exp, algorithm = experience(BOX), make("sarsa", OBS, BOX, GAMMA, layers=None)
    number = tf.reshape(tf.range(T * B, dtype=tf.float32), [T, B, 1])
    following = tf.concat([number[1:], -tf.ones([1, B, 1])], 0)
    info = TrainingInfo(
        action=number,
        step_type=exp.step_type,
        reward=exp.reward,
        discount=exp.discount,
        info=DdpgInfo((), exp.observation, NetworkStates()),
        rollout_info=SarsaInfo(next_action=following),
    )
    own = _actor(algorithm._actor_network, exp.observation.numpy())[..., 0]
    found = tf.reshape(algorithm.next_action(info, Transitions(info, n)), [T - n, B]).numpy()
    step_type = exp.step_type.numpy()
    for t, b in np.ndindex(T - n, B):
        row = t + 1
        while row < t + n and step_type[row, b] != StepType.LAST:
            row += 1
        ended = step_type[row, b] == StepType.LAST
        assert found[t, b] == pytest.approx(own[row, b] if ended else row * B + b, rel=1e-4)
