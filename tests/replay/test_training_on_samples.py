"""Updates on samples: which steps count, by how much, and what the algorithm's own hooks see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from tests.algorithms.networks import ppo
from tests.replay.q_learning import TinyQ
from tests.replay.streams import segments

GAMMA = 0.9
SAMPLES = {"whole_replay_buffer_training": False}


@pytest.fixture
def _eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


class RecordingQ(TinyQ):
    """Q-learning by plain gradient descent on streams that say where they are; keeps every sample and priority."""

    def __init__(self, replayer: str, streams: int = 2) -> None:
        super().__init__(
            tf.TensorSpec([2], tf.float32), tensor_spec.BoundedTensorSpec([], tf.int64, np.array(0), np.array(2))
        )
        self._optimizers = [tf.keras.optimizers.legacy.SGD(1.0)]
        self.set_exp_replayer(replayer, streams)
        self.samples: list[Any] = []
        replay: Any = self.exp_replayer
        inner = replay.sample

        def sample(*args: Any) -> Any:
            self.samples.append(inner(*args))
            return self.samples[-1]

        replay.sample = sample

    def weights(self) -> list[np.ndarray]:
        return [v.numpy().astype(np.float64) for v in self._layer.variables]


def _observe(algorithm: OffPolicyAlgorithm, first: int, length: int) -> None:
    exp = segments(np.array([[0, 1]]), np.full((1, 2), first), length)
    # Small numbers, for small gradients.
    scaled = exp._replace(observation=exp.observation / 10, reward=exp.reward / 1000, action=exp.action % 3)
    after = exp.bootstrap.time_step
    scaled_after = after._replace(observation=after.observation / 10, reward=after.reward / 1000)
    algorithm.observe(scaled._replace(bootstrap=exp.bootstrap._replace(time_step=scaled_after), state=()))


def _oracle(sample: Any, kernel: np.ndarray, bias: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Loss, its gradients and the priorities, one sequence and one step after the other."""
    exp = tf.nest.map_structure(np.asarray, sample.experience)
    batch, length = exp.step_type.shape
    weights = np.ones(batch) if sample.weights is None else np.asarray(sample.weights)
    loss, count = 0.0, 0
    d_kernel, d_bias, priority = np.zeros_like(kernel), np.zeros_like(bias), np.zeros(batch)
    for i in range(batch):
        for t in range(length - 1):
            now, then = exp.observation[i, t], exp.observation[i, t + 1]
            action = exp.action[i, t]
            target = exp.reward[i, t + 1] + GAMMA * exp.discount[i, t + 1] * max(then @ kernel + bias)
            error = target - (now @ kernel + bias)[action]
            if t == 0:
                priority[i] = abs(error)
            if exp.step_type[i, t] == 2:
                continue
            count += 1
            loss += weights[i] * error**2
            d_kernel[:, action] += weights[i] * -2 * error * now
            d_bias[action] += weights[i] * -2 * error
    return loss / count, d_kernel / count, d_bias / count, priority


