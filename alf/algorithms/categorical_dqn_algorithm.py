"""Categorical (distributional) deep Q-learning, C51."""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.critic_algorithm import refuse
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.network_kinds import check_output, number_of_actions
from alf.algorithms.one_step_loss import Lookahead, check_n_step, look_ahead, per_sequence, row_weights
from alf.algorithms.transitions import Transitions
from alf.data_structures import LossInfo, Nest, TrainingInfo
from alf.utils.common import check_range


@gin.configurable(module="alf")
class CategoricalDqnAlgorithm(DqnAlgorithm):
    """Learns the distribution of the return over fixed atoms; Bellemare et al. 2017, https://arxiv.org/abs/1707.06887."""

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        categorical_q_network: Any,
        min_q_value: float = -10.0,
        max_q_value: float = 10.0,
        gamma: float = 0.99,
        n_step: int = 1,
        name: str = "CategoricalDqnAlgorithm",
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `DqnAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: integer spec of one action, shape [] or [1], from 0 on.
          categorical_q_network: a network from observations to logits [B, number of actions, number of atoms], such as
            TF-Agents' CategoricalQNetwork, or a function that makes it.
          min_q_value: the return that the first atom stands for.
          max_q_value: that of the last atom; returns beyond the two count as these.
          gamma: multiplies the environment's discount.
          n_step: steps that a target looks ahead; sequences need n_step + 1 rows. With -1 it looks to the end of the
            episode, or of the sequence, as `OneStepTDLoss` does.

        Raises:
          ValueError: the atoms are not in order, n_step is 0 or below -1, gamma is not in [0, 1], a `critic_loss` is given, or
            as `DqnAlgorithm`.
        """
        refuse(name, kwargs, {"critic_loss": "C51 has its own loss: set gamma and n_step"})
        if not min_q_value < max_q_value:
            raise ValueError(
                f"{name} needs min_q_value < max_q_value; got {min_q_value} and {max_q_value}: correct them."
            )
        check_n_step(name, n_step)
        check_range(0.0, 1.0, gamma=gamma)
        # Said here, so that a binding of DqnAlgorithm's is not taken, and is listed as without use.
        super().__init__(observation_spec, action_spec, categorical_q_network, critic_loss=None, name=name, **kwargs)
        self._min, self._max, self._gamma, self._n_step = float(min_q_value), float(max_q_value), gamma, n_step

    def _default_loss(self, debug_summaries: bool) -> None:
        return None

    def _check_network(self, network: Any) -> None:
        count = number_of_actions(self._action_spec)
        needed = f"a network that gives logits for each of the {count} actions, such as CategoricalQNetwork"
        check_output(self.name, network, needed, [[count, None]])

    def _atoms(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.linspace(self._min, self._max, logits.shape[-1])

    def values_of(self, output: tf.Tensor) -> tf.Tensor:
        """The mean returns of all actions, of logits [..., number of actions, number of atoms]."""
        # Not as a product of matrices, which mixed precision would make in bfloat16, as those of layers.
        return tf.reduce_sum(tf.nn.softmax(output) * self._atoms(output), -1)

    @property
    def n_step(self) -> int:
        """Rows that a trained one needs behind it: the steps that its target looks ahead, or 1 where these are all."""
        return max(self._n_step, 1)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The cross-entropy of the projected target and the predicted distribution, [T, B]."""
        rows, weights = Transitions(training_info, self._n_step), row_weights(training_info.step_type, self.n_step)
        logits, target_logits = self._taken_and_target(training_info, rows)
        ahead = Lookahead(*rows.now(look_ahead(training_info, self._gamma, self._n_step)))
        target = tf.stop_gradient(self._project(ahead, tf.nn.softmax(target_logits)))
        errors = rows.as_now(tf.nn.softmax_cross_entropy_with_logits(target, logits))
        mean = tf.reduce_sum(errors * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)
        loss = LossInfo(errors * weights, extra={"td_loss": mean}, priority=per_sequence(errors, weights))
        return self._with_control(loss)

    def _project(self, ahead: Lookahead, following: tf.Tensor) -> tf.Tensor:
        """The distribution of reward + discount * return on the atoms.

        Args:
          ahead: of rows [N].
          following: distributions float32 [N, atoms] at the rows that these look at.

        Returns:
          float32 [N, atoms]: each atom's probability goes, shifted and shrunk, to its two neighbours.
        """
        atoms = self._atoms(following)
        gap = (self._max - self._min) / (following.shape[-1] - 1)
        reached = ahead.reward[:, tf.newaxis] + ahead.discount[:, tf.newaxis] * atoms
        reached = tf.clip_by_value(reached, self._min, self._max)
        share = tf.maximum(1.0 - tf.abs(reached[:, tf.newaxis, :] - atoms[:, tf.newaxis]) / gap, 0.0)
        return tf.reduce_sum(share * following[:, tf.newaxis], -1)
