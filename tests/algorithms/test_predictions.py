"""Named predictions: what the networks say, by one name, and errors that name what there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import encoding_network
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.bc_algorithm import BcAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.predictions import get_predictions
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import StepType
from alf.replay.dataset import Steps
from alf.utils import rng
from tests.algorithms.networks import feed_forward, recurrent
from tests.algorithms.off_policy import adam, make
from tests.algorithms.test_agent import OBS as OF_AGENT
from tests.algorithms.test_agent import make_agent
from tests.algorithms.test_tf_agents_algorithm import wrapped

OBS = tensor_spec.TensorSpec([2], tf.float32)
RAW = tensor_spec.TensorSpec([2], tf.uint8)
BOX = tensor_spec.BoundedTensorSpec([1], tf.float32, [-2.0], [2.0])
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
X = np.random.RandomState(0).normal(size=(5, 2)).astype(np.float32)


def call(network: Any, x: Any = X) -> Any:
    return network(tf.constant(x), step_type=(), network_state=())[0]


def actor_critic(obs: Any = OBS, act: Any = CHOICE, raw: Any = OBS) -> ActorCriticAlgorithm:
    return ActorCriticAlgorithm(raw, act, *feed_forward(obs, act), optimizer=adam(1e-3))


def softmax(logits: Any) -> np.ndarray:
    e = np.exp(np.asarray(logits, np.float64))
    return e / e.sum(-1, keepdims=True)


def test_values_and_probabilities_of_an_actor_critic() -> None:
    algorithm = actor_critic()
    np.testing.assert_allclose(get_predictions(algorithm, X, "value"), call(algorithm._value_network), atol=1e-6)
    expected = softmax(call(algorithm._actor_network).logits)
    np.testing.assert_allclose(get_predictions(algorithm, X, "action_probabilities"), expected, atol=1e-6)
    trac = TracAlgorithm(OBS, CHOICE, ac_algorithm_cls=lambda **_: algorithm)
    np.testing.assert_allclose(get_predictions(trac, X, "action_probabilities"), expected, atol=1e-6)


def test_a_prediction_takes_no_number_of_the_stream_that_is_open() -> None:
    agent, seeds = make_agent(goal_generator=RandomCategoricalGoalGenerator(OF_AGENT, 3)), []
    for predicts in (False, True):
        with rng.scope(tf.constant([1, 2])):
            if predicts:
                get_predictions(agent, X, "value")
            seeds.append(rng.next_seed().numpy().tolist())
    assert seeds[0] == seeds[1]


def test_what_there_is_is_named() -> None:
    with pytest.raises(ValueError, match=r"no output of the kind 'q_values'; .*\['action_probabilities', 'value'\]"):
        get_predictions(actor_critic(), X, "q_values")
    with pytest.raises(ValueError, match=r"no output of the kind 'action_probabilities'; .*\['value'\]"):
        get_predictions(actor_critic(act=BOX), X, "action_probabilities")
    with pytest.raises(ValueError, match=r"several .* 'q_values'; .*'q_values/0', 'q_values/1'\]"):
        get_predictions(make("discrete_sac", OBS, CHOICE), X, "q_values")


@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_values_of_all_actions(name: str) -> None:
    algorithm = make(name, OBS, CHOICE)
    values = get_predictions(algorithm, X, "q_values")
    assert values.shape == [5, 3]
    output = call(algorithm._q_network)
    if name == "c51":
        output = softmax(output) @ np.linspace(-2.0, 10.0, 21)
    np.testing.assert_allclose(values, output, atol=1e-4)


@pytest.mark.parametrize("shape", [[], [1]])
@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_values_of_all_actions_by_an_agent_of_tf_agents(name: str, shape: list[int]) -> None:
    algorithm = wrapped(name, OBS, tensor_spec.BoundedTensorSpec(shape, tf.int64, 0, 2))
    output = call(algorithm.agent._q_network)
    if name == "c51":
        output = softmax(output) @ np.linspace(-2.0, 8.0, 11)
    np.testing.assert_allclose(get_predictions(algorithm, X, "q_values"), output, atol=1e-4)


def test_an_agent_of_tf_agents_with_an_actor_has_no_predictions() -> None:
    with pytest.raises(ValueError, match=r"has no output of the kind 'q_values'; ask for one of \[\]"):
        get_predictions(wrapped("td3", OBS, BOX), X, "q_values")


def test_critics_are_told_apart() -> None:
    sac = make("discrete_sac", OBS, CHOICE)
    for i, critic in enumerate(sac._critic_networks):
        np.testing.assert_allclose(get_predictions(sac, X, f"q_values/{i}"), call(critic), atol=1e-6)
    ddpg, td3 = make("ddpg", OBS, BOX), make("td3", OBS, BOX)
    action = call(ddpg._actor_network)
    value = ddpg._critic_networks[0]((tf.constant(X), action), step_type=(), network_state=())[0]
    np.testing.assert_allclose(get_predictions(ddpg, X, "q_values"), value, atol=1e-6)
    assert get_predictions(td3, X, "q_values/1").shape == [5]
    assert get_predictions(make("sac", OBS, BOX), X, "q_values/0").shape == [5]


def test_an_agent_has_embeddings_of_raw_observations() -> None:
    seen = tensor_spec.TensorSpec([4], tf.float32)
    encoder = encoding_network.EncodingNetwork(OBS, fc_layer_params=(4,))
    agent = Agent(RAW, CHOICE, lambda **_: actor_critic(seen, raw=seen), encoding_network=encoder, optimizer=adam(1e-3))
    raw = np.random.RandomState(0).randint(0, 255, (5, 2)).astype(np.uint8)
    embedding = call(encoder, raw.astype(np.float32))
    np.testing.assert_allclose(get_predictions(agent, raw, "embedding"), embedding, atol=1e-4)
    value = call(agent._rl_algorithm._value_network, embedding)
    np.testing.assert_allclose(get_predictions(agent, raw, "value"), value, atol=1e-3)


def test_a_recurrent_state_counts_but_for_first_steps() -> None:
    algorithm = ActorCriticAlgorithm(OBS, CHOICE, *recurrent(OBS, CHOICE), optimizer=adam(1e-3))
    state = tf.nest.map_structure(lambda s: tf.ones([5, *s.shape]), algorithm.train_state_spec)
    step_type = np.array([StepType.FIRST, StepType.MID] * 2 + [StepType.LAST], np.int32)
    plain, given = (get_predictions(algorithm, X, "value", state=s, step_type=step_type).numpy() for s in (None, state))
    np.testing.assert_allclose(plain[[0, 2]], given[[0, 2]], atol=1e-6)
    assert (np.abs(plain - given)[[1, 3, 4]] > 1e-5).all()
    untold = get_predictions(algorithm, X, "value", state=state)
    np.testing.assert_allclose(untold.numpy()[[1, 3]], given[[1, 3]], atol=1e-6)


def test_a_cloned_policy_has_probabilities() -> None:
    steps = Steps(
        step_type=np.array([0, 1, 2], np.int32),
        reward=np.zeros(3, np.float32),
        discount=np.ones(3, np.float32),
        observation=X[:3],
        action=np.array([0, 1, 2]),
    )
    algorithm = BcAlgorithm(OBS, CHOICE, feed_forward(OBS, CHOICE)[0], dataset=steps, optimizer=adam(1e-3))
    expected = softmax(call(algorithm._actor_network).logits)
    np.testing.assert_allclose(get_predictions(algorithm, X, "action_probabilities"), expected, atol=1e-6)


# ---- one, a list, a batch ----


def test_one_observation_a_list_or_a_batch() -> None:
    algorithm = actor_critic()
    batch = get_predictions(algorithm, X, "action_probabilities").numpy()
    assert batch.shape == (5, 3)
    for given in ([*X], tuple(X), [tf.constant(x) for x in X], X.astype(np.float64)):
        np.testing.assert_allclose(get_predictions(algorithm, given, "action_probabilities"), batch, atol=1e-6)
    for i, x in enumerate(X):
        one = get_predictions(algorithm, x, "action_probabilities")
        assert one.shape == [3]
        np.testing.assert_allclose(one, batch[i], atol=1e-6)
        assert get_predictions(algorithm, x, "value").shape == []
        np.testing.assert_allclose(get_predictions(algorithm, [x], "action_probabilities"), batch[i : i + 1], atol=1e-6)


def test_one_observation_in_a_state() -> None:
    algorithm = ActorCriticAlgorithm(OBS, CHOICE, *recurrent(OBS, CHOICE), optimizer=adam(1e-3))
    rs = np.random.RandomState(1)
    state = tf.nest.map_structure(
        lambda s: tf.constant(rs.normal(size=[5, *s.shape]), tf.float32), algorithm.train_state_spec
    )
    step_type = np.array([StepType.FIRST, StepType.MID] * 2 + [StepType.LAST], np.int32)
    together = get_predictions(algorithm, [*X], "value", state=state, step_type=step_type)
    for i, x in enumerate(X):
        own = tf.nest.map_structure(lambda s, i=i: s[i], state)
        alone = get_predictions(algorithm, x, "value", state=own, step_type=step_type[i])
        assert float(alone) == pytest.approx(float(together[i]), abs=1e-6)


def test_fields_that_nothing_observes_are_left_out() -> None:
    spec = {"speed": OBS, "more": {"height": tensor_spec.TensorSpec([], tf.float32)}}
    kwargs = {
        "preprocessing_layers": {"speed": tf.keras.layers.Dense(4), "more": {"height": tf.keras.layers.Reshape([1])}},
        "preprocessing_combiner": tf.keras.layers.Concatenate(),
    }
    algorithm = ActorCriticAlgorithm(spec, CHOICE, *feed_forward(spec, CHOICE, **kwargs), optimizer=adam(1e-3))
    observation = {"speed": X, "more": {"height": X[:, 0]}}
    expected = get_predictions(algorithm, observation, "value").numpy()
    more = {"picture": np.zeros([5, 9, 9]), "speed": X, "more": {"name": np.array(["a"] * 5), "height": X[:, 0]}}
    np.testing.assert_allclose(get_predictions(algorithm, more, "value"), expected, atol=1e-6)
    each = [tf.nest.map_structure(lambda x, i=i: x[i], more) for i in range(5)]
    np.testing.assert_allclose(get_predictions(algorithm, each, "value"), expected, atol=1e-6)
    np.testing.assert_allclose(get_predictions(algorithm, each[3], "value"), expected[3], atol=1e-6)
    with pytest.raises(
        ValueError, match=r"ActorCriticAlgorithm observes .*'height': \[\].*give one such observation, a list"
    ):
        get_predictions(algorithm, {"speed": X}, "value")


def test_observations_that_are_lists_are_no_lists_of_observations() -> None:
    spec = [OBS, tensor_spec.TensorSpec([1], tf.float32)]
    kwargs = {
        "preprocessing_layers": [tf.keras.layers.Dense(4), tf.keras.layers.Dense(4)],
        "preprocessing_combiner": tf.keras.layers.Add(),
    }
    algorithm = ActorCriticAlgorithm(spec, CHOICE, *feed_forward(spec, CHOICE, **kwargs), optimizer=adam(1e-3))
    expected = get_predictions(algorithm, [X, X[:, :1]], "value").numpy()
    assert expected.shape == (5,)
    each = [[x, x[:1]] for x in X]
    np.testing.assert_allclose(get_predictions(algorithm, each, "value"), expected, atol=1e-6)
    np.testing.assert_allclose(get_predictions(algorithm, each[2], "value"), expected[2], atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [np.zeros(3), np.zeros([2, 3]), np.zeros([2, 5, 2]), [], [np.zeros(3)], {"x": np.zeros(2)}]
)
def test_observations_that_do_not_fit_are_told_in_a_sentence(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"ActorCriticAlgorithm observes \[2\]: give one such observation"):
        get_predictions(actor_critic(), wrong, "value")
