"""Q-networks that tell what a state is worth from what an action adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from tf_agents.networks import encoding_network, network, q_network, utils

from alf.data_structures import Nest


@gin.configurable
class DuelingQNetwork(network.Network):
    """Values of all actions, as value of the state plus advantages less their mean.

    Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a'): Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9.
    V and A are streams of layers of their own above a common encoder.
    """

    def __init__(
        self,
        input_tensor_spec: Nest,
        action_spec: Any,
        preprocessing_layers: Nest = None,
        preprocessing_combiner: Any = None,
        conv_layer_params: Sequence[tuple[int, ...]] | None = None,
        fc_layer_params: Sequence[int] | None = None,
        value_fc_layer_params: Sequence[int] | None = (64,),
        advantage_fc_layer_params: Sequence[int] | None = (64,),
        activation_fn: Callable[[tf.Tensor], tf.Tensor] = tf.nn.relu,
        kernel_initializer: Any = None,
        name: str = "DuelingQNetwork",
    ) -> None:
        """Creates the network.

        Args:
          input_tensor_spec: specs of an observation.
          action_spec: bounded integer spec of one action, shape [] or [1].
          preprocessing_layers: nest of layers, one for each leaf of the observation.
          preprocessing_combiner: layer that makes one tensor of them.
          conv_layer_params: (filters, kernel size, stride) of each convolution of the encoder.
          fc_layer_params: sizes of the encoder's layers above them.
          value_fc_layer_params: sizes of the layers of the stream that ends in the value.
          advantage_fc_layer_params: sizes of the layers of the stream that ends in the advantages.
          activation_fn: of every layer but the last ones.
          kernel_initializer: of every layer but the last ones; TF-Agents' default otherwise.
          name: name of the network.

        Raises:
          ValueError: there is more than one action.
        """
        q_network.validate_specs(action_spec, input_tensor_spec)
        spec = tf.nest.flatten(action_spec)[0]
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        self._encoder = encoding_network.EncodingNetwork(
            input_tensor_spec,
            preprocessing_layers=preprocessing_layers,
            preprocessing_combiner=preprocessing_combiner,
            conv_layer_params=conv_layer_params,
            fc_layer_params=fc_layer_params,
            activation_fn=activation_fn,
            kernel_initializer=kernel_initializer,
        )

        def stream(sizes: Sequence[int] | None, outputs: int, what: str) -> list[Any]:
            layers = utils.mlp_layers(None, sizes, None, activation_fn, kernel_initializer, name=f"{what}_stream")
            small = tf.keras.initializers.RandomUniform(-0.03, 0.03)
            return [*layers, tf.keras.layers.Dense(outputs, kernel_initializer=small, name=what)]

        self._value_layers = stream(value_fc_layer_params, 1, "value")
        self._advantage_layers = stream(advantage_fc_layer_params, int(spec.maximum - spec.minimum) + 1, "advantage")

    def call(
        self, observation: Nest, step_type: Any = (), network_state: Any = (), training: bool = False
    ) -> tuple[tf.Tensor, Nest]:
        """The values of all actions, float32 [..., number of actions], and the network state."""
        encoded, _ = self._encoder(observation, step_type=(), network_state=(), training=training)
        squash = utils.BatchSquash(encoded.shape.rank - 1)
        value = advantage = squash.flatten(encoded)
        for layer in self._value_layers:
            value = layer(value, training=training)
        for layer in self._advantage_layers:
            advantage = layer(advantage, training=training)
        q = value + advantage - tf.reduce_mean(advantage, -1, keepdims=True)
        return squash.unflatten(q), network_state
