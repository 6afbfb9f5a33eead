"""The intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363)."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import tensorflow as tf

from alf.algorithms import curiosity
from alf.algorithms.curiosity import CuriosityAlgorithm, CuriosityInfo, Transition
from alf.algorithms.network_kinds import number_of_actions
from alf.data_structures import AlgorithmStep, Nest
from alf.utils.common import check_sizes


def _width(spec: Any) -> int:
    size = spec.shape.num_elements()
    return size * number_of_actions(spec) if spec.dtype.is_integer else size


def encode_action(action: Nest, action_spec: Nest) -> tf.Tensor:
    """Actions [B, ...] as vectors float32 [B, n]: discrete components one-hot, all leaves side by side."""

    def encode(x: tf.Tensor, spec: Any) -> tf.Tensor:
        if spec.dtype.is_integer:
            x = tf.one_hot(tf.cast(x, tf.int32) - int(np.min(spec.minimum)), number_of_actions(spec))
        return tf.reshape(tf.cast(x, tf.float32), [-1, _width(spec)])

    leaves = zip(tf.nest.flatten(action), tf.nest.flatten(action_spec), strict=True)
    return tf.concat([encode(x, spec) for x, spec in leaves], -1)


def action_loss(prediction: tf.Tensor, action: Nest, action_spec: Nest) -> tf.Tensor:
    """How badly actions are predicted, [B]: the mean over components of cross-entropy, or half the squared error.

    Args:
      prediction: float32 [B, n], as `encode_action` lays actions out; logits for discrete ones.
      action: nest [B, ...].
      action_spec: nest of bounded specs.
    """
    specs = tf.nest.flatten(action_spec)
    pieces = tf.split(prediction, [_width(spec) for spec in specs], -1)

    def loss(predicted: tf.Tensor, x: tf.Tensor, spec: Any) -> tf.Tensor:
        if not spec.dtype.is_integer:
            x = tf.reshape(tf.cast(x, tf.float32), tf.shape(predicted))
            return 0.5 * tf.reduce_mean(tf.math.squared_difference(predicted, x), -1)
        labels = tf.reshape(tf.cast(x, tf.int32) - int(np.min(spec.minimum)), [-1, spec.shape.num_elements()])
        logits = tf.reshape(predicted, [-1, spec.shape.num_elements(), number_of_actions(spec)])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), -1)

    return tf.add_n([loss(*leaf) for leaf in zip(pieces, tf.nest.flatten(action), specs, strict=True)])


@gin.configurable(module="alf")
class ICMAlgorithm(CuriosityAlgorithm):
    """Rewards transitions whose outcome a model of the features did not foresee.

    The forward model predicts the next feature from feature and action; its error, 0.5 * mean square over the feature's
    components, is the reward. The inverse model predicts the action from both features. Only the inverse loss trains
    the features, so that they hold what actions change.
    """

    def __init__(
        self,
        action_spec: Nest,
        feature_spec: Any,
        hidden_size: int = 256,
        reward_adapt_speed: float | None = 8.0,
        encoding_net: Any = None,
        forward_net: Any = None,
        inverse_net: Any = None,
        name: str = "ICMAlgorithm",
    ) -> None:
        """Creates the algorithm.

        Args:
          action_spec: nest of bounded specs of one action.
          feature_spec: spec of one feature vector: of what `encoding_net` gives, or of the observation without one.
          hidden_size: size of the hidden layer of the default networks.
          reward_adapt_speed: see `CuriosityAlgorithm`.
          encoding_net: feed-forward TF-Agents network from the observation that the policy sees to the feature.
          forward_net: network of [feature, encoded action] to the next feature; see `encode_action`.
          inverse_net: network of [feature, next feature] to the action, see `action_loss`.
          name: name of the algorithm.

        Raises:
          ValueError: `hidden_size` is below 1, or a feature is no vector.
        """
        check_sizes(hidden_size=hidden_size)
        super().__init__(reward_adapt_speed, name=name)
        feature = curiosity.vector_spec(name, feature_spec)
        self._action_spec = action_spec
        features = feature.shape[0]
        width = sum(_width(spec) for spec in tf.nest.flatten(action_spec))
        action = tf.TensorSpec([width], tf.float32)
        self._encoding_net = encoding_net
        self._forward_net = forward_net or curiosity.mlp([feature, action], hidden_size, features, "forward_net")
        self._inverse_net = inverse_net or curiosity.mlp([feature, feature], hidden_size, width, "inverse_net")
        for network in (encoding_net, self._forward_net, self._inverse_net):
            if network is not None:
                network.create_variables()

    def train_step(self, inputs: Transition, state: Nest = None) -> AlgorithmStep:
        feature = curiosity.apply(self._encoding_net, inputs.observation)
        next_feature = curiosity.apply(self._encoding_net, inputs.next_observation)
        action = encode_action(inputs.action, self._action_spec)
        predicted = curiosity.apply(self._forward_net, [tf.stop_gradient(feature), action])
        error = tf.math.squared_difference(predicted, tf.stop_gradient(next_feature))
        forward_loss = 0.5 * tf.reduce_mean(error, -1)
        inverse = curiosity.apply(self._inverse_net, [feature, next_feature])
        losses = {"forward_loss": forward_loss, "inverse_loss": action_loss(inverse, inputs.action, self._action_spec)}
        return AlgorithmStep(info=CuriosityInfo(reward=tf.stop_gradient(forward_loss), losses=losses))
