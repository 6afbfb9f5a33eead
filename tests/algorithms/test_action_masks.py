"""Masks of actions: what is forbidden is never chosen, never judged by, and gets no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.agent import Agent
from alf.algorithms.exploration import Boltzmann, EpsilonGreedy
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.normalization import ObservationNormalizer
from alf.algorithms.parameter_noise import ParameterNoise
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.rl_algorithm import ROLLOUT
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import ActionTimeStep, Experience
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import MaskedUnittestEnv
from alf.utils import dist_utils, rng
from alf.utils.action_masks import FORBIDDEN, ActionMasks, split_mask
from alf.utils.random_actions import random_actions
from tests.algorithms.networks import feed_forward, recurrent, specs_of
from tests.algorithms.off_policy import adam, make
from tests.algorithms.test_off_policy_losses import (
    CHOICE,
    GAMMA,
    B,
    T,
    experience,
    linear,
    loss_and_gradients,
    n_step_targets,
    numeric_gradients,
    randomize,
    trained_rows,
    training_info,
)

ROWS = 3000
MASK = np.array([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
LOGITS = np.array([[0.3, 9.0, -1.0, 0.5], [2.0, -40.0, 1.0, 0.0], [5.0, 1.0, 0.2, -0.4], [0.5, 1.5, -0.5, 0.0]])


def allowed_of(mask: np.ndarray) -> np.ndarray:
    """Where nothing is allowed, everything is."""
    return np.array([row if row.any() else np.ones_like(row) for row in mask]).astype(bool)


def observations(mask: np.ndarray, dtype: Any = tf.float32) -> dict[str, tf.Tensor]:
    return {"observation": tf.zeros([len(mask), 1]), "mask": tf.cast(mask, dtype)}


# ---- what a mask does to a distribution ----


@pytest.mark.parametrize("dtype", [tf.bool, tf.int8, tf.int64, tf.float32])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_masked_distribution_is_that_of_the_allowed_actions_alone(dtype: tf.DType, shape: tuple[int, ...]) -> None:
    logits = tf.Variable(LOGITS.reshape(4, *shape, 4), dtype=tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        plain = tfp.distributions.Categorical(logits=tf.convert_to_tensor(logits), dtype=tf.int64)
        masked = ActionMasks(split_mask).distribution(plain, observations(MASK, dtype))
        entropy, _ = dist_utils.compute_entropy(masked, 1)
    assert masked.dtype == tf.int64
    gradient = tape.gradient(entropy, logits).numpy().reshape(4, 4)
    for row, (mask, scores) in enumerate(zip(allowed_of(MASK), LOGITS, strict=True)):
        # The definition: the actions that are not allowed do not exist.
        places = np.flatnonzero(mask)
        p = np.exp(scores[places] - scores[places].max())
        p /= p.sum()
        expected = -(p * np.log(p)).sum()
        assert entropy.numpy()[row] == pytest.approx(expected, abs=1e-5)
        np.testing.assert_allclose(gradient[row, places], -p * (np.log(p) + expected), atol=1e-5)
        assert (gradient[row, ~mask] == 0.0).all()
        for action, log_p in zip(places, np.log(p), strict=True):
            chosen = tf.fill([4, *shape], tf.constant(action, tf.int64))
            log_prob = dist_utils.compute_log_probability(masked, chosen, 1).numpy()
            assert log_prob[row] == pytest.approx(log_p, abs=1e-5)
    best = dist_utils.mode_action_distribution(masked).numpy().reshape(4)
    assert best.tolist() == [np.where(m, s, -np.inf).argmax() for m, s in zip(allowed_of(MASK), LOGITS, strict=True)]


def test_forbidden_actions_are_never_drawn() -> None:
    allowed = allowed_of(MASK)
    many = {k: tf.repeat(v, ROWS, 0) for k, v in observations(MASK).items()}
    masks = ActionMasks(split_mask)
    plain = tfp.distributions.Categorical(logits=tf.repeat(tf.constant(LOGITS, tf.float32), ROWS, 0))
    values = masks.values(plain.logits, many)
    ways: dict[str, Callable[[], tf.Tensor]] = {
        "sample": lambda: dist_utils.sample_action_distribution(masks.distribution(plain, many)),
        "epsilon of a policy": lambda: dist_utils.epsilon_greedy_sample(masks.distribution(plain, many), 0.5),
        "epsilon of values": lambda: EpsilonGreedy(0.5)(values, masks.allowed(many)),
        "nothing but epsilon": lambda: EpsilonGreedy(1.0)(values, masks.allowed(many)),
        "boltzmann": lambda: Boltzmann(0.1)(values, masks.allowed(many)),
    }
    for name, draw in ways.items():
        with rng.scope(tf.constant([3, 4])):
            drawn = draw().numpy().reshape(4, ROWS)
        for row in range(4):
            assert allowed[row][drawn[row]].all(), name
    with rng.scope(tf.constant([3, 4])):
        drawn = ways["nothing but epsilon"]().numpy().reshape(4, ROWS)
    for row in range(4):
        share = np.bincount(drawn[row], minlength=4)[allowed[row]] / ROWS
        np.testing.assert_allclose(share, 1.0 / allowed[row].sum(), atol=0.04)


def test_masks_that_do_not_fit_are_told_in_a_sentence() -> None:
    masks, obs = ActionMasks(split_mask), observations(MASK)
    three = tfp.distributions.Categorical(logits=tf.zeros([4, 3]))
    with pytest.raises(ValueError, match=r"mask of shape \(4, 4\) does not fit choices of shape \(4, 3\)"):
        masks.distribution(three, obs)
    with pytest.raises(ValueError, match="Only a choice among single discrete actions can be masked, not Normal"):
        masks.distribution(tfp.distributions.Normal(tf.zeros([4]), 1.0), obs)
    with pytest.raises(ValueError, match=r"no field 'mask' .* there is \['image'\]"):
        split_mask({"image": tf.zeros([1])})
    with pytest.raises(ValueError, match="no field 'mask'"):
        split_mask(tf.zeros([1]))


def test_the_mask_may_have_another_name_and_other_fields_stay_a_dict() -> None:
    gin.parse_config("alf.split_mask.field = 'action_mask'")
    try:
        rest, mask = split_mask({"image": 1, "action_mask": 2, "direction": 3})
    finally:
        gin.clear_config()
    assert rest == {"image": 1, "direction": 3}
    assert mask == 2


# ---- losses ----


def masked_experience(seed: int = 0) -> tuple[Experience, np.ndarray]:
    """`experience` with masks that allow what was done; and what is allowed, bool [T, B, 3]."""
    exp = experience(CHOICE, seed)
    rs = np.random.RandomState(seed + 7)
    mask = rs.rand(T, B, 3) < 0.5
    np.put_along_axis(mask, exp.action.numpy()[..., None], True, -1)
    mask[2, 0] = False  # as at the end of an episode
    observation = {"observation": exp.observation, "mask": tf.constant(mask, tf.float32)}
    allowed = np.where(mask.any(-1, keepdims=True), mask, True)
    return exp._replace(observation=observation), allowed


def masked(name: str, **kwargs: Any) -> Any:
    algorithm = make(
        name,
        tensor_spec.TensorSpec([2], tf.float32),
        CHOICE,
        GAMMA,
        layers=None,
        observation_and_action_constraint_splitter=split_mask,
        **kwargs,
    )
    randomize(algorithm)
    return algorithm


@pytest.mark.parametrize("name", ["dqn", "discrete_sac"])
def test_evaluation_draws_allowed_actions_only(name: str) -> None:
    exp, allowed = masked_experience()
    rows = tf.nest.map_structure(lambda x: tf.repeat(tf.reshape(x, [T * B, -1]), 50, 0), exp.observation)
    time_step = ActionTimeStep(step_type=tf.ones([T * B * 50], tf.int32), observation=rows)
    with rng.scope(tf.constant([3, 4])):
        drawn = masked(name).predict(time_step, (), epsilon_greedy=1.0).action.numpy().reshape(T * B, 50)
    for here, actions in zip(allowed.reshape(T * B, 3), drawn, strict=True):
        assert set(actions) == set(np.flatnonzero(here)) or (name == "discrete_sac" and here[actions].all())


def test_parameter_noise_keeps_a_distance_between_allowed_actions() -> None:
    exp, allowed = masked_experience()
    noise = ParameterNoise(initial_stddev=0.5)
    algorithm = masked("dqn", parameter_noise=noise)
    with rng.scope(tf.constant([1, 2])):
        algorithm.after_train(training_info(algorithm, exp))
    obs = exp.observation["observation"].numpy().astype(np.float64)
    p, q = (np.where(allowed, np.exp(linear(obs, network)), 0.0) for network in (algorithm._q_network, noise.network))
    p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
    expected = np.where(allowed, p * np.log(np.where(allowed, p / np.where(allowed, q, 1.0), 1.0)), 0.0).sum(-1).mean()
    assert float(noise.metrics()["parameter_noise_distance"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_targets_suppose_the_best_allowed_action(double: bool) -> None:
    exp, allowed = masked_experience()
    algorithm = masked("dqn", double=double)
    obs = exp.observation["observation"].numpy().astype(np.float64)
    q, q_target = linear(obs, algorithm._q_network), linear(obs, algorithm._target_networks[0])
    best = np.where(allowed, q if double else q_target, -np.inf).argmax(-1)
    assert (best != (q if double else q_target).argmax(-1)).any()
    targets = n_step_targets(exp, np.take_along_axis(q_target, best[..., None], -1)[..., 0], 1)
    losses, kernel = np.zeros((T, B)), np.zeros((2, 3))
    for t, b in trained_rows(exp):
        action = int(exp.action[t, b])
        error = targets[t, b] - q[t, b, action]
        losses[t, b] = error**2
        kernel[:, action] += -2 * error * obs[t, b]
    loss, gradients, _ = loss_and_gradients(algorithm, exp, algorithm._q_network.trainable_variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[0], kernel, rtol=1e-3, atol=1e-4)


def test_discrete_sac_sums_over_allowed_actions_only() -> None:
    exp, allowed = masked_experience()
    algorithm = masked("discrete_sac")
    algorithm._log_alpha.assign(-0.7)
    alpha = np.exp(-0.7)
    obs = exp.observation["observation"].numpy().astype(np.float64)
    q = [linear(obs, c) for c in algorithm._critic_networks]
    q_target = np.minimum(*(linear(obs, c) for c in algorithm._target_networks))
    scores = linear(obs, algorithm._actor_network)
    value, entropy, expected_q = np.zeros((3, T, B))
    for t in range(T):
        for b in range(B):
            weights = {a: np.exp(scores[t, b, a]) for a in range(3) if allowed[t, b, a]}
            for a, weight in weights.items():
                p = weight / sum(weights.values())
                value[t, b] += p * (q_target[t, b, a] - alpha * np.log(p))
                entropy[t, b] -= p * np.log(p)
                expected_q[t, b] += p * min(q[0][t, b, a], q[1][t, b, a])
    targets = n_step_targets(exp, value, 1)
    losses = np.zeros((T, B))
    for t, b in trained_rows(exp):
        action = int(exp.action[t, b])
        losses[t, b] = sum((targets[t, b] - q[i][t, b, action]) ** 2 for i in range(2))
        losses[t, b] += -alpha * entropy[t, b] - expected_q[t, b]
        losses[t, b] += -0.7 * (entropy[t, b] - algorithm._target_entropy)
    weights = list(algorithm._actor_network.trainable_variables)
    loss, gradients, _ = loss_and_gradients(algorithm, exp, [*weights, algorithm._log_alpha])
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)

    def actor_loss(values: list[np.ndarray]) -> float:
        total = 0.0
        for t, b in trained_rows(exp):
            odds = np.where(allowed[t, b], np.exp(obs[t, b] @ values[0] + values[1]), 0.0)
            for a in np.flatnonzero(odds):
                p = odds[a] / odds.sum()
                total += p * (alpha * np.log(p) - min(q[0][t, b, a], q[1][t, b, a]))
        return total

    by_actor = numeric_gradients(actor_loss, [w.numpy().astype(np.float64) for w in weights])
    by_alpha = sum(entropy[row] - algorithm._target_entropy for row in trained_rows(exp))
    for gradient, expected in zip(gradients, [*by_actor, by_alpha], strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=2e-3, atol=1e-3)


def test_ratio_of_a_policy_to_itself_is_one_and_to_another_that_of_allowed_probabilities() -> None:
    mask = tf.constant(MASK[:3], tf.float32)
    obs = {"observation": tf.zeros([3, 1]), "mask": mask}
    masks, actions = ActionMasks(split_mask), tf.constant([2, 1, 3])
    other = LOGITS[:3, ::-1].copy()
    one, two = (
        masks.distribution(tfp.distributions.Categorical(logits=tf.constant(x, tf.float32)), obs)
        for x in (LOGITS[:3], other)
    )
    log_one, log_two = (dist_utils.compute_log_probability(d, actions, 1) for d in (one, two))
    np.testing.assert_array_equal(dist_utils.log_importance_ratio(log_one, log_one), np.zeros(3))
    for row, action in enumerate(actions.numpy()):
        p, q = (np.exp(x[row][MASK[row] > 0]) for x in (LOGITS, other))
        expected = np.exp(LOGITS[row, action]) / p.sum() / (np.exp(other[row, action]) / q.sum())
        ratio = float(tf.exp(dist_utils.log_importance_ratio(log_one, log_two))[row])
        assert ratio == pytest.approx(expected, rel=1e-4)


# ---- acting and learning ----

EPISODE = 6


def environment(rows: int, seed: int) -> MaskedUnittestEnv:
    return MaskedUnittestEnv(rows, EPISODE, num_actions=4, seed=seed)


def best_return(seed: int = 99) -> float:
    """The mean return of the best policy: the mean of the highest allowed offer, times the steps of an episode."""
    rs = np.random.RandomState(seed)
    total = 0.0
    for _ in range(20000):
        allowed = rs.rand(4) < 0.5
        allowed[rs.randint(4)] = True
        total += rs.rand(4)[allowed].max()
    return total / 20000 * (EPISODE - 1)


def algorithm_of(name: str) -> Any:
    seen = split_mask(tensor_spec.from_spec(environment(2, 0).observation_spec()))[0]
    obs, act = specs_of(environment(2, 0))
    split = {"observation_and_action_constraint_splitter": split_mask}
    if name in ("dqn", "c51", "discrete_sac"):
        limits = {"min_q_value": 0.0, "max_q_value": 2.0} if name == "c51" else {}
        if name == "discrete_sac":
            limits = {"target_entropy": 0.05}
        return make(name, obs, act, gamma=0.2, lr=5e-3, seen=seen, **limits, **split)
    actor, value = recurrent(seen, act) if name == "rnn" else feed_forward(seen, act)
    if name == "ppo":
        loss = PPOLoss(act, gamma=0.2, entropy_regularization=0.01)
        return PPOAlgorithm(obs, act, actor, value, loss=loss, optimizer=adam(1e-2), **split)
    loss = ActorCriticLoss(act, gamma=0.2, use_vtrace=name == "vtrace", entropy_regularization=0.01)
    return ActorCriticAlgorithm(obs, act, actor, value, loss=loss, optimizer=adam(1e-2), **split)


def test_random_heat_up_takes_allowed_actions_only() -> None:
    algorithm = algorithm_of("dqn")
    driver = SyncOffPolicyDriver(environment(16, 0), algorithm, 12, exp_replayer="uniform", random_seed=1)
    try:
        driver.gather(at_random=True)  # the environment refuses any other
    finally:
        driver.stop()


@pytest.mark.parametrize(("action", "mask"), [((), ()), ((1,), ()), ((1,), (1,)), ((2,), (2,))])
def test_random_actions_of_every_shape_are_allowed_ones(action: tuple[int, ...], mask: tuple[int, ...]) -> None:
    allowed = np.random.default_rng(0).integers(2, size=(300, *mask, 3)).astype(bool)
    allowed[..., 1] |= ~allowed.any(-1)
    spec = tensor_spec.BoundedTensorSpec(action, tf.int64, 0, 2)
    with rng.scope(tf.constant([1, 2])):
        drawn = random_actions(spec, tf.constant([300]), tf.constant(allowed)).numpy()
    assert drawn.shape == (300, *action)
    assert set(drawn.ravel()) == {0, 1, 2}
    assert np.take_along_axis(allowed.reshape(300, -1, 3), drawn.reshape(300, -1, 1), -1).all()


def test_a_mask_that_allows_only_what_a_component_does_not_have_allows_all_that_it_has() -> None:
    """Of 3 and 2 choices: the mask's last entry is for a third choice of the second component."""
    mask = tf.repeat(tf.constant([[[0, 1, 1], [0, 0, 1]]], tf.int32), 300, 0)
    there = tf.constant([[True, True, True], [True, True, False]])
    plain = tfp.distributions.Categorical(logits=tf.tile(tf.where(there, 0.0, FORBIDDEN)[tf.newaxis], [300, 1, 1]))
    spec = tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, [2, 1])
    with rng.scope(tf.constant([1, 2])):
        masked = ActionMasks(split_mask).distribution(plain, {"observation": mask, "mask": mask})
        drawn = [dist_utils.sample_action_distribution(masked), random_actions(spec, tf.constant([300]), mask > 0)]
    for actions in drawn:
        assert set(actions.numpy()[:, 0]) == {1, 2}
        assert set(actions.numpy()[:, 1]) == {0, 1}


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("c51", "discrete_sac", "a2c", "rnn")]


