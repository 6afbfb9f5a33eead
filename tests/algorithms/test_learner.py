"""The learner's pipeline: cutting, minibatches, recurrence, and that it sees what the actors saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from alf.algorithms import minibatch
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING
from alf.data_structures import ActionTimeStep, Experience, LossInfo, PolicyStep, StepType
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.on_policy_driver import OnPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv, RNNPolicyUnittestEnv
from alf.environments.testing import CountingEnvironment
from alf.utils import rng
from alf.utils.common import reset_state_at_first, zeros_from_spec
from tests.algorithms.networks import ppo
from tests.drivers.counting import CountingAlgorithm


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


def test_the_on_policy_driver_learns_from_the_states_that_acting_was_in() -> None:
    tf.random.set_seed(0)
    algorithm = ppo(memory_env(0), rnn=True, lr=0.05)
    driver = OnPolicyDriver(memory_env(0), algorithm, train_interval=4, random_seed=3)
    try:
        for _ in range(6):
            driver.run(1)
            assert float(algorithm.last_train_metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-7)
            assert float(algorithm.last_train_metrics["clip_fraction"]) == 0.0
    finally:
        driver.stop()


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
    with pytest.raises(ValueError, match="num_updates=0 must be a whole number of at least 1"):
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


class DrawingAlgorithm(CountingAlgorithm):
    """Draws a random number in every gradient step, as dropout would, and keeps it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, recurrent=False)
        self.drawn: list[float] = []

    _train = OffPolicyAlgorithm._train

    def _update(
        self, exp: Experience, extended: bool, weight: Any, sequence_weights: Any = None
    ) -> tuple[dict[str, tf.Tensor], LossInfo]:
        number = tf.random.stateless_uniform([], rng.next_seed())
        kept = tf.numpy_function(lambda x: self.drawn.append(float(x)) or x, [number], tf.float32)
        kept.set_shape([])
        return {"loss": kept}, LossInfo()


def test_every_gradient_step_draws_its_own_random_numbers() -> None:
    env = CountingEnvironment(2)
    algorithm = DrawingAlgorithm(env)
    algorithm.set_seed(3)
    for _ in range(3):
        algorithm.train_from(_experience(4, 6, False), num_updates=2, mini_batch_size=2)
    assert len(algorithm.drawn) == len(set(algorithm.drawn)) == 3 * 2 * 2


def test_every_row_of_a_scan_draws_its_own_random_numbers() -> None:
    exp = tf.nest.map_structure(tf.transpose, _experience(2, 5, False))

    def draw(now: Experience, state: Any) -> PolicyStep:
        noise = tf.random.stateless_uniform([2], rng.next_seed())
        return PolicyStep((), state + noise, noise)

    @tf.function(autograph=False)
    def traced(run: Any) -> Any:
        with rng.scope(tf.constant([1, 2])):
            return run(draw, exp._replace(step_type=tf.ones([5, 2], tf.int32)), tf.zeros([2]))

    drawn = traced(minibatch.scan).numpy()
    assert len(np.unique(drawn)) == drawn.size == 10
    np.testing.assert_allclose(traced(minibatch.last_state), drawn.sum(0), rtol=1e-6)


def test_few_of_the_functions_of_a_growing_memory_are_kept() -> None:
    algorithm = DrawingAlgorithm(CountingEnvironment(2))
    for rows in range(2, 14):
        algorithm.train_from(_experience(rows, 2, False))
    assert len(algorithm._volatile.functions) == 8


def test_data_is_trained_on_once_unless_it_is_kept() -> None:
    algorithm = DrawingAlgorithm(CountingEnvironment(2))
    algorithm.set_exp_replayer("one_time", 2)
    exp = tf.nest.map_structure(lambda x: tf.transpose(x)[tf.newaxis], _experience(2, 6, False))
    algorithm.observe(exp)
    assert algorithm.train(clear_replay_buffer=False) == 12
    assert algorithm.train(num_updates=3) == 36
    with pytest.raises(ValueError, match="nothing to replay"):
        algorithm.train()


def test_another_replayer_takes_the_place_of_the_first() -> None:
    algorithm = DrawingAlgorithm(CountingEnvironment(2))
    before = len(algorithm.exp_observers)
    for name in ("one_time", "cycle_one_time", "one_time"):
        algorithm.set_exp_replayer(name, 2)
        assert len(algorithm.exp_observers) == before + 1


def test_scan_starts_anew_at_each_first_whatever_the_algorithm_does_itself() -> None:
    step_type = np.array([[1, 0], [2, 1], [0, 1], [1, 2], [1, 0]], np.int32)
    exp = tf.nest.map_structure(lambda x: tf.transpose(x), _experience(2, 5, False))._replace(
        step_type=tf.constant(step_type)
    )

    def count(now: Experience, state: Any) -> PolicyStep:
        return PolicyStep((), state + 1.0, {"before": state})

    scanned = minibatch.scan(count, exp, tf.constant([5.0, 7.0]))["before"].numpy()
    np.testing.assert_array_equal(scanned, [[5, 0], [6, 1], [0, 2], [1, 3], [2, 0]])


