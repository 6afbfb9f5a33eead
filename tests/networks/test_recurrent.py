"""Recurrent networks of any cell: GRU against its equations in numpy, resets, states, and learning with memory."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import actor_distribution_rnn_network, q_rnn_network
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.data_structures import Experience, StepType
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import RNNPolicyUnittestEnv
from alf.networks.recurrent import RecurrentValueNetwork, rnn_layer
from alf.utils import external_configurables as external_configurables
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import adam

OBS = tensor_spec.TensorSpec([3], tf.float32)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
FIRST, MID, LAST = (int(x) for x in (StepType.FIRST, StepType.MID, StepType.LAST))
B, T, UNITS = 4, 6, 5


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def gru_step(x: np.ndarray, h: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """Cho et al. 2014 with the reset gate behind the product, as cuDNN has it; gates in Keras' order z, r, candidate."""
    kernel, recurrent, bias = weights
    xz, xr, xc = np.split(x @ kernel + bias[0], 3, -1)
    hz, hr, hc = np.split(h @ recurrent + bias[1], 3, -1)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    return z * h + (1.0 - z) * np.tanh(xc + r * hc)


def sequence() -> tuple[np.ndarray, np.ndarray]:
    """Observations [B, T, 3], and step types [B, T] with an episode that begins within each of the first rows."""
    x = np.random.RandomState(1).normal(size=(B, T, 3))
    step_type = np.full((B, T), MID, np.int32)
    for row, t in ((0, 0), (1, 3), (2, 5)):
        step_type[row, t] = FIRST
    return x, step_type


def value_network(**kwargs: Any) -> RecurrentValueNetwork:
    network = RecurrentValueNetwork(OBS, **{"rnn_construction_kwargs": {"units": (UNITS,)}, **kwargs})
    network.create_variables()
    rs = np.random.RandomState(0)
    for variable in network.variables:
        variable.assign(rs.normal(scale=0.7, size=variable.shape))
    return network


def test_gru_is_the_definition_and_begins_anew_at_first() -> None:
    network, (x, step_type) = value_network(), sequence()
    *weights, kernel, bias = [v.numpy().astype(np.float64) for v in network.variables]
    state = np.random.RandomState(2).normal(size=(B, UNITS))
    expected, h = np.zeros((B, T)), state.copy()
    for row in range(B):
        for t in range(T):
            before = np.zeros(UNITS) if step_type[row, t] == FIRST else h[row]
            h[row] = gru_step(x[row, t], before, weights)
            expected[row, t] = h[row] @ kernel[:, 0] + bias[0]
    value, last = network(tf.constant(x, tf.float32), tf.constant(step_type), tf.constant(state, tf.float32))
    np.testing.assert_allclose(value, expected, atol=1e-4)
    np.testing.assert_allclose(last, h, atol=1e-4)


def stepped(network: Any, x: np.ndarray, step_type: np.ndarray, state: Any) -> tuple[list[Any], Any]:
    outputs = []
    for t in range(T):
        output, state = network(tf.constant(x[:, t], tf.float32), tf.constant(step_type[:, t]), state)
        outputs.append(output)
    return outputs, state


