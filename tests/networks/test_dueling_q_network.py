"""The dueling network: its equation, in numpy, and as the network of deep Q-learning."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.networks.dueling_q_network import DuelingQNetwork
from tests.algorithms.off_policy import adam

OBS = tensor_spec.TensorSpec([3], tf.float32)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 3)


def network() -> DuelingQNetwork:
    made = DuelingQNetwork(
        OBS, CHOICE, fc_layer_params=(5,), value_fc_layer_params=(4,), advantage_fc_layer_params=(6,)
    )
    made.create_variables()
    rs = np.random.RandomState(0)
    for variable in made.variables:
        variable.assign(rs.normal(size=variable.shape))
    return made


def stream(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """Layers with rectifiers between them, in float64."""
    for i in range(0, len(weights), 2):
        x = x @ weights[i] + weights[i + 1]
        x = np.maximum(x, 0.0) if i + 2 < len(weights) else x
    return x


@pytest.mark.parametrize("outer", [[7], [2, 7]])
def test_values_are_the_states_value_plus_centred_advantages(outer: list[int]) -> None:
    made = network()
    by_name = {"value": [], "advantage": [], "encoder": []}  # type: ignore[var-annotated]
    for variable in made.variables:
        key = "value" if "value" in variable.name.replace("QNetwork", "") else "encoder"
        key = "advantage" if "advantage" in variable.name else key
        by_name[key].append(variable.numpy().astype(np.float64))
    assert [len(v) for v in by_name.values()] == [4, 4, 2]
    x = np.random.RandomState(1).normal(size=(*outer, 3))
    encoded = np.maximum(stream(x, by_name["encoder"]), 0.0)
    value, advantage = stream(encoded, by_name["value"]), stream(encoded, by_name["advantage"])
    q = made(tf.constant(x, tf.float32))[0].numpy()
    for row in np.ndindex(*outer):
        for action in range(4):
            expected = value[row][0] + advantage[row][action] - sum(advantage[row]) / 4
            assert q[row][action] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_number_added_to_all_advantages_changes_nothing() -> None:
    made = network()
    x = tf.random.stateless_normal([5, 3], [1, 2])
    before = made(x)[0].numpy()
    made._advantage_layers[-1].bias.assign_add(tf.fill([4], 3.0))
    np.testing.assert_allclose(made(x)[0], before, atol=1e-4)
    made._value_layers[-1].bias.assign_add([3.0])
    np.testing.assert_allclose(made(x)[0], before + 3.0, atol=1e-4)


def test_deep_q_learning_takes_it_by_gin_and_copies_it_for_the_target() -> None:
    gin.parse_config(
        """
        import alf.networks.dueling_q_network
        DqnAlgorithm.q_network = @DuelingQNetwork()
        DuelingQNetwork.fc_layer_params = (8,)
        DuelingQNetwork.value_fc_layer_params = None
        """
    )
    gin.bind_parameter("DuelingQNetwork.input_tensor_spec", OBS)
    gin.bind_parameter("DuelingQNetwork.action_spec", CHOICE)
    try:
        algorithm = DqnAlgorithm(OBS, CHOICE, optimizer=adam(1e-3))
    finally:
        gin.clear_config()
    target = algorithm._target_networks[0]
    assert [v.shape for v in target.variables] == [v.shape for v in algorithm._q_network.variables]
    assert not {v.ref() for v in target.variables} & {v.ref() for v in algorithm._q_network.variables}


def test_several_actions_are_an_error() -> None:
    with pytest.raises(ValueError, match="single action"):
        DuelingQNetwork(OBS, [CHOICE, CHOICE])
