"""Losses of the off-policy algorithms, and their gradients, against double loops in numpy on linear networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms import minibatch
from alf.algorithms.one_step_loss import OneStepTDLoss, per_sequence
from alf.algorithms.sarsa_algorithm import SarsaInfo
from alf.algorithms.transitions import Transitions
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, StepType, TrainingInfo
from alf.utils import rng
from tests.algorithms.off_policy import make

FIRST, MID, LAST = (int(x) for x in (StepType.FIRST, StepType.MID, StepType.LAST))
GAMMA = 0.9
T, B = 6, 3
OBS = tensor_spec.TensorSpec([2], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([1], tf.float32, [-2.0], [2.0])
STEPS = [1, 2, 3, -1]
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)


def experience(action_spec: Any, seed: int = 0) -> Experience:
    """[T, B]: column 0 ends truly in mid-segment, column 1 by truncation, column 2 not at all."""
    rs = np.random.RandomState(seed)
    step_type = np.full((T, B), MID, np.int32)
    step_type[2, :2], step_type[3, :2] = LAST, FIRST
    discount = np.ones((T, B), np.float32)
    discount[2, 0] = 0.0
    if action_spec.dtype.is_integer:
        action = rs.randint(0, 3, (T, B)).astype(np.int64)
    else:
        action = rs.uniform(-1.9, 1.9, (T, B, 1)).astype(np.float32)
    return Experience(
        step_type=tf.constant(step_type),
        reward=tf.constant(rs.normal(size=(T, B)).astype(np.float32)),
        discount=tf.constant(discount),
        observation=tf.constant(rs.normal(size=(T, B, 2)).astype(np.float32)),
        prev_action=(),
        env_id=(),
        action=tf.constant(action),
    )


def n_step_targets(exp: Experience, value: np.ndarray, n: int, bonus: np.ndarray | None = None) -> np.ndarray:
    """The definition: walk on for n steps, all there are with -1, or to the end of the episode.

    `bonus` is what a row on the way is worth in itself; `value` of the last one has it already.
    """
    reward, discount, step_type = (np.asarray(x, np.float64) for x in (exp.reward, exp.discount, exp.step_type))
    targets = np.array(value, np.float64)
    for b in range(B):
        for t in range(T - 1):
            total, factor, row = 0.0, 1.0, t
            for _ in range(T if n == -1 else n):
                if bonus is not None and row > t:
                    total += factor * bonus[row, b]
                row += 1
                total += factor * reward[row, b]
                factor *= GAMMA * discount[row, b]
                if step_type[row, b] == LAST or row == T - 1:
                    break
            targets[t, b] = total + factor * value[row, b]
    return targets


def trained_rows(exp: Experience, n: int = 1) -> list[tuple[int, int]]:
    step_type = exp.step_type.numpy()
    return [(t, b) for t in range(T - max(n, 1)) for b in range(B) if step_type[t, b] != LAST]


def share(n: int) -> float:
    """What a loss of n steps multiplies its rows with: the learner divides by the T - 1 that one step would train."""
    return (T - 1) / (T - max(n, 1))


def training_info(algorithm: Any, exp: Experience) -> TrainingInfo:
    info = algorithm._run_train_steps(exp, extended=True)
    return TrainingInfo(exp.action, exp.step_type, exp.reward, exp.discount, info)


def loss_and_gradients(
    algorithm: Any, exp: Experience, variables: list[tf.Variable]
) -> tuple[np.ndarray, list[Any], Any]:
    with tf.GradientTape() as tape, rng.scope(tf.constant([1, 2])):
        loss_info = algorithm.calc_loss(training_info(algorithm, exp))
        total = tf.reduce_sum(loss_info.loss)
    return loss_info.loss.numpy(), [g.numpy() for g in tape.gradient(total, variables)], loss_info


def numeric_gradients(loss: Callable[[list[np.ndarray]], float], values: list[np.ndarray]) -> list[np.ndarray]:
    gradients = [np.zeros_like(v) for v in values]
    for i, value in enumerate(values):
        for index in np.ndindex(*value.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [v.copy() for v in values]
                moved[i][index] += step
                ends.append(loss(moved))
            gradients[i][index] = (ends[0] - ends[1]) / 2e-5
    return gradients


def randomize(algorithm: Any, seed: int = 3) -> None:
    rs = np.random.RandomState(seed)
    for variable in algorithm.variables:
        if variable.dtype == tf.float32 and variable.shape.rank:
            variable.assign(rs.normal(scale=0.5, size=variable.shape))


def linear(x: np.ndarray, network: Any) -> np.ndarray:
    """A network without hidden layers, in float64."""
    kernel, bias = (v.numpy().astype(np.float64) for v in network.trainable_variables)
    return x @ kernel + bias


def q_of(critic: Any, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    return linear(np.concatenate([obs, action], -1), critic)[..., 0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, -1])
def test_targets_look_ahead_n_steps_or_to_the_end_of_the_episode(n: int) -> None:
    exp = experience(BOX)
    rs = np.random.RandomState(1)
    value, target_value = rs.normal(size=(2, T, B)).astype(np.float32)
    info = TrainingInfo((), exp.step_type, exp.reward, exp.discount)
    loss = OneStepTDLoss(GAMMA, n_step=n, debug_summaries=True)(info, tf.constant(value), tf.constant(target_value))
    expected = n_step_targets(exp, target_value, n)
    np.testing.assert_allclose(loss.extra["target"].numpy()[:-1], expected[:-1], rtol=1e-5, atol=1e-6)
    rows = trained_rows(exp, n)
    losses = np.zeros((T, B))
    for t, b in rows:
        losses[t, b] = (expected[t, b] - value[t, b]) ** 2 * share(n)
    np.testing.assert_allclose(loss.loss, losses, rtol=1e-4, atol=1e-6)
    errors = np.abs(expected - value)
    priority = [np.mean([errors[t, c] for t, c in rows if c == b] or [0.0]) for b in range(B)]
    np.testing.assert_allclose(loss.priority, priority, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [1, 3])
def test_of_several_critics_losses_are_summed_and_errors_averaged(n: int) -> None:
    exp = experience(BOX)
    one, other, target_value = np.random.RandomState(1).normal(size=(3, T, B)).astype(np.float32)
    info, loss = TrainingInfo((), exp.step_type, exp.reward, exp.discount), OneStepTDLoss(GAMMA, n_step=n)
    got = loss(info, [tf.constant(one), tf.constant(other)], tf.constant(target_value))
    expected, rows = n_step_targets(exp, target_value, n), trained_rows(exp, n)
    errors = {(t, b): [abs(expected[t, b] - v[t, b]) for v in (one, other)] for t, b in rows}
    priority = [np.mean([errors[row] for row in rows if row[1] == b]) for b in range(B)]
    np.testing.assert_allclose(got.priority, priority, rtol=1e-4)
    assert float(got.extra["td_error"]) == pytest.approx(np.mean(list(errors.values())), rel=1e-4)
    assert float(got.extra["td_loss"]) == pytest.approx(2 * np.mean(np.square(list(errors.values()))), rel=1e-4)
    assert float(got.extra["value"]) == pytest.approx(np.mean([one[row] for row in rows]), rel=1e-4)


def test_priorities_are_of_absolute_errors() -> None:
    """Networks of others tell theirs with a sign."""
    errors, weights = [[1.0, -2.0, 5.0], [-3.0, 4.0, 5.0]], [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    np.testing.assert_allclose(per_sequence(tf.constant(errors), tf.constant(weights)), [2.0, 2.0, 0.0])


@pytest.mark.parametrize("n", [0, -2])
def test_a_number_of_steps_that_means_nothing_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n_step={n} must be at least 1, or -1 for all"):
        OneStepTDLoss(n_step=n)


def test_a_sequence_too_short_for_n_steps_is_an_error() -> None:
    info = TrainingInfo((), tf.ones([3, 1], tf.int32), tf.ones([3, 1]), tf.ones([3, 1]))
    with pytest.raises(ValueError, match="mini_batch_length to at least 4"):
        OneStepTDLoss(n_step=3)(info, tf.ones([3, 1]), tf.ones([3, 1]))


def test_gamma_multiplies_the_discount_of_every_algorithm() -> None:
    """SARSA too, which once ignored it."""
    for name in ("sac", "ddpg", "td3", "sarsa"):
        algorithm = make(name, OBS, BOX, gamma=0.123)
        assert algorithm._critic_loss.gamma == 0.123


# ---- DQN ----


@pytest.mark.parametrize("n", STEPS)
@pytest.mark.parametrize("double", [False, True])
def test_dqn_loss_and_gradient(double: bool, n: int) -> None:
    exp = experience(CHOICE)
    algorithm = make("dqn", OBS, CHOICE, layers=None, double=double, critic_loss=OneStepTDLoss(GAMMA, n_step=n))
    randomize(algorithm)
    obs = exp.observation.numpy().astype(np.float64)
    q, q_target = linear(obs, algorithm._q_network), linear(obs, algorithm._target_networks[0])
    best = (q if double else q_target).argmax(-1)
    assert (q.argmax(-1) != q_target.argmax(-1)).any()
    targets = n_step_targets(exp, np.take_along_axis(q_target, best[..., None], -1)[..., 0], n)
    kernel = np.zeros((2, 3))
    losses = np.zeros((T, B))
    for t, b in trained_rows(exp, n):
        action = int(exp.action[t, b])
        error = targets[t, b] - q[t, b, action]
        losses[t, b] = error**2 * share(n)
        kernel[:, action] += -2 * error * obs[t, b] * share(n)
    variables = algorithm._q_network.trainable_variables
    loss, gradients, _ = loss_and_gradients(algorithm, exp, variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[0], kernel, rtol=1e-3, atol=1e-4)


# ---- C51 ----


@pytest.mark.parametrize("n", STEPS[:3])
def test_categorical_dqn_loss_and_gradient(n: int) -> None:
    exp = experience(CHOICE)
    algorithm = make("c51", OBS, CHOICE, GAMMA, layers=None, n_step=n, min_q_value=-1, max_q_value=2)
    randomize(algorithm)
    obs = exp.observation.numpy().astype(np.float64)
    atoms = np.linspace(-1.0, 2.0, 21)

    def probabilities(network: Any) -> np.ndarray:
        logits = linear(obs, network).reshape(T, B, 3, 21)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    p, p_target = probabilities(algorithm._q_network), probabilities(algorithm._target_networks[0])
    best = (p @ atoms).argmax(-1)
    # What lies n steps ahead: rewards, the discount and the row, read off targets that are linear in the value.
    base = n_step_targets(exp, np.zeros((T, B)), n)
    losses = np.zeros((T, B))
    for t, b in trained_rows(exp, n):
        factor, row = 1.0, t
        for _ in range(n):
            row += 1
            factor *= GAMMA * float(exp.discount[row, b])
            if int(exp.step_type[row, b]) == LAST:
                break
        target = np.zeros(21)
        for j in range(21):
            place = (np.clip(base[t, b] + factor * atoms[j], -1.0, 2.0) + 1.0) / 0.15
            low = min(int(np.floor(place + 1e-9)), 19)
            mass = p_target[row, b, best[row, b], j]
            target[low] += mass * (low + 1 - place)
            target[low + 1] += mass * (place - low)
        assert target.sum() == pytest.approx(1.0)
        losses[t, b] = -(target * np.log(p[t, b, int(exp.action[t, b])])).sum() * share(n)
    variables = algorithm._q_network.trainable_variables
    loss, gradients, info = loss_and_gradients(algorithm, exp, variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-3, atol=1e-4)
    priority = [np.mean([losses[row] for row in trained_rows(exp, n) if row[1] == b]) / share(n) for b in range(B)]
    np.testing.assert_allclose(info.priority, priority, rtol=1e-3)
    assert any(np.abs(g).max() > 0.01 for g in gradients)


# ---- DDPG, TD3, SARSA ----


def _actor(network: Any, obs: np.ndarray) -> np.ndarray:
    return 2.0 * np.tanh(linear(obs, network))


@pytest.mark.parametrize("n", STEPS)
def test_ddpg_loss_and_gradients(n: int) -> None:
    _check_actor_critic(make("ddpg", OBS, BOX, layers=None, critic_loss=OneStepTDLoss(GAMMA, n_step=n)), n)


@pytest.mark.parametrize("n", STEPS)
def test_td3_takes_the_smaller_of_two_targets(n: int) -> None:
    kw = {"target_policy_noise": 0.0, "actor_update_period": 1}
    _check_actor_critic(make("td3", OBS, BOX, layers=None, critic_loss=OneStepTDLoss(GAMMA, n_step=n), **kw), n)


def _check_actor_critic(algorithm: Any, n: int) -> None:
    exp = experience(BOX)
    randomize(algorithm)
    next_action = _actor(algorithm._target_actor, exp.observation.numpy().astype(np.float64))
    obs, action = exp.observation.numpy().astype(np.float64), exp.action.numpy().astype(np.float64)
    value = np.min([q_of(c, obs, next_action) for c in algorithm._target_critics], 0)
    targets = n_step_targets(exp, value, n)
    chosen = _actor(algorithm._actor_network, obs)
    rows = trained_rows(exp, n)
    losses, kernels = np.zeros((T, B)), [np.zeros(3) for _ in algorithm._critic_networks]
    actor_kernel = np.zeros(2)
    slope = algorithm._critic_networks[0].trainable_variables[0].numpy()[2, 0]
    for t, b in rows:
        for i, critic in enumerate(algorithm._critic_networks):
            error = targets[t, b] - q_of(critic, obs[t, b], action[t, b])
            losses[t, b] += error**2 * share(n)
            kernels[i] += -2 * share(n) * error * np.concatenate([obs[t, b], action[t, b]])
        losses[t, b] -= q_of(algorithm._critic_networks[0], obs[t, b], chosen[t, b]) * share(n)
        actor_kernel -= share(n) * slope * 2.0 * (1 - (chosen[t, b, 0] / 2.0) ** 2) * obs[t, b]
    variables = [n.trainable_variables[0] for n in (*algorithm._critic_networks, algorithm._actor_network)]
    loss, gradients, _ = loss_and_gradients(algorithm, exp, variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    for gradient, kernel in zip(gradients, [*kernels, actor_kernel], strict=True):
        np.testing.assert_allclose(gradient[:, 0], kernel, rtol=1e-3, atol=1e-4)


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
        rollout_info=SarsaInfo(next_action=following),
    )
    found = tf.reshape(algorithm.next_action(info, Transitions(info, n)), [T - n, B]).numpy()
    step_type = exp.step_type.numpy()
    for t, b in np.ndindex(T - n, B):
        row = t + 1
        while row < t + n and step_type[row, b] != StepType.LAST:
            row += 1
        assert found[t, b] == row * B + b


# ---- SAC ----


def test_the_target_entropy_of_sac_is_that_of_all_parts_of_an_action() -> None:
    parts = {"a": BOX, "b": tensor_spec.BoundedTensorSpec([2], tf.float32, [-3.0, -3.0], [3.0, 5.0])}
    target = make("sac", OBS, parts, layers=None)._target_entropy
    assert target == pytest.approx(np.log(0.04) + np.log(0.06) + np.log(0.08))


def _projection(algorithm: Any) -> list[Any]:
    """The layers that give the mean and the deviation."""
    projection = algorithm._actor_network._projection_networks
    return [projection._means_projection_layer, projection._stddev_projection_layer]


@pytest.mark.parametrize("n", STEPS)
def test_continuous_sac_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    exp = experience(BOX)
    loss = OneStepTDLoss(GAMMA, n_step=n)
    algorithm = make("sac", OBS, BOX, layers=None, initial_log_alpha=-0.5, target_entropy=-1.5, critic_loss=loss)
    randomize(algorithm)
    obs, taken = exp.observation.numpy().astype(np.float64), exp.action.numpy().astype(np.float64)
    mean_layer, std_layer = _projection(algorithm)
    noise = np.random.RandomState(5).normal(size=(T, B, 1))
    alpha = np.exp(-0.5)

    def sample(network_values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        mean_kernel, mean_bias, std_kernel, std_bias = network_values
        mean, std = obs @ mean_kernel + mean_bias, np.exp(obs @ std_kernel + std_bias)
        u = mean + std * noise
        density = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return 2.0 * np.tanh(u), (density - np.log(2.0 * (1.0 - np.tanh(u) ** 2)))[..., 0]

    weights = [*mean_layer.trainable_variables, *std_layer.trainable_variables]
    values = [w.numpy().astype(np.float64) for w in weights]
    action, log_pi = sample(values)
    target_value = np.min([q_of(c, obs, action) for c in algorithm._target_networks], 0) - alpha * log_pi
    targets = n_step_targets(exp, target_value, n, -alpha * log_pi)
    rows = trained_rows(exp, n)

    def actor_loss(values: list[np.ndarray]) -> float:
        action, log_pi = sample(values)
        q = np.min([q_of(c, obs, action) for c in algorithm._critic_networks], 0)
        return share(n) * float(sum(alpha * log_pi[t, b] - q[t, b] for t, b in rows))

    q_pi = np.min([q_of(c, obs, action) for c in algorithm._critic_networks], 0)
    losses, kernels, alpha_gradient = np.zeros((T, B)), [np.zeros(3), np.zeros(3)], 0.0
    for t, b in rows:
        for i, critic in enumerate(algorithm._critic_networks):
            error = targets[t, b] - q_of(critic, obs[t, b], taken[t, b])
            losses[t, b] += share(n) * error**2
            kernels[i] += -2 * share(n) * error * np.concatenate([obs[t, b], taken[t, b]])
        losses[t, b] += share(n) * (alpha * log_pi[t, b] - q_pi[t, b] - 0.5 * (-log_pi[t, b] + 1.5))
        alpha_gradient += share(n) * (-log_pi[t, b] + 1.5)
    variables = [*(c.trainable_variables[0] for c in algorithm._critic_networks), algorithm._log_alpha, *weights]
    drawn = tf.constant(noise, tf.float32)
    monkeypatch.setattr(tf.random, "stateless_normal", lambda shape, seed, dtype: tf.reshape(drawn, shape))
    loss, gradients, _ = loss_and_gradients(algorithm, exp, variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gradients[0][:, 0], kernels[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[1][:, 0], kernels[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[2], alpha_gradient, rtol=1e-3)
    for gradient, numeric in zip(gradients[3:], numeric_gradients(actor_loss, values), strict=True):
        np.testing.assert_allclose(gradient, numeric, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("n", STEPS)
def test_discrete_sac_loss_and_gradients(n: int) -> None:
    """Expectations over actions are sums, not means: old ALF's loss of the actor was too small by their number."""
    exp = experience(CHOICE)
    loss = OneStepTDLoss(GAMMA, n_step=n)
    algorithm = make(
        "discrete_sac", OBS, CHOICE, layers=None, initial_log_alpha=-0.5, target_entropy=0.3, critic_loss=loss
    )
    randomize(algorithm)
    obs, taken = exp.observation.numpy().astype(np.float64), exp.action.numpy()
    alpha = np.exp(-0.5)
    actor_weights = list(algorithm._actor_network.trainable_variables)
    values = [w.numpy().astype(np.float64) for w in actor_weights]
    critics = [linear(obs, c) for c in algorithm._critic_networks]
    lower = np.minimum(*critics)

    def policy(values: list[np.ndarray]) -> np.ndarray:
        logits = obs @ values[0] + values[1]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    def actor_loss(values: list[np.ndarray]) -> float:
        p, total = policy(values), 0.0
        for t, b in rows:
            for a in range(3):
                total += p[t, b, a] * (alpha * np.log(p[t, b, a]) - lower[t, b, a])
        return share(n) * total

    rows, p = trained_rows(exp, n), policy(values)
    target_q = np.minimum(*[linear(obs, c) for c in algorithm._target_networks])
    bonus = -alpha * (p * np.log(p)).sum(-1)
    targets = n_step_targets(exp, (p * target_q).sum(-1) + bonus, n, bonus)
    losses, kernels, alpha_gradient = np.zeros((T, B)), [np.zeros((2, 3)), np.zeros((2, 3))], 0.0
    for t, b in rows:
        entropy = -(p[t, b] * np.log(p[t, b])).sum()
        for i, q in enumerate(critics):
            error = targets[t, b] - q[t, b, taken[t, b]]
            losses[t, b] += share(n) * error**2
            kernels[i][:, taken[t, b]] += -2 * share(n) * error * obs[t, b]
        actor = (p[t, b] * (alpha * np.log(p[t, b]) - lower[t, b])).sum()
        losses[t, b] += share(n) * (actor - 0.5 * (entropy - 0.3))
        alpha_gradient += share(n) * (entropy - 0.3)
    variables = [*(c.trainable_variables[0] for c in algorithm._critic_networks), algorithm._log_alpha, *actor_weights]
    loss, gradients, _ = loss_and_gradients(algorithm, exp, variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gradients[0], kernels[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[1], kernels[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[2], alpha_gradient, rtol=1e-3)
    for gradient, numeric in zip(gradients[3:], numeric_gradients(actor_loss, values), strict=True):
        np.testing.assert_allclose(gradient, numeric, rtol=2e-3, atol=1e-3)