@pytest.mark.usefixtures("_eagerly")
@pytest.mark.parametrize("replayer", ["uniform", "prioritized"])
@pytest.mark.parametrize("length", [2, 3, 6])
def test_loss_and_gradients_are_those_of_a_plain_loop(replayer: str, length: int) -> None:
    """The last row is only looked at, LAST steps do not count, importance weights are factors of the sequences."""
    algorithm = RecordingQ(replayer)
    _observe(algorithm, 0, 17)
    for _ in range(3):
        kernel, bias = algorithm.weights()
        algorithm.train(mini_batch_size=8, mini_batch_length=length, **SAMPLES)
        sample = algorithm.samples[-1]
        loss, d_kernel, d_bias, priority = _oracle(sample, kernel, bias)
        assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(loss, rel=1e-4)
        np.testing.assert_allclose(algorithm.weights()[0], kernel - d_kernel, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(algorithm.weights()[1], bias - d_bias, rtol=1e-3, atol=1e-5)
        if replayer == "prioritized":
            replay: Any = algorithm.exp_replayer
            rows = sample.stream * replay.buffer.max_length + sample.step
            expected = {int(r): (p + 1e-6) ** 0.6 for r, p in zip(rows.numpy(), priority, strict=True)}
            found = replay.priorities.tree.get(tf.constant(list(expected), tf.int64))
            np.testing.assert_allclose(found, list(expected.values()), rtol=1e-3)


@pytest.mark.usefixtures("_eagerly")
def test_each_training_takes_back_more_of_the_bias_of_priorities() -> None:
    gin.parse_config(["PrioritizedReplay.beta = 0.0", "PrioritizedReplay.beta_iterations = 4"])
    algorithm = RecordingQ("prioritized")
    replay: Any = algorithm.exp_replayer
    _observe(algorithm, 0, 17)
    for call in range(1, 7):
        replay.view(3)
        priorities = replay.priorities.tree.get(tf.range(2 * replay.buffer.max_length, dtype=tf.int64)).numpy()
        algorithm.train(mini_batch_size=8, mini_batch_length=3, **SAMPLES)
        sample = algorithm.samples[-1]
        drawn = priorities[(sample.stream * replay.buffer.max_length + sample.step).numpy()]
        np.testing.assert_allclose(sample.weights, (drawn.min() / drawn) ** min(call / 4, 1.0), rtol=1e-5)


@pytest.mark.parametrize("replayer", ["uniform", "prioritized"])
def test_any_number_of_updates_and_any_fill_are_one_trace(replayer: str) -> None:
    algorithm = RecordingQ(replayer)
    _observe(algorithm, 0, 5)
    updates = [1, 3, 2, 7]
    for i, count in enumerate(updates):
        assert algorithm.train(num_updates=count, mini_batch_size=4, mini_batch_length=3, **SAMPLES) == count * 4 * 2
        _observe(algorithm, 5 + 3 * i, 3)
    assert len(algorithm.samples) == 1, "the sample was traced once"
    assert int(algorithm.iterations) == len(updates)
    assert int(algorithm.optimized_variables()[0][0].iterations) == sum(updates)


@pytest.mark.usefixtures("_eagerly")
def test_each_update_draws_a_sample_of_its_own() -> None:
    algorithm = RecordingQ("uniform")
    _observe(algorithm, 0, 17)
    for _ in range(2):
        algorithm.train(num_updates=3, mini_batch_size=8, mini_batch_length=3, **SAMPLES)
    assert len({tuple(sample.step.numpy()) for sample in algorithm.samples}) == 6


def test_one_step_sequences_are_trained_themselves() -> None:
    algorithm = RecordingQ("uniform")
    seen: list[Any] = []
    algorithm.calc_loss = lambda info: (seen.append(info), TinyQ.calc_loss(algorithm, info))[1]  # type: ignore[assignment, func-returns-value]
    _observe(algorithm, 0, 5)
    assert algorithm.train(mini_batch_size=4, mini_batch_length=1, **SAMPLES) == 4
    assert seen[0].reward.shape == [1, 4]


@pytest.mark.usefixtures("_eagerly")
@pytest.mark.parametrize("uses_up", [False, True])
def test_preprocessing_sees_the_last_step_as_the_bootstrap(uses_up: bool) -> None:
    algorithm = RecordingQ("uniform")
    algorithm.exp_replayer.clear()  # type: ignore[union-attr]
    algorithm.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 9)._replace(state=()))
    seen, learned = [], []

    def preprocess(exp: Experience) -> Experience:
        seen.append(exp)
        exp = exp._replace(reward=exp.reward + 5000)
        return exp._replace(bootstrap=()) if uses_up else exp

    algorithm.preprocess_experience = preprocess  # type: ignore[method-assign]
    inner = algorithm.calc_loss
    algorithm.calc_loss = lambda info: (learned.append(info), inner(info))[1]  # type: ignore[method-assign, func-returns-value]
    algorithm.train(mini_batch_size=4, mini_batch_length=3, **SAMPLES)
    sample = algorithm.samples[0].experience
    steps = np.asarray(sample.observation)[..., 1]
    np.testing.assert_array_equal(np.asarray(seen[0].observation)[..., 1], steps[:, :-1])
    np.testing.assert_array_equal(np.asarray(seen[0].bootstrap.time_step.observation)[..., 1], steps[:, -1])
    rows = 2 if uses_up else 3
    np.testing.assert_array_equal(learned[0].action, np.asarray(sample.action)[:, :rows].T, "the real actions")
    added = np.array([5000, 5000, 0])[:rows, np.newaxis]
    np.testing.assert_array_equal(learned[0].reward, np.asarray(sample.reward)[:, :rows].T + added)


def test_whole_training_is_the_same_from_a_memory_that_is_cleared() -> None:
    """PPO over ReplayBuffer, as old gin files have it, is PPO over the segments themselves."""
    results = []
    for name in ("one_time", "uniform"):
        tf.random.set_seed(0)
        env = PolicyUnittestEnv(4, 5, seed=1)
        algorithm = ppo(env)
        driver = SyncOffPolicyDriver(env, algorithm, 8, name, random_seed=2)
        for _ in range(3):
            driver.run()
            algorithm.train(num_updates=2, mini_batch_size=8, mini_batch_length=1)
        driver.stop()
        results.append([v.numpy() for v in algorithm.trainable_variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_q_learning_on_samples_learns() -> None:
    """Random play comes to 2 in an episode; the best policy, with a fifth of the actions at random, to 3.6."""
    gin.bind_parameter("ReplayBuffer.max_length", 200)
    env = PolicyUnittestEnv(8, 5, seed=1)
    algorithm = TinyQ(tensor_spec.from_spec(env.observation_spec()), tensor_spec.from_spec(env.action_spec()), lr=0.05)
    driver = SyncOffPolicyDriver(env, algorithm, 4, "prioritized", random_seed=1)
    driver.run(64)
    for _ in range(60):
        driver.run()
        algorithm.train(num_updates=4, mini_batch_size=32, mini_batch_length=2, **SAMPLES)
    driver.stop()
    assert float(driver.get_metrics()[2].result()) > 3.0
