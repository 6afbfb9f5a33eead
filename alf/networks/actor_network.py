"""Deterministic actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from tf_agents.networks import encoding_network, network, utils
from tf_agents.utils import common

from alf.data_structures import Nest


@gin.configurable
class ActorNetwork(network.Network):
    """An action of an observation, which may be a nest; squashed by tanh into the action's bounds.

    TF-Agents has one of this name without preprocessing layers; a gin file that uses both writes
    `alf.networks.actor_network.ActorNetwork` for this one.
    """

    def __init__(
        self,
        input_tensor_spec: Nest,
        output_tensor_spec: Nest,
        preprocessing_layers: Nest = None,
        preprocessing_combiner: Any = None,
        fc_layer_params: Sequence[int] | None = None,
        dropout_layer_params: Sequence[Any] | None = None,
        conv_layer_params: Sequence[tuple[int, ...]] | None = None,
        activation_fn: Callable[[tf.Tensor], tf.Tensor] = tf.nn.relu,
        kernel_initializer: Any = None,
        name: str = "ActorNetwork",
    ) -> None:
        """Creates the network.

        Args:
          input_tensor_spec: specs of an observation.
          output_tensor_spec: nest of bounded float specs of an action.
          preprocessing_layers: nest of layers, one for each leaf of the observation.
          preprocessing_combiner: layer that makes one tensor of them.
          fc_layer_params: sizes of the layers.
          dropout_layer_params: dropout after each of them.
          conv_layer_params: (filters, kernel size, stride) of each convolution below them.
          activation_fn: of every layer but the last.
          kernel_initializer: of every layer but the last; Glorot's uniform one by default.
          name: name of the network.

        Raises:
          ValueError: an action is not of a float type.
        """
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        wrong = [spec for spec in tf.nest.flatten(output_tensor_spec) if not spec.dtype.is_floating]
        if wrong:
            raise ValueError(f"A deterministic actor gives continuous actions only, not {wrong}: use DQN, SAC or PPO.")
        self._output_tensor_spec = output_tensor_spec
        self._encoder = encoding_network.EncodingNetwork(
            input_tensor_spec,
            preprocessing_layers=preprocessing_layers,
            preprocessing_combiner=preprocessing_combiner,
            conv_layer_params=conv_layer_params,
            fc_layer_params=fc_layer_params,
            dropout_layer_params=dropout_layer_params,
            activation_fn=activation_fn,
            # By name, each layer gets one of its own: one object gives layers of the same shape the same weights.
            kernel_initializer=kernel_initializer or "glorot_uniform",
        )
        small = tf.keras.initializers.RandomUniform(-0.003, 0.003)
        self._action_layers = [
            tf.keras.layers.Dense(spec.shape.num_elements(), tf.tanh, kernel_initializer=small, name="action")
            for spec in tf.nest.flatten(output_tensor_spec)
        ]

    def call(
        self, observation: Nest, step_type: Any = (), network_state: Any = (), training: bool = False
    ) -> tuple[Nest, Nest]:
        """The nest of actions [..., action shape] of observations [..., shape of one], and the network state."""
        encoded, _ = self._encoder(observation, step_type=(), network_state=(), training=training)
        squash = utils.BatchSquash(encoded.shape.rank - 1)
        encoded = squash.flatten(encoded)
        actions = []
        for layer, spec in zip(self._action_layers, tf.nest.flatten(self._output_tensor_spec), strict=True):
            action = tf.reshape(layer(encoded, training=training), [-1, *spec.shape])
            actions.append(squash.unflatten(common.scale_to_spec(action, spec)))
        return tf.nest.pack_sequence_as(self._output_tensor_spec, actions), network_state
