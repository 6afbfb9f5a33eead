"""Losses of the off-policy algorithms, and their gradients, against double loops in numpy on linear networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.one_step_loss import OneStepTDLoss, per_sequence
from alf.data_structures import Experience, StepType, TrainingInfo
from alf.utils import rng
from alf.utils.losses import element_wise_huber_loss
from tests.algorithms.off_policy import make

FIRST, MID, LAST = (int(x) for x in (StepType.FIRST, StepType.MID, StepType.LAST))
GAMMA = 0.9
T, B = 6, 3
OBS = tensor_spec.TensorSpec([2], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([1], tf.float32, [-2.0], [2.0])
BOXES = tensor_spec.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [2.0, 6.0])
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
        low, high = action_spec.minimum + 0.1, action_spec.maximum - 0.1
        action = rs.uniform(low, high, (T, B, *action_spec.shape)).astype(np.float32)
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
    return TrainingInfo(exp.action, exp.step_type, exp.reward, exp.discount, info, exp.rollout_info)


def loss_and_gradients(algorithm: Any, exp: Experience, sources: list[Any]) -> tuple[np.ndarray, list[Any], Any]:
    """The loss, its sum's gradients by variables or by `exp.observation`, and all the loss tells."""
    with tf.GradientTape() as tape, rng.scope(tf.constant([1, 2])):
        tape.watch(exp.observation)
        loss_info = algorithm.calc_loss(training_info(algorithm, exp))
        total = tf.reduce_sum(loss_info.loss)
    return loss_info.loss.numpy(), [g.numpy() for g in tape.gradient(total, sources)], loss_info


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


@pytest.mark.parametrize("critics", [1, 2])
def test_errors_are_judged_by_the_loss_that_was_given(critics: int) -> None:
    exp = experience(BOX)
    *values, target_value = np.random.RandomState(1).normal(size=(critics + 1, T, B)).astype(np.float32)
    info = TrainingInfo((), exp.step_type, exp.reward, exp.discount)
    given = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = OneStepTDLoss(GAMMA, element_wise_huber_loss)(info, given, tf.constant(target_value)).loss
    targets = n_step_targets(exp, target_value, 1)
    losses, slopes = np.zeros((T, B)), np.zeros((critics, T, B))
    for t, b in trained_rows(exp):
        for i, value in enumerate(values):
            error = targets[t, b] - value[t, b]
            losses[t, b] += 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
            slopes[i, t, b] = -error if abs(error) <= 1.0 else -np.sign(error)
    assert 0 < (np.abs(slopes) == 1.0).sum() < (slopes != 0.0).sum()
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, given), slopes, rtol=1e-4, atol=1e-6)


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
    with pytest.raises(ValueError, match=f"CategoricalDqnAlgorithm: n_step={n} must be at least 1, or -1 for all"):
        make("c51", OBS, CHOICE, n_step=n)


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
    weight = algorithm._q_network.trainable_variables[0]
    kernel, seen = np.zeros((2, 3)), np.zeros((T, B, 2))
    losses = np.zeros((T, B))
    for t, b in trained_rows(exp, n):
        action = int(exp.action[t, b])
        error = targets[t, b] - q[t, b, action]
        losses[t, b] = error**2 * share(n)
        kernel[:, action] += -2 * error * obs[t, b] * share(n)
        seen[t, b] = -2 * error * weight.numpy()[:, action] * share(n)
    loss, gradients, _ = loss_and_gradients(algorithm, exp, [weight, exp.observation])
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[0], kernel, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gradients[1], seen, rtol=1e-3, atol=1e-4)


# ---- SAC ----


def test_the_target_entropy_of_sac_is_that_of_all_parts_of_an_action() -> None:
    parts = {"a": BOX, "b": tensor_spec.BoundedTensorSpec([2], tf.float32, [-3.0, -3.0], [3.0, 5.0])}
    target = make("sac", OBS, parts, layers=None)._target_entropy
    assert target == pytest.approx(np.log(0.04) + np.log(0.06) + np.log(0.08))


def _projection(algorithm: Any) -> list[Any]:
    """The layers that give the mean and the deviation."""
    projection = algorithm._actor_network._projection_networks
    return [projection._means_projection_layer, projection._stddev_projection_layer]


