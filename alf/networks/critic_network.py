"""Critics of an observation and an action."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from tf_agents.networks import encoding_network, network, utils

from alf.data_structures import Nest


@gin.configurable
class CriticNetwork(network.Network):
    """Q(observation, action): encoded observations and actions, joined; both may be nests.

    TF-Agents has one of this name without preprocessing layers; a gin file that uses both writes
    `alf.networks.critic_network.CriticNetwork` for this one.
    """

    def __init__(
        self,
        input_tensor_spec: tuple[Nest, Nest],
        observation_preprocessing_layers: Nest = None,
        observation_preprocessing_combiner: Any = None,
        observation_conv_layer_params: Sequence[tuple[int, ...]] | None = None,
        observation_fc_layer_params: Sequence[int] | None = None,
        observation_dropout_layer_params: Sequence[Any] | None = None,
        action_fc_layer_params: Sequence[int] | None = None,
        action_dropout_layer_params: Sequence[Any] | None = None,
        joint_fc_layer_params: Sequence[int] | None = None,
        joint_dropout_layer_params: Sequence[Any] | None = None,
        activation_fn: Callable[[tf.Tensor], tf.Tensor] = tf.nn.relu,
        kernel_initializer: Any = None,
        name: str = "CriticNetwork",
    ) -> None:
        """Creates the network.

        Args:
          input_tensor_spec: specs of an observation and of an action; both may be nests. The parts of an action are joined.
          observation_preprocessing_layers: nest of layers, one for each leaf of the observation.
          observation_preprocessing_combiner: layer that makes one tensor of them.
          observation_conv_layer_params: (filters, kernel size, stride) of each convolution.
          observation_fc_layer_params: sizes of the layers above it.
          observation_dropout_layer_params: dropout after each of those.
          action_fc_layer_params: sizes of the layers on the action.
          action_dropout_layer_params: dropout after each of those.
          joint_fc_layer_params: sizes of the layers on both.
          joint_dropout_layer_params: dropout after each of those.
          activation_fn: of every layer but the last.
          kernel_initializer: of the observation's layers; Glorot's uniform one by default.
          name: name of the network.
        """
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        observation_spec, action_spec = input_tensor_spec
        self._action_shapes = [tuple(spec.shape) for spec in tf.nest.flatten(action_spec)]
        scaling = tf.keras.initializers.VarianceScaling(1.0 / 3.0, "fan_in", "uniform")
        self._observation_encoder = encoding_network.EncodingNetwork(
            observation_spec,
            preprocessing_layers=observation_preprocessing_layers,
            preprocessing_combiner=observation_preprocessing_combiner,
            conv_layer_params=observation_conv_layer_params,
            fc_layer_params=observation_fc_layer_params,
            dropout_layer_params=observation_dropout_layer_params,
            activation_fn=activation_fn,
            # By name, each layer gets one of its own: one object gives layers of the same shape the same weights.
            kernel_initializer=kernel_initializer or "glorot_uniform",
        )
        self._action_layers = utils.mlp_layers(
            None, action_fc_layer_params, action_dropout_layer_params, activation_fn, scaling, name="action_encoding"
        )
        self._joint_layers = utils.mlp_layers(
            None, joint_fc_layer_params, joint_dropout_layer_params, activation_fn, scaling, name="joint_mlp"
        )
        small = tf.keras.initializers.RandomUniform(-0.003, 0.003)
        self._joint_layers.append(tf.keras.layers.Dense(1, kernel_initializer=small, name="value"))

    def call(
        self, inputs: tuple[Nest, Nest], step_type: Any = (), network_state: Any = (), training: bool = False
    ) -> tuple[tf.Tensor, Nest]:
        """The value of each row.

        Args:
          inputs: (observation, action), [..., shape of one].
          step_type: without effect.
          network_state: handed back.
          training: whether dropout is on.

        Returns:
          float32 [...], and the network state.
        """
        observation, action = inputs
        parts = [tf.cast(part, tf.float32) for part in tf.nest.flatten(action)]
        squash = utils.BatchSquash(parts[0].shape.rank - len(self._action_shapes[0]))
        encoded, _ = self._observation_encoder(observation, step_type=(), network_state=(), training=training)
        rows = [
            tf.reshape(squash.flatten(part), [-1, math.prod(shape)])
            for part, shape in zip(parts, self._action_shapes, strict=True)
        ]
        action = rows[0] if len(rows) == 1 else tf.concat(rows, -1)
        for layer in self._action_layers:
            action = layer(action, training=training)
        joint = tf.concat([squash.flatten(encoded), action], -1)
        for layer in self._joint_layers:
            joint = layer(joint, training=training)
        return squash.unflatten(tf.reshape(joint, [-1])), network_state