@pytest.mark.parametrize("name", ["dqn", "vtrace", "ppo", *_SLOW])
def test_it_is_learned_what_is_best_of_what_is_allowed(name: str) -> None:
    tf.keras.utils.set_random_seed(5)
    algorithm = algorithm_of(name)
    samples = name in ("dqn", "c51", "discrete_sac")
    driver = SyncOffPolicyDriver(
        environment(32, 0), algorithm, 10, exp_replayer="uniform" if samples else "one_time", random_seed=1
    )
    judge = PolicyDriver(environment(64, 99), algorithm, epsilon_greedy=0.0, random_seed=2)
    good, mean = 0.95 * best_return(), 0.0
    try:
        for i in range(200):
            driver.run()
            if samples:
                algorithm.train(
                    num_updates=8, mini_batch_length=2, mini_batch_size=64, whole_replay_buffer_training=False
                )
            else:
                algorithm.train(num_updates=4 if name == "ppo" else 1, mini_batch_length=10)
            if i % 10 == 9:
                judge.run_episodes(64)
                mean = float(judge.get_metrics()[2].result())
                if mean > good:
                    break
    finally:
        driver.stop()
    assert mean > good, (name, mean, good)
    assert np.isfinite(float(algorithm.last_train_metrics["loss"]))


def test_asynchronous_acting_never_takes_a_forbidden_action() -> None:
    tf.keras.utils.set_random_seed(5)
    algorithm = algorithm_of("vtrace")
    driver = AsyncOffPolicyDriver(
        [environment(4, 0), environment(4, 1)],
        algorithm,
        num_actor_queues=1,
        unroll_length=10,
        learn_queue_cap=1,
        actor_queue_cap=1,
        random_seed=1,
    )
    driver.start()
    try:
        for _ in range(4):
            driver.run_async()
            algorithm.train(num_updates=1)
    finally:
        driver.stop()


