"""Parameter noise: what is shaken and when, how its strength adapts, and that only collecting acts by it."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.sequential import Sequential
from tf_agents.specs import tensor_spec

from alf.algorithms.exploration import GaussianNoise, LinearSchedule
from alf.algorithms.parameter_noise import ParameterNoise, action_distance, divergence_of_epsilon, value_distance
from alf.algorithms.rl_algorithm import ROLLOUT
from alf.data_structures import ActionTimeStep
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.utils import rng
from tests.algorithms import recurrent_off_policy
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import make
from tests.algorithms.test_off_policy_losses import experience, training_info

OBS = tensor_spec.TensorSpec([2], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([1], tf.float32, [-2.0], [2.0])
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)


def test_distances_are_those_of_the_paper() -> None:
    rs = np.random.RandomState(0)
    one, other = rs.normal(size=(2, 7, 3)).astype(np.float32)
    total = 0.0
    for x, y in zip(one, other, strict=True):
        p, q = (np.exp(v) / np.exp(v).sum() for v in (x, y))
        total += sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))
    assert float(value_distance(tf.constant(one), tf.constant(other))) == pytest.approx(total / 7, rel=1e-4)
    half = np.array([0.5, 1.0, 4.0], np.float32)
    squares = [((x[i] - y[i]) / half[i]) ** 2 for x, y in zip(one, other, strict=True) for i in range(3)]
    assert float(action_distance(tf.constant(one), tf.constant(other), half)) == pytest.approx(
        np.sqrt(np.mean(squares)), rel=1e-5
    )
    # The divergence of the greedy policy from one that is random in a tenth of the steps, over four actions.
    assert float(divergence_of_epsilon(0.1, 4)) == pytest.approx(-np.log(0.9 + 0.1 / 4), rel=1e-5)


def acted(algorithm: Any, observation: tf.Tensor) -> np.ndarray:
    rows = observation.shape[0]
    time_step = ActionTimeStep(
        tf.ones([rows], tf.int32), tf.zeros([rows]), tf.ones([rows]), observation, (), tf.range(rows)
    )
    with rng.scope(tf.constant([1, 2])):
        return algorithm.rollout(time_step, (), ROLLOUT).action.numpy()


def updated(noise: ParameterNoise, distance: float, seed: int = 0) -> None:
    with rng.scope(tf.constant([seed, 5])):
        noise.after_update(lambda: tf.constant(distance), lambda strength: strength)


def test_statistics_of_normalising_layers_are_copied_and_not_shaken() -> None:
    network = Sequential([tf.keras.layers.Dense(3), tf.keras.layers.BatchNormalization()], input_spec=OBS)
    network.create_variables()
    noise = ParameterNoise(initial_stddev=0.3)
    noise.attach(network)
    for variable in network.non_trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    updated(noise, 0.1)
    for variable, shaken in noise.followers():
        assert np.all(variable.numpy() == shaken.numpy()) == (not variable.trainable)


def test_a_component_without_a_range_is_as_near_as_can_be() -> None:
    one, other = tf.constant([[0.5, 2.0]]), tf.constant([[-0.5, 2.0]])
    assert float(action_distance(one, other, np.array([1.0, 0.0], np.float32))) == pytest.approx(0.5**0.5)


def test_copies_are_made_anew_once_a_period_with_noise_of_the_deviation() -> None:
    noise = ParameterNoise(0.5, initial_stddev=0.3, adaptation=2.0, period=3)
    algorithm = make("ddpg", OBS, BOX, layers=(200,), parameter_noise=noise, exploration=GaussianNoise(0.0))
    actor, shaken = algorithm._actor_network, noise.network
    for one, other in zip(actor.variables, shaken.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    changes, deviations = [], []
    for i in range(7):
        before = [v.numpy() for v in shaken.variables]
        deviations.append(float(noise.metrics()["parameter_noise_stddev"]))
        updated(noise, distance=0.1 if i < 4 else 0.9, seed=i)
        changes.append(any((a != v.numpy()).any() for a, v in zip(before, shaken.variables, strict=True)))
        if changes[-1]:
            drawn = np.concatenate(
                [(s.numpy() - v.numpy()).ravel() for s, v in zip(shaken.variables, actor.variables, strict=True)]
            )
            np.testing.assert_allclose([drawn.mean(), drawn.std()], [0.0, deviations[-1]], atol=0.1 * deviations[-1])
    assert changes == [True, False, False, True, False, False, True]
    # Twice too near, and then too far.
    np.testing.assert_allclose(deviations, [0.3, 0.6, 0.6, 0.6, 1.2, 1.2, 1.2], rtol=1e-6)
    assert float(noise.metrics()["parameter_noise_stddev"]) == pytest.approx(0.6)
    assert float(noise.metrics()["parameter_noise_distance"]) == pytest.approx(0.9)
    assert float(noise.metrics()["parameter_noise_target"]) == 0.5


@pytest.mark.parametrize("name", ["dqn", "c51", "ddpg", "td3"])
def test_only_collecting_acts_by_the_copy_and_no_optimiser_trains_it(name: str) -> None:
    discrete = name in ("dqn", "c51")
    noise = ParameterNoise(initial_stddev=2.0)
    still = {"epsilon_greedy": 0.0} if discrete else {"exploration": GaussianNoise(0.0)}
    algorithm = make(name, OBS, CHOICE if discrete else BOX, parameter_noise=noise, **still)
    updated(noise, 0.0)
    observation = tf.random.stateless_normal([64, 2], [1, 2])
    by_copy = noise.network(observation, step_type=(), network_state=())[0]
    if discrete:
        by_copy = tf.argmax(algorithm.values_of(by_copy), -1)
    np.testing.assert_allclose(acted(algorithm, observation), by_copy, atol=1e-6)
    time_step = ActionTimeStep(step_type=tf.ones([64], tf.int32), observation=observation)
    predicted = algorithm.predict(time_step, ()).action.numpy()
    assert np.abs(predicted - acted(algorithm, observation)).max() > 0.01
    trained = {v.ref() for _, variables in algorithm.optimized_variables() for v in variables}
    assert not trained & {v.ref() for v in noise.network.variables}
    read = {v.ref() for v in algorithm.acting_variables()}
    assert {v.ref() for v in noise.network.variables} == read


@pytest.mark.parametrize("name", ["dqn", "ddpg"])
def test_the_distance_is_of_the_recorded_rows_in_units_of_the_actions(name: str) -> None:
    spec, noise = CHOICE if name == "dqn" else BOX, ParameterNoise(initial_stddev=0.5)
    algorithm, exp = make(name, OBS, spec, parameter_noise=noise), experience(spec)
    with rng.scope(tf.constant([1, 2])):
        algorithm.after_train(training_info(algorithm, exp))
    rows, network = (
        tf.reshape(exp.observation, [-1, 2]),
        algorithm._q_network if name == "dqn" else algorithm._actor_network,
    )
    one, other = (n(rows, step_type=(), network_state=())[0].numpy() for n in (network, noise.network))
    if name == "dqn":
        p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (one, other))
        expected = (p * np.log(p / q)).sum(-1).mean()
    else:
        expected = np.sqrt(np.mean(((one - other) / 2.0) ** 2))  # Half of the range is 2.
    assert expected > 1e-3
    assert float(noise.metrics()["parameter_noise_distance"]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["dqn", "ddpg"])
def test_the_distance_of_recurrent_networks_is_with_what_is_remembered_at_each_row(name: str) -> None:
    spec, noise = CHOICE if name == "dqn" else BOX, ParameterNoise(initial_stddev=0.5)
    algorithm, exp = recurrent_off_policy.make(name, OBS, spec, parameter_noise=noise), experience(spec)
    with rng.scope(tf.constant([1, 2])):
        algorithm.after_train(training_info(algorithm, exp))
    network = algorithm._q_network if name == "dqn" else algorithm._actor_network
    state: Any = ()
    pairs = []
    for observation, step_type in zip(exp.observation, exp.step_type, strict=True):
        other = noise.network(observation, step_type=step_type, network_state=state)[0]
        one, state = network(observation, step_type=step_type, network_state=state)
        pairs.append((one, other))
    one, other = (tf.concat(x, 0) for x in zip(*pairs, strict=True))
    expected = value_distance(one, other) if name == "dqn" else action_distance(one, other, np.float32(2.0))
    assert float(expected) > 1e-4
    assert float(noise.metrics()["parameter_noise_distance"]) == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_the_distance_goes_to_what_is_asked_for(name: str, tmp_path: pathlib.Path) -> None:
    kind = ActionType.Discrete if name == "dqn" else ActionType.Continuous
    env = PolicyUnittestEnv(8, 5, action_type=kind, seed=0)
    noise = ParameterNoise(0.2, initial_stddev=1e-3, adaptation=1.2, period=1)
    tf.keras.utils.set_random_seed(1)
    algorithm = make(name, *specs_of(env), lr=1e-4, parameter_noise=noise)
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="uniform", random_seed=1)
    try:
        driver.run()
        distances = []
        for _ in range(60):
            algorithm.train(num_updates=2, mini_batch_length=2, mini_batch_size=32, whole_replay_buffer_training=False)
            distances.append(float(noise.metrics()["parameter_noise_distance"]))
        assert np.isfinite(float(algorithm.last_train_metrics["parameter_noise_stddev"]))
        driver.run()
    finally:
        driver.stop()
    target = -np.log(1 - 0.2 / 2) if name == "dqn" else 0.2
    assert max(distances[:3]) < 0.1 * target
    assert 0.3 * target < np.median(distances[30:]) < 3.0 * target
    path = tf.train.Checkpoint(noise=noise).write(str(tmp_path / "ckpt"))
    again = ParameterNoise(0.2)
    make(name, *specs_of(env), parameter_noise=again)
    tf.train.Checkpoint(noise=again).read(path).assert_consumed()
    assert float(again.metrics()["parameter_noise_stddev"]) == float(noise.metrics()["parameter_noise_stddev"])


def test_wrong_settings_are_told() -> None:
    for wrong in ({"initial_stddev": 0.0}, {"adaptation": 1.0}, {"period": 0}):
        with pytest.raises(ValueError, match="initial_stddev > 0, adaptation > 1 and period >= 1"):
            ParameterNoise(**wrong)
    noise = ParameterNoise()
    make("dqn", OBS, CHOICE, parameter_noise=noise)
    with pytest.raises(ValueError, match="a ParameterNoise of its own"):
        make("dqn", OBS, CHOICE, parameter_noise=noise)


@pytest.mark.parametrize("distance", [1.5, LinearSchedule(0.1, 1.5, 100)])
def test_no_policy_of_values_is_farther_than_one_at_random(distance: Any) -> None:
    with pytest.raises(ValueError, match=r"parameter_noise_target must be at least 0 and at most 1, .*; got 1\.5"):
        make("dqn", OBS, CHOICE, parameter_noise=ParameterNoise(distance))
    make("dqn", OBS, CHOICE, parameter_noise=ParameterNoise(1.0))
    make("ddpg", OBS, BOX, parameter_noise=ParameterNoise(1.5))
