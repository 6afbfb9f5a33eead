"""A projection to normal distributions that stays well-conditioned when the distribution gets narrow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf
from tf_agents.networks import normal_projection_network, utils

# Each transform with its inverse.
_TRANSFORMS: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[float], float]]] = {
    "softplus": (tf.nn.softplus, lambda y: y + math.log(-math.expm1(-y))),
    "exp": (tf.exp, math.log),
}


@gin.configurable
class StableNormalProjectionNetwork(normal_projection_network.NormalProjectionNetwork):
    """Projects to std = min_std + 1 / (c + transform(b)) and mean = a * std, a and b being what the layers give.

    c follows from max_std. The second derivatives of the log-probability with respect to a and b stay bounded however
    small the deviation gets, which is not so where mean and deviation are projected apart.
    """

    def __init__(
        self,
        sample_spec: Any,
        activation_fn: Any = None,
        init_means_output_factor: float = 1e-10,
        mean_transform: Callable[[tf.Tensor, Any], tf.Tensor] | None = normal_projection_network.tanh_squash_to_spec,
        inverse_std_transform: str = "softplus",
        state_dependent_std: bool = False,
        scale_distribution: bool = False,
        init_std: float = 1.0,
        min_std: float = 0.0,
        max_std: float | None = None,
        name: str = "StableNormalProjectionNetwork",
    ) -> None:
        """Creates the network; arguments not named here as in TF-Agents' `NormalProjectionNetwork`.

        Args:
          sample_spec: bounded float spec of an action.
          mean_transform: (means, spec) -> means, without `scale_distribution`.
          inverse_std_transform: "softplus" or "exp", what b goes through.
          init_std: the deviation at the start, above min_std and below max_std.
          min_std: the deviation stays above it.
          max_std: and below this; None for no bound.

        Raises:
          ValueError: the transform is another, or the deviations are not in order.
        """
        if inverse_std_transform not in _TRANSFORMS:
            raise ValueError(f"inverse_std_transform={inverse_std_transform!r} is not one of {sorted(_TRANSFORMS)}.")
        highest = math.inf if max_std is None else max_std
        if not 0.0 <= min_std < init_std < highest:
            raise ValueError(
                f"The deviations must be in order, 0 <= min_std < init_std < max_std; got {min_std}, {init_std}, {max_std}."
            )
        self._transform, inverse = _TRANSFORMS[inverse_std_transform]
        self._min_std = min_std
        self._offset = 1.0 / (highest - min_std)
        super().__init__(
            sample_spec,
            activation_fn=activation_fn,
            init_means_output_factor=init_means_output_factor,
            std_bias_initializer_value=inverse(1.0 / (init_std - min_std) - self._offset),
            mean_transform=mean_transform,
            std_transform=None,
            state_dependent_std=state_dependent_std,
            scale_distribution=scale_distribution,
            name=name,
        )

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: Any = None) -> tuple[Any, Any]:
        """The distribution [outer axes, action shape] of features [outer axes, size], and an empty state.

        Raises:
          ValueError: there is a mask, which continuous actions cannot have.
        """
        if mask is not None:
            raise ValueError("Continuous actions cannot be masked; leave the mask out of the observation.")
        squash = utils.BatchSquash(outer_rank)
        features, shape = squash.flatten(inputs), [-1, *self._sample_spec.shape]
        means = self._means_projection_layer(features, training=training)
        if self._state_dependent_std:
            inverse = self._stddev_projection_layer(features, training=training)
        else:
            inverse = self._bias(tf.zeros_like(means), training=training)
        stds = tf.reshape(self._min_std + 1.0 / (self._offset + self._transform(inverse)), shape)
        means = tf.reshape(means, shape) * stds
        if not self._scale_distribution and self._mean_transform is not None:
            means = self._mean_transform(means, self._sample_spec)
        means, stds = squash.unflatten(means), squash.unflatten(stds)
        return self.output_spec.build_distribution(loc=means, scale=stds), ()