def test_what_a_loss_reports_for_each_row_is_averaged_over_the_valid_rows() -> None:
    algorithm = DrawingAlgorithm(CountingEnvironment(2))
    valid = np.array([[1, 1], [0, 1], [0, 0]], np.float32)
    ratio = np.array([[1, 2], [100, 6], [100, 100]], np.float32)
    loss = LossInfo(tf.constant(1.5), (), {"ratio": tf.constant(ratio), "entropy": tf.constant(0.25)})
    metrics = algorithm._train_metrics(loss, [], tf.constant(valid))
    assert {name: float(value) for name, value in metrics.items()} == {
        "loss": 1.5,
        "ratio": 3.0,
        "entropy": 0.25,
        "grad_norm": 0.0,
    }


def test_each_epoch_has_an_order_of_its_own() -> None:
    order: list[np.ndarray] = []

    def update(indices: Any, step: tf.Tensor, weight: Any) -> tf.Tensor:
        chosen = tf.numpy_function(lambda i: order.append(i) or np.float32(0.0), [indices], tf.float32)
        return tf.reshape(chosen, [1])

    plan = minibatch.plan(12, 1, 4, 4, 1)
    tf.function(lambda: minibatch.run(update, plan, tf.constant([1, 2])), autograph=False)()
    epochs = np.concatenate(order).reshape(4, 12)
    assert len(np.unique(epochs, axis=0)) == 4


def test_time_major_swaps_the_first_two_axes() -> None:
    for length in (1, 4):
        batch = {
            "a": tf.reshape(tf.range(3 * length * 2), [3, length, 2]),
            "b": tf.reshape(tf.range(3 * length), [3, -1]),
        }
        swapped = minibatch.time_major(batch)
        np.testing.assert_array_equal(swapped["a"], np.swapaxes(batch["a"].numpy(), 0, 1))
        np.testing.assert_array_equal(swapped["b"], batch["b"].numpy().T)


class WeighingAlgorithm(CountingAlgorithm):
    """Reports how many rows are valid, and the state that training starts from."""

    _train = OffPolicyAlgorithm._train

    def loss_info_spec(self, rollout_info_spec: Any) -> Any:
        return ()

    def train_step(self, inputs: Experience, state: Any = None) -> PolicyStep:
        return PolicyStep((), state + 1.0, {"before": state})

    def train_complete(self, tape: Any, training_info: Any, valid: tf.Tensor, weight: Any) -> Any:
        states = training_info.info["before"]
        return LossInfo(tf.reduce_sum(valid), (), {"first": tf.reduce_sum(states[0]), "last": states[-1, 0]}), []


def test_the_row_that_only_bootstraps_and_last_rows_are_not_learned_from() -> None:
    algorithm = WeighingAlgorithm(CountingEnvironment(2))
    exp = _experience(2, 6, True)
    algorithm.train_from(exp._replace(state=tf.zeros([2, 6])), mini_batch_length=3)
    assert float(algorithm.last_train_metrics["loss"]) == 12
    step_type = np.ones((2, 6), np.int32)
    step_type[0, 1] = step_type[1, 5] = StepType.LAST
    algorithm.train_from(exp._replace(step_type=tf.constant(step_type), state=tf.zeros([2, 6])), mini_batch_length=3)
    assert float(algorithm.last_train_metrics["loss"]) == 10


def test_recurrent_training_begins_with_the_state_before_the_first_step() -> None:
    algorithm = WeighingAlgorithm(CountingEnvironment(2))
    exp = _experience(2, 6, False)
    exp = exp._replace(state=tf.constant([[1.0, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60]]))
    algorithm.train_from(exp, mini_batch_length=3)
    metrics = algorithm.last_train_metrics
    assert float(metrics["first"]) == 1 + 4 + 10 + 40
    assert float(metrics["last"]) == 1 + 2


class PullingAlgorithm(CountingAlgorithm):
    """Its loss is linear in where it stands, so that an update moves it by the mean of what it sees, wherever it is."""

    _train = OffPolicyAlgorithm._train

    def __init__(self) -> None:
        super().__init__(CountingEnvironment(2), False, optimizer=tf.keras.optimizers.legacy.SGD(1.0))
        self.place = tf.Variable(0.0)

    def loss_info_spec(self, rollout_info_spec: Any) -> Any:
        return ()

    def train_step(self, inputs: Experience, state: Any = None) -> PolicyStep:
        return PolicyStep((), (), self.place * inputs.observation)

    def calc_loss(self, training_info: Any) -> LossInfo:
        return LossInfo(training_info.info)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_sequence_counts_alike_also_in_a_smaller_last_minibatch(size: int) -> None:
    algorithm, exp = PullingAlgorithm(), _experience(5, 6, True)
    algorithm.train_from(exp, num_updates=3, mini_batch_size=size)
    expected = -3 * sum(float(np.mean(sequence)) / size for sequence in exp.observation)
    assert float(algorithm.place) == pytest.approx(expected, rel=1e-5)


def test_recurrent_ppo_on_samples_without_recorded_states_is_told_what_to_set() -> None:
    algorithm = ppo(memory_env(0), rnn=True)
    driver = SyncOffPolicyDriver(memory_env(0), algorithm, 8, exp_replayer="uniform", random_seed=0)
    try:
        driver.run()
        with pytest.raises(ValueError, match=r"set TrainerConfig\.use_rollout_state = True"):
            algorithm.train(1, 4, 4, whole_replay_buffer_training=False)
    finally:
        driver.stop()