def test_trac_compares_masked_distributions() -> None:
    obs, act = specs_of(environment(2, 0))
    algorithm = TracAlgorithm(obs, act, ac_algorithm_cls=lambda **_: algorithm_of("a2c"))
    driver = SyncOffPolicyDriver(environment(8, 0), algorithm, 10, random_seed=1)
    try:
        driver.gather(at_random=True)
        driver.run()
        algorithm.train(num_updates=1)
    finally:
        driver.stop()
    assert np.isfinite(float(algorithm.last_train_metrics["loss"]))


# ---- inside of an Agent ----


def test_an_agent_normalises_what_is_named_and_leaves_the_mask_alone() -> None:
    obs, act = specs_of(environment(2, 0))
    floats = tf.nest.map_structure(lambda s: tf.TensorSpec(s.shape, tf.float32), obs)
    with pytest.raises(ValueError, match=r"would normalise the masks of actions too.*ObservationNormalizer.fields"):
        Agent(obs, act, lambda **_: algorithm_of("a2c"), observation_normalizer=ObservationNormalizer(floats))
    encoder = EncodingNetwork(
        floats, {name: tf.keras.layers.Dense(2) for name in obs}, tf.keras.layers.Add(), fc_layer_params=(2,)
    )
    with pytest.raises(ValueError, match="what the encoding_network gives, which has no masks of actions"):
        Agent(obs, act, lambda **_: algorithm_of("a2c"), encoding_network=encoder)
    normalizer = ObservationNormalizer(floats, fields=["observation"])
    agent = Agent(obs, act, lambda **_: algorithm_of("a2c"), observation_normalizer=normalizer, optimizer=adam(1e-3))
    driver = SyncOffPolicyDriver(environment(8, 0), agent, 10, random_seed=1)
    try:
        driver.gather(at_random=True)
        agent.train()
        driver.run()
    finally:
        driver.stop()
    rows = np.random.RandomState(0).rand(5, 4).astype(np.float32)
    mask = tf.constant(rows > 0.5, tf.float32)
    normalized = normalizer.normalize({"observation": tf.constant(rows), "mask": mask})
    np.testing.assert_array_equal(normalized["mask"], mask)
    # Offers are uniform in [0, 1).
    np.testing.assert_allclose(normalized["observation"], (rows - 0.5) / np.sqrt(1 / 12), atol=0.35)


