"""Layers and twin networks begin with weights of their own: those that begin alike would learn alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import network, sequential
from tf_agents.networks.q_network import QNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.critic_algorithm import copies
from alf.networks.actor_network import ActorNetwork
from alf.networks.critic_network import CriticNetwork
from alf.networks.dueling_q_network import DuelingQNetwork

SIZES = (16, 16, 16)
SEEN = tf.TensorSpec([16], tf.float32)
NUMBER = tensor_spec.BoundedTensorSpec([16], tf.float32, -1.0, 1.0)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)

NETWORKS: dict[str, Callable[..., Any]] = {
    "actor": lambda **kw: ActorNetwork(SEEN, NUMBER, fc_layer_params=SIZES, **kw),
    "critic": lambda **kw: CriticNetwork(
        (SEEN, NUMBER),
        observation_fc_layer_params=SIZES,
        action_fc_layer_params=SIZES,
        joint_fc_layer_params=SIZES,
        **kw,
    ),
    "dueling": lambda **kw: DuelingQNetwork(
        SEEN, CHOICE, fc_layer_params=SIZES, value_fc_layer_params=SIZES, advantage_fc_layer_params=SIZES, **kw
    ),
    "q": lambda **kw: QNetwork(SEEN, CHOICE, fc_layer_params=SIZES, **kw),
}


class Given(network.Network):
    """Takes layers that were made outside of it."""

    def __init__(self, layers: list[Any], name: str = "Given") -> None:
        super().__init__(SEEN, (), name)
        self._given = layers

    def call(self, inputs: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        for layer in self._given:
            inputs = layer(inputs)
        return inputs, network_state


def _kernels(network: Any) -> list[np.ndarray]:
    network.create_variables()
    return [v.numpy() for v in network.trainable_variables if v.shape.rank > 1]


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_one_shape_begin_differently(name: str) -> None:
    for a, b in itertools.combinations(_kernels(NETWORKS[name]()), 2):
        assert a.shape != b.shape or np.all(np.mean(a == b) < 0.1)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_copies_begin_differently(name: str, given: bool) -> None:
    network = NETWORKS[name](**({"kernel_initializer": tf.keras.initializers.GlorotUniform()} if given else {}))
    kernels = _kernels(network)
    (copy,) = copies([network], "twin")
    for a, b in zip(kernels, _kernels(copy), strict=True):
        assert np.mean(a == b) < 0.1


@pytest.mark.parametrize("initializer", ["glorot_uniform", tf.keras.initializers.Orthogonal(seed=3)])
def test_copies_of_sequences_begin_differently(initializer: Any) -> None:
    """TF-Agents' `Sequential` copies its weights."""
    layers = [tf.keras.layers.Dense(16, kernel_initializer=initializer) for _ in range(2)]
    original = sequential.Sequential(
        [*layers, tf.keras.layers.LSTM(8, return_sequences=True, return_state=True)], input_spec=SEEN
    )
    kernels = _kernels(original)
    (copy,) = copies([original], "twin")
    assert len(kernels) == 4
    for a, b in zip(kernels, _kernels(copy), strict=True):
        assert np.mean(a == b) < 0.1
        np.testing.assert_allclose(np.std(a), np.std(b), rtol=0.3)


def test_kernels_that_are_not_random_stay() -> None:
    layer = tf.keras.layers.Dense(16, kernel_initializer="identity", bias_initializer="ones")
    original = sequential.Sequential([layer], input_spec=SEEN)
    original.create_variables()
    (copy,) = copies([original], "twin")
    for a, b in zip(original.variables, copy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_copy_that_shares_layers_is_refused() -> None:
    original = Given([tf.keras.layers.Dense(4), tf.keras.layers.Dense(3)])
    original.create_variables()
    with pytest.raises(
        ValueError, match=r"copy of Given, such as its target network, shares .*kernel.* make every layer"
    ):
        copies([original], "target")
