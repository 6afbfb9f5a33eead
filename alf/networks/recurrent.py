"""Recurrent networks of any Keras cell, such as GRU, out of TF-Agents' encoder that knows LSTM by name only.

TF-Agents' ActorDistributionRnnNetwork and QRnnNetwork take `rnn_layer` as their `rnn_construction_fn`, without
`lstm_size`; its ValueRnnNetwork has no such argument, for which `RecurrentValueNetwork` stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from tf_agents.keras_layers import dynamic_unroll_layer
from tf_agents.networks import lstm_encoding_network, network

from alf.data_structures import Nest


@gin.configurable(module="alf")
def rnn_layer(
    units: Sequence[int] = (64,), cell: Callable[..., Any] = tf.keras.layers.GRUCell
) -> dynamic_unroll_layer.DynamicUnroll:
    """A recurrent layer that starts from zero at every FIRST; Cho et al. 2014, arXiv:1406.1078, with the default cell.

    Args:
      units: the size of each cell; several are stacked, the first one lowest.
      cell: makes a cell of a size, such as `tf.keras.layers.GRUCell`, `LSTMCell` or `SimpleRNNCell`.

    Raises:
      ValueError: there is no cell, or one has no units.
    """
    if not units or min(units) < 1:
        raise ValueError(f"rnn_layer needs the size of at least one cell, each at least 1; got units={tuple(units)}.")
    cells = [cell(size) for size in units]
    return dynamic_unroll_layer.DynamicUnroll(cells[0] if len(cells) == 1 else tf.keras.layers.StackedRNNCells(cells))


@gin.configurable
class RecurrentValueNetwork(network.Network):
    """The value of what was observed since the episode began."""

    def __init__(
        self,
        input_tensor_spec: Nest,
        preprocessing_layers: Nest = None,
        preprocessing_combiner: Any = None,
        conv_layer_params: Sequence[tuple[int, ...]] | None = None,
        input_fc_layer_params: Sequence[int] | None = None,
        rnn_construction_fn: Callable[..., Any] = rnn_layer,
        rnn_construction_kwargs: dict[str, Any] | None = None,
        output_fc_layer_params: Sequence[int] | None = None,
        activation_fn: Callable[[tf.Tensor], tf.Tensor] = tf.nn.relu,
        name: str = "RecurrentValueNetwork",
    ) -> None:
        """Creates the network.

        Args:
          input_tensor_spec: specs of an observation.
          preprocessing_layers: nest of layers, one for each leaf of the observation.
          preprocessing_combiner: layer that makes one tensor of them.
          conv_layer_params: (filters, kernel size, stride) of each convolution.
          input_fc_layer_params: sizes of the layers below the recurrent one.
          rnn_construction_fn: makes the recurrent layer.
          rnn_construction_kwargs: what it is called with.
          output_fc_layer_params: sizes of the layers above the recurrent one.
          activation_fn: of every layer that is neither recurrent nor the last.
          name: name of the network.
        """
        encoder = lstm_encoding_network.LSTMEncodingNetwork(
            input_tensor_spec,
            preprocessing_layers=preprocessing_layers,
            preprocessing_combiner=preprocessing_combiner,
            conv_layer_params=conv_layer_params,
            input_fc_layer_params=input_fc_layer_params,
            rnn_construction_fn=rnn_construction_fn,
            rnn_construction_kwargs=rnn_construction_kwargs,
            output_fc_layer_params=output_fc_layer_params,
            activation_fn=activation_fn,
        )
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=encoder.state_spec, name=name)
        self._encoder = encoder
        small = tf.keras.initializers.RandomUniform(-0.03, 0.03)
        self._value_layer = tf.keras.layers.Dense(1, kernel_initializer=small, name="value")

    def call(
        self, observation: Nest, step_type: Any = (), network_state: Any = (), training: bool = False
    ) -> tuple[tf.Tensor, Nest]:
        """The values of observations [B, ...] or [B, T, ...].

        Args:
          observation: see above.
          step_type: int32 [B] or [B, T]; rows at FIRST begin with a zero state.
          network_state: as `state_spec`, [B, ...]; `()` for zeros.
          training: for the layers that are different while they learn.

        Returns:
          float32 [B] or [B, T], and the state after the last step.
        """
        encoded, network_state = self._encoder(
            observation, step_type=step_type, network_state=network_state, training=training
        )
        return tf.squeeze(self._value_layer(encoded, training=training), -1), network_state