def test_curiosity_sees_what_the_networks_see() -> None:
    obs, act = specs_of(environment(2, 0))
    seen: list[Any] = []
    icm = ICMAlgorithm(act, split_mask(obs)[0], hidden_size=8)
    inside = icm.train_step
    icm.train_step = lambda inputs, state=None: seen.append(inputs) or inside(inputs)  # type: ignore[assignment]
    agent = Agent(obs, act, lambda **_: algorithm_of("a2c"), intrinsic_curiosity_module=icm, optimizer=adam(1e-3))
    driver = SyncOffPolicyDriver(environment(8, 0), agent, 10, random_seed=1)
    try:
        driver.run()
        agent.train()
    finally:
        driver.stop()
    assert float(agent.last_train_metrics["ICMAlgorithm/forward_loss"]) > 0.0
    assert {tuple(x.shape[1:]) for inputs in seen for x in (inputs.observation, inputs.next_observation)} == {(4,)}


def test_what_is_recorded_stays_finite() -> None:
    algorithm = algorithm_of("ppo")
    time_step = ActionTimeStep(
        step_type=tf.ones([4], tf.int32),
        reward=tf.zeros([4]),
        discount=tf.ones([4]),
        observation={"observation": tf.zeros([4, 4]), "mask": tf.constant(MASK, tf.float32)},
        prev_action=tf.zeros([4], tf.int64),
        env_id=tf.range(4),
    )
    with rng.scope(tf.constant([1, 2])):
        info = algorithm.rollout(time_step, (), ROLLOUT).info
    logits = info.action_distribution.logits.numpy()
    assert (logits[~allowed_of(MASK)] == np.float32(FORBIDDEN)).all()
    assert np.isfinite(logits.mean())
