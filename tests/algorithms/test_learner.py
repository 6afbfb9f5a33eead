"""The learner's pipeline: cutting, minibatches, recurrence, and that it sees what the actors saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from alf.algorithms import minibatch
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING
from alf.data_structures import ActionTimeStep, Experience, StepType
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv, RNNPolicyUnittestEnv
from alf.utils.common import reset_state_at_first, zeros_from_spec
from tests.algorithms.networks import ppo


def run(env_f: Any, algorithm: Any, batches: int, mode: str = "sync", **train: Any) -> list[dict[str, float]]:
    driver = AsyncOffPolicyDriver([env_f(0), env_f(1)], algorithm, 0, 8, 2, mode=mode, random_seed=3, stepping="graph")
    driver.start()
    metrics = []
    try:
        for _ in range(batches):
            driver.run_async()
            algorithm.train(**train)
            metrics.append({k: float(v) for k, v in algorithm.last_train_metrics.items()})
    finally:
        driver.stop()
    return metrics


def memory_env(seed: int) -> RNNPolicyUnittestEnv:
    return RNNPolicyUnittestEnv(4, 6, gap=2, seed=seed)


@pytest.mark.parametrize(
    ("env_f", "rnn"),
    [
        (lambda seed: PolicyUnittestEnv(4, 5, seed=seed), False),
        (lambda seed: PolicyUnittestEnv(4, 5, action_type=ActionType.Continuous, seed=seed), False),
        (memory_env, True),
    ],
)
def test_ratio_of_the_first_minibatch_is_exactly_one_in_sync_mode(env_f: Any, rnn: bool) -> None:
    tf.random.set_seed(0)
    algorithm = ppo(env_f(0), rnn)
    algorithm.use_rollout_state = rnn
    for metrics in run(env_f, algorithm, 4):
        assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-10 if not rnn else 1e-7)
        assert metrics["clip_fraction"] == 0.0


def test_recurrent_learning_without_recorded_states_is_not_on_policy() -> None:
    """The oracle of the test above can fail: zero states in mid-episode give other distributions."""
    tf.random.set_seed(0)
    algorithm = ppo(memory_env(0), rnn=True, lr=0.05)
    algorithm.use_rollout_state = False
    assert max(m["approx_kl"] for m in run(memory_env, algorithm, 6)) > 1e-7


def test_recurrent_training_equals_a_step_by_step_loop_across_an_episode_border() -> None:
    env = memory_env(0)
    algorithm = ppo(env, rnn=True)
    rng = np.random.default_rng(0)
    length, batch = 7, 3
    step_type = np.ones((length, batch), np.int32)
    step_type[2, 0], step_type[3, 0], step_type[0, 1] = StepType.LAST, StepType.FIRST, StepType.FIRST
    observation = rng.normal(size=(length, batch, 1)).astype(np.float32)
    state = tf.nest.map_structure(
        lambda s: tf.constant(rng.normal(size=(batch, *s.shape)).astype(np.float32)), algorithm.train_state_spec
    )
    zeros = tf.zeros([length, batch])
    exp = Experience(
        step_type=tf.constant(step_type),
        reward=zeros,
        discount=zeros + 1,
        observation=tf.constant(observation),
        prev_action=tf.zeros([length, batch, 1], tf.int64),
        env_id=tf.zeros([length, batch], tf.int32),
        action=tf.zeros([length, batch, 1], tf.int64),
        policy_version=tf.zeros([length, batch], tf.int64),
    )
    scanned = tf.function(lambda: minibatch.scan(algorithm.train_step, exp, state).value, autograph=False)().numpy()
    for b in range(batch):
        row_state = tf.nest.map_structure(lambda s, b=b: s[b : b + 1], state)
        for t in range(length):
            if step_type[t, b] == StepType.FIRST:
                row_state = zeros_from_spec(algorithm.train_state_spec, 1)
            time_step = ActionTimeStep(
                tf.constant(step_type[t : t + 1, b]),
                tf.zeros([1]),
                tf.ones([1]),
                tf.constant(observation[t, b : b + 1]),
                tf.zeros([1, 1], tf.int64),
                tf.zeros([1], tf.int32),
            )
            policy_step = algorithm.rollout(time_step, row_state, OFF_POLICY_TRAINING)
            row_state = policy_step.state
            np.testing.assert_allclose(policy_step.info.value.numpy()[0], scanned[t, b], rtol=1e-4, atol=1e-5)


def test_state_is_reset_by_first_of_the_current_step_only() -> None:
    state = {"h": tf.ones([3, 2]), "c": tf.ones([3, 1])}
    after = reset_state_at_first(state, tf.constant([StepType.FIRST, StepType.MID, StepType.LAST]))
    np.testing.assert_array_equal(after["h"], [[0, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(after["c"], [[0], [1], [1]])


def _experience(batch: int, length: int, bootstrap: bool) -> Experience:
    numbers = tf.reshape(tf.range(batch * length, dtype=tf.float32), [batch, length])
    ints = tf.ones([batch, length], tf.int32)
    exp = Experience(
        ints, numbers, tf.ones_like(numbers), numbers, tf.cast(ints, tf.int64), ints, tf.cast(ints, tf.int64), (), ()
    )._replace(policy_version=tf.cast(ints, tf.int64))
    if not bootstrap:
        return exp
    from alf.data_structures import Bootstrap

    last = ActionTimeStep(
        ints[:, 0],
        -numbers[:, 0],
        tf.ones([batch]),
        1000 + tf.range(batch, dtype=tf.float32),
        tf.ones([batch], tf.int64),
        ints[:, 0],
    )
    return exp._replace(bootstrap=Bootstrap(last, ()))


@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_cut_gives_each_sequence_its_steps_and_the_one_that_follows(length: int, bootstrap: bool) -> None:
    sequences, extended = minibatch.cut(_experience(2, 6, bootstrap), length)
    assert extended == bootstrap
    observation = sequences.observation.numpy()
    assert observation.shape == (2 * 6 // length, length + bootstrap)
    row = 0
    for b in range(2):
        for begin in range(0, 6, length):
            expected = [b * 6 + begin + i for i in range(length)]
            if bootstrap:
                expected.append(b * 6 + begin + length if begin + length < 6 else 1000 + b)
            assert list(observation[row]) == expected
            row += 1


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 8, 11])
@pytest.mark.parametrize("epochs", [1, 3])
def test_minibatches_use_every_sequence_once_an_epoch_in_shuffled_order(size: int, epochs: int) -> None:
    plan = minibatch.plan(8, 1, epochs, size, 1)
    per_epoch = -(-8 // plan.size)
    counts = tf.Variable(tf.zeros([8]))
    order = []

    def update(indices: Any, step: tf.Tensor, weight: Any) -> tf.Tensor:
        chosen = tf.range(8) if indices is None else indices
        counts.scatter_add(tf.IndexedSlices(tf.ones_like(chosen, tf.float32), chosen))
        tf.numpy_function(lambda s, c, w: order.append((int(s), list(c), float(w))), [step, chosen, weight], [])
        return tf.stack([tf.cast(step, tf.float32), tf.cast(tf.size(chosen), tf.float32)])

    result = tf.function(lambda: minibatch.run(update, plan, tf.constant([1, 2])), autograph=False)()
    np.testing.assert_array_equal(counts, epochs)
    order.sort()
    assert [s for s, _, _ in order] == list(range(epochs * per_epoch))
    for epoch in range(epochs):
        seen = [i for s, c, _ in order if s // per_epoch == epoch for i in c]
        assert sorted(seen) == list(range(8))
    assert all(w == pytest.approx(len(c) / plan.size) for _, c, w in order)
    if per_epoch > 1:
        assert [i for _, c, _ in order for i in c] != list(range(8)) * epochs
    np.testing.assert_allclose(result[0], (epochs * per_epoch - 1) / 2)


def test_sizes_that_do_not_fit_say_so() -> None:
    with pytest.raises(ValueError, match="mini_batch_length=4 does not divide the 6"):
        minibatch.plan(2, 6, 1, None, 4)
    with pytest.raises(ValueError, match="positive"):
        minibatch.plan(2, 6, 0, None, None)


def test_training_without_data_or_replayer_says_so() -> None:
    algorithm = ppo(PolicyUnittestEnv(2, 5))
    with pytest.raises(ValueError, match="No replayer"):
        algorithm.train()
    algorithm.set_exp_replayer("one_time", 2)
    with pytest.raises(ValueError, match="nothing to replay"):
        algorithm.train()
    with pytest.raises(ValueError, match="not one of"):
        algorithm.set_exp_replayer("uniformly", 2)


@pytest.mark.parametrize("mode", ["sync", "lockstep"])
@pytest.mark.parametrize("rnn", [False, True])
def test_two_runs_of_one_seed_give_bit_identical_weights(mode: str, rnn: bool) -> None:
    def weights() -> list[np.ndarray]:
        tf.keras.utils.set_random_seed(5)
        algorithm = ppo(memory_env(0), rnn)
        algorithm.use_rollout_state = rnn
        run(memory_env, algorithm, 5, mode, num_updates=2, mini_batch_size=3)
        return [v.numpy() for v in algorithm.trainable_variables]

    for first, second in zip(weights(), weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_training_is_traced_once() -> None:
    traced = []
    algorithm = ppo(PolicyUnittestEnv(4, 5))
    train = algorithm._train
    algorithm._train = lambda exp, plan: traced.append(plan) or train(exp, plan)
    run(
        lambda seed: PolicyUnittestEnv(4, 5, seed=seed),
        algorithm,
        6,
        "async",
        num_updates=2,
        mini_batch_size=16,
        mini_batch_length=1,
    )
    assert len(traced) == 1


def test_adding_a_network_that_no_optimizer_trains_is_an_error() -> None:
    env = PolicyUnittestEnv(2, 5)
    algorithm = ppo(env)
    algorithm._optimizers = []
    with pytest.raises(ValueError, match="has no optimizer"):
        algorithm.optimized_variables()


def test_distributions_of_the_learner_are_those_of_the_actor_after_flattening() -> None:
    """map_flat rebuilds distributions with the time axis: log-probs are those of the plain loop."""
    logits = tf.random.normal([4, 3, 5])
    exp = _experience(3, 4, False)
    exp = tf.nest.map_structure(lambda x: tf.transpose(x), exp)._replace(observation=logits)
    dist = minibatch.map_flat(lambda e: {"d": tfp.distributions.Categorical(logits=e.observation)}, exp)["d"]
    assert dist.batch_shape == [4, 3]
    np.testing.assert_allclose(dist.log_prob(tf.ones([4, 3], tf.int32)), tf.nn.log_softmax(logits)[..., 1], rtol=1e-5)