@pytest.mark.parametrize(("box", "n"), [*((BOX, n) for n in STEPS), (BOXES, 1), (BOXES, 3)])
def test_continuous_sac_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, box: Any, n: int) -> None:
    exp = experience(box)
    loss = OneStepTDLoss(GAMMA, n_step=n)
    algorithm = make("sac", OBS, box, layers=None, initial_log_alpha=-0.5, target_entropy=-1.5, critic_loss=loss)
    randomize(algorithm)
    obs, taken = exp.observation.numpy().astype(np.float64), exp.action.numpy().astype(np.float64)
    mean_layer, std_layer = _projection(algorithm)
    noise = np.random.RandomState(5).normal(size=(T, B, *box.shape))
    alpha = np.exp(-0.5)
    middle, half = (box.maximum + box.minimum) / 2.0, (box.maximum - box.minimum) / 2.0

    def sample(network_values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        mean_kernel, mean_bias, std_kernel, std_bias, seen = network_values
        mean, std = seen @ mean_kernel + mean_bias, np.exp(seen @ std_kernel + std_bias)
        u = mean + std * noise
        density = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        log_pi = density - np.log(half * (1.0 - np.tanh(u) ** 2))
        return middle + half * np.tanh(u), log_pi.sum(-1)

    weights = [*mean_layer.trainable_variables, *std_layer.trainable_variables]
    values = [*(w.numpy().astype(np.float64) for w in weights), obs]
    action, log_pi = sample(values)
    target_value = np.min([q_of(c, obs, action) for c in algorithm._target_networks], 0) - alpha * log_pi
    targets = n_step_targets(exp, target_value, n, -alpha * log_pi)
    rows = trained_rows(exp, n)

    def actor_loss(values: list[np.ndarray]) -> float:
        action, log_pi = sample(values)
        q = np.min([q_of(c, obs, action) for c in algorithm._critic_networks], 0)
        return share(n) * float(sum(alpha * log_pi[t, b] - q[t, b] for t, b in rows))

    q_pi = np.min([q_of(c, obs, action) for c in algorithm._critic_networks], 0)
    losses, kernels, alpha_gradient = np.zeros((T, B)), np.zeros((2, 2 + box.shape[0])), 0.0
    seen = np.zeros((T, B, 2))
    for t, b in rows:
        for i, critic in enumerate(algorithm._critic_networks):
            error = targets[t, b] - q_of(critic, obs[t, b], taken[t, b])
            losses[t, b] += share(n) * error**2
            kernels[i] += -2 * share(n) * error * np.concatenate([obs[t, b], taken[t, b]])
            seen[t, b] += -2 * share(n) * error * critic.trainable_variables[0].numpy()[:2, 0]
        losses[t, b] += share(n) * (alpha * log_pi[t, b] - q_pi[t, b] - 0.5 * (-log_pi[t, b] + 1.5))
        alpha_gradient += share(n) * (-log_pi[t, b] + 1.5)
    critics = [c.trainable_variables[0] for c in algorithm._critic_networks]
    drawn = tf.constant(noise, tf.float32)
    monkeypatch.setattr(tf.random, "stateless_normal", lambda shape, seed, dtype: tf.reshape(drawn, shape))
    sources = [*critics, algorithm._log_alpha, *weights, exp.observation]
    loss, gradients, _ = loss_and_gradients(algorithm, exp, sources)
    np.testing.assert_allclose(loss, losses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gradients[0][:, 0], kernels[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[1][:, 0], kernels[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[2], alpha_gradient, rtol=1e-3)
    # The actor's loss moves what it sees itself, not what the critics see.
    *expected, by_actor = numeric_gradients(actor_loss, values)
    for gradient, numeric in zip(gradients[3:], [*expected, seen + by_actor], strict=True):
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
    values = [*(w.numpy().astype(np.float64) for w in actor_weights), obs]
    critics = [linear(obs, c) for c in algorithm._critic_networks]
    lower = np.minimum(*critics)

    def policy(values: list[np.ndarray]) -> np.ndarray:
        logits = values[2] @ values[0] + values[1]
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
    seen = np.zeros((T, B, 2))
    for t, b in rows:
        entropy = -(p[t, b] * np.log(p[t, b])).sum()
        for i, q in enumerate(critics):
            error = targets[t, b] - q[t, b, taken[t, b]]
            losses[t, b] += share(n) * error**2
            kernels[i][:, taken[t, b]] += -2 * share(n) * error * obs[t, b]
            kernel = algorithm._critic_networks[i].trainable_variables[0].numpy()
            seen[t, b] += -2 * share(n) * error * kernel[:, taken[t, b]]
        actor = (p[t, b] * (alpha * np.log(p[t, b]) - lower[t, b])).sum()
        losses[t, b] += share(n) * (actor - 0.5 * (entropy - 0.3))
        alpha_gradient += share(n) * (entropy - 0.3)
    sources = [c.trainable_variables[0] for c in algorithm._critic_networks]
    sources += [algorithm._log_alpha, *actor_weights, exp.observation]
    loss, gradients, _ = loss_and_gradients(algorithm, exp, sources)
    np.testing.assert_allclose(loss, losses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gradients[0], kernels[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[1], kernels[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradients[2], alpha_gradient, rtol=1e-3)
    *expected, by_actor = numeric_gradients(actor_loss, values)
    for gradient, numeric in zip(gradients[3:], [*expected, seen + by_actor], strict=True):
        np.testing.assert_allclose(gradient, numeric, rtol=2e-3, atol=1e-3)
