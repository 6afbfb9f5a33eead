"""A projection to several discrete choices that need not be of the same size."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.networks import categorical_projection_network
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from alf.utils.action_masks import FORBIDDEN


@gin.configurable
class MultiCategoricalProjectionNetwork(categorical_projection_network.CategoricalProjectionNetwork):
    """Projects to one categorical distribution for each component of an action, such as those of `MultiDiscrete([3, 2])`.

    All have as many values as the largest needs. Those that a component does not have, the last ones, have probability
    0 and no gradient, so that samples, log-probabilities and entropies are those of the components alone.
    """

    def __init__(
        self,
        sample_spec: BoundedTensorSpec,
        logits_init_output_factor: float = 0.1,
        name: str = "MultiCategoricalProjectionNetwork",
    ) -> None:
        """Creates the network.

        Args:
          sample_spec: integer spec of an action; each component counts from 0 to a maximum of its own.
          logits_init_output_factor: scale of the initial weights.
          name: of the network.

        Raises:
          ValueError: the spec is of another kind.
        """
        if not sample_spec.dtype.is_integer or np.any(sample_spec.minimum != 0) or np.any(sample_spec.maximum < 0):
            raise ValueError(f"{name} needs discrete choices that are numbered from 0 on; got {sample_spec}.")
        self._sizes = np.broadcast_to(sample_spec.maximum + 1, sample_spec.shape)
        largest = BoundedTensorSpec(sample_spec.shape, sample_spec.dtype, 0, self._sizes.max() - 1, sample_spec.name)
        super().__init__(largest, logits_init_output_factor, name)

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: Any = None) -> tuple[Any, Any]:
        """The distributions [outer axes, action shape] of features [outer axes, size], and an empty state.

        Args:
          mask: allowed actions, [outer axes, action shape, largest number of values], what a component does not have
            aside; None for all.
        """
        distribution, state = super().call(inputs, outer_rank, training, mask)
        there = np.arange(self._sizes.max()) < self._sizes[..., np.newaxis]
        logits = tf.where(there, distribution.logits_parameter(), FORBIDDEN)
        return self.output_spec.build_distribution(logits=logits), state