@pytest.mark.parametrize(
    "layer",
    [
        {"units": (UNITS,)},
        {"units": (UNITS, 3)},
        {"units": (UNITS,), "cell": tf.keras.layers.LSTMCell},
        {"units": (UNITS, 3), "cell": tf.keras.layers.LSTMCell},
        {"units": (UNITS,), "cell": tf.keras.layers.SimpleRNNCell},
    ],
)
@pytest.mark.parametrize("kind", ["value", "actor", "q"])
def test_unrolling_equals_step_by_step(kind: str, layer: dict[str, Any]) -> None:
    made = {"rnn_construction_fn": rnn_layer, "rnn_construction_kwargs": layer, "input_fc_layer_params": (4,)}
    network: Any
    if kind == "value":
        network = RecurrentValueNetwork(OBS, **made)
    elif kind == "actor":
        network = actor_distribution_rnn_network.ActorDistributionRnnNetwork(
            OBS, CHOICE, output_fc_layer_params=None, **made
        )
    else:
        network = q_rnn_network.QRnnNetwork(OBS, CHOICE, output_fc_layer_params=None, **made)
    network.create_variables()
    x, step_type = sequence()
    state = tf.nest.map_structure(lambda spec: tf.random.stateless_normal([B, *spec.shape], [3, 4]), network.state_spec)
    whole, last = network(tf.constant(x, tf.float32), tf.constant(step_type), state)
    steps, after = stepped(network, x, step_type, state)
    tf.nest.assert_same_structure(after, network.state_spec)
    if kind == "actor":
        whole, steps = whole.logits, [step.logits for step in steps]
    np.testing.assert_allclose(whole, tf.stack(steps, 1), atol=1e-5)
    for one, other in zip(tf.nest.flatten(last), tf.nest.flatten(after), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    copy = network.copy(name="other")
    copy.create_variables()
    assert [v.shape for v in copy.variables] == [v.shape for v in network.variables]
    assert not {v.ref() for v in copy.variables} & {v.ref() for v in network.variables}


def test_sizes_are_checked() -> None:
    for units in ((), (4, 0)):
        with pytest.raises(ValueError, match="at least one cell"):
            rnn_layer(units)


def gru_algorithm(env: Any, size: int = 16, **loss: Any) -> ActorCriticAlgorithm:
    obs, act = specs_of(env)
    made = {"rnn_construction_fn": rnn_layer, "rnn_construction_kwargs": {"units": (size,)}}
    actor = actor_distribution_rnn_network.ActorDistributionRnnNetwork(
        obs, act, input_fc_layer_params=(size,), output_fc_layer_params=None, **made
    )
    value = RecurrentValueNetwork(obs, input_fc_layer_params=(size,), **made)
    return ActorCriticAlgorithm(
        obs, act, actor, value, loss=ActorCriticLoss(act, gamma=0.95, use_gae=True, **loss), optimizer=adam(1e-2)
    )


def test_learning_reruns_what_acting_saw() -> None:
    """The rows of a segment, re-run for the loss under the same weights, give the recorded values and logits."""
    env = RNNPolicyUnittestEnv(3, 4, gap=1, seed=0)
    algorithm = gru_algorithm(env)
    algorithm.use_rollout_state = True
    seen: list[Experience] = []
    algorithm.add_experience_observer(seen.append)
    driver = SyncOffPolicyDriver(env, algorithm, 6, random_seed=0)
    try:
        driver.run()
        driver.run()
    finally:
        driver.stop()
    exp = seen[-1]
    assert int(tf.reduce_sum(tf.cast(exp.step_type[0, 1:] == FIRST, tf.int32))) > 0
    exp = tf.nest.map_structure(lambda x: x[0], exp._replace(bootstrap=()))
    again = algorithm._run_train_steps(exp)
    np.testing.assert_allclose(again.value, exp.rollout_info.value, atol=1e-5)
    for one, other in zip(
        tf.nest.flatten(again.action_distribution.logits),
        tf.nest.flatten(exp.rollout_info.action_distribution),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)
    state = tf.nest.flatten(exp.state)
    assert [s.shape[-1] for s in state] == [16, 16]
    assert max(float(tf.reduce_max(tf.abs(s))) for s in state) > 0.0


@pytest.mark.slow
def test_a_gru_policy_learns_what_needs_memory() -> None:
    tf.keras.utils.set_random_seed(3)
    env = RNNPolicyUnittestEnv(64, 6, gap=2, seed=0)
    algorithm = gru_algorithm(env, entropy_regularization=0.01)
    driver = SyncOffPolicyDriver(env, algorithm, 6, random_seed=0)
    judge = PolicyDriver(RNNPolicyUnittestEnv(64, 6, gap=2, seed=9), algorithm, epsilon_greedy=0.0)
    best = 3.0  # five actions, of which those after the first two steps earn
    try:
        for i in range(300):
            driver.run()
            algorithm.train()
            if i % 10 == 9:
                judge.run_episodes(64)
                if float(judge.get_metrics()[2].result()) > 0.95 * best:
                    break
    finally:
        driver.stop()
    assert float(judge.get_metrics()[2].result()) > 0.95 * best


def test_gin_chooses_the_cell() -> None:
    gin.parse_config(
        """
        import alf.networks.recurrent
        RecurrentValueNetwork.rnn_construction_fn = @alf.rnn_layer
        alf.rnn_layer.units = (7,)
        alf.rnn_layer.cell = @tf.keras.layers.LSTMCell
        """
    )
    try:
        network = RecurrentValueNetwork(OBS)
        copy = network.copy(name="other")
    finally:
        gin.clear_config()
    assert [s.shape.as_list() for s in tf.nest.flatten(network.state_spec)] == [[7], [7]]
    copy.create_variables()
    assert copy.variables[0].shape == [3, 28]
