"""The loss of advantage actor-critic methods, with returns and advantages computed from the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from alf.data_structures import LossInfo, StepType, TrainingInfo
from alf.utils import dist_utils, math_ops, value_ops
from alf.utils.common import check_range
from alf.utils.losses import element_wise_squared_loss

Nest = Any
_TDErrorLossFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def valid_mask(step_type: tf.Tensor, last_row: bool = False) -> tf.Tensor:
    """Which rows carry a training signal.

    Args:
      step_type: int32 [T, B].
      last_row: whether the last row can be valid; by default it only bootstraps.

    Returns:
      float32 [T, B], 0 where the step is LAST (its action is ignored) and in the last row unless `last_row`.
    """
    mask = tf.cast(tf.not_equal(step_type, StepType.LAST), tf.float32)
    return mask if last_row else tf.concat([mask[:-1], tf.zeros_like(mask[-1:])], 0)


def masked_means(mask: tf.Tensor, values: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The mean of each [T, B] tensor of `values` over the rows where `mask` [T, B] holds; 0 if it holds nowhere."""
    # One reduction for all of them: minibatches are small, and an operation costs more than its arithmetic.
    sums = tf.reduce_sum(tf.stack(list(values.values())) * mask, list(range(1, mask.shape.rank + 1)))
    means = tf.unstack(tf.math.divide_no_nan(sums, tf.reduce_sum(mask)))
    return dict(zip(values, means, strict=True))


@gin.configurable(module="alf")
class ActorCriticLoss(tf.Module):
    """Policy-gradient loss, value loss and entropy bonus of a segment.

    loss = -log pi(a) * advantage + td_loss_weight * td_error_loss_fn(return, value) - entropy_regularization * entropy

    Attributes:
      trains_last_row: whether the last row of a sequence is trained too; else it only bootstraps.
    """

    trains_last_row = False

    def __init__(
        self,
        action_spec: Nest,
        gamma: float = 0.99,
        td_error_loss_fn: _TDErrorLossFn = element_wise_squared_loss,
        use_gae: bool = False,
        td_lambda: float = 0.95,
        use_td_lambda_return: bool = True,
        normalize_advantages: bool = False,
        advantage_clip: float | None = None,
        entropy_regularization: float | None = None,
        td_loss_weight: float = 1.0,
        debug_summaries: bool = False,
        use_vtrace: bool = False,
        name: str = "ActorCriticLoss",
    ) -> None:
        """Creates the loss.

        Args:
          action_spec: nest of action specs.
          gamma: multiplies the environment's discount.
          td_error_loss_fn: (returns, values) -> element-wise loss.
          use_gae: advantages by GAE(td_lambda) instead of discounted return minus value.
          td_lambda: lambda of GAE; with `use_vtrace` it multiplies the trace coefficient.
          use_td_lambda_return: with `use_gae`, the value target is the TD(lambda) return, not the discounted return.
          normalize_advantages: mean 0 and standard deviation 1 over the valid entries of the batch.
          advantage_clip: above 0, advantages are clipped to [-advantage_clip, advantage_clip] after normalising.
          entropy_regularization: weight of the entropy bonus.
          td_loss_weight: weight of the value loss.
          debug_summaries: `extra` also holds the returns and the advantages used, [T, B].
          use_vtrace: V-trace returns and advantages; `use_gae` is then without effect.
          name: name of the module.

        Raises:
          ValueError: `gamma` or `td_lambda` is not in [0, 1], or `advantage_clip` is below 0.
        """
        super().__init__(name=name)
        check_range(0.0, 1.0, gamma=gamma, td_lambda=td_lambda)
        check_range(0.0, advantage_clip=advantage_clip)
        self._action_spec = action_spec
        self._gamma = gamma
        self._td_error_loss_fn = td_error_loss_fn
        self._use_gae = use_gae
        self._td_lambda = td_lambda
        self._use_td_lambda_return = use_td_lambda_return
        self._normalize_advantages = normalize_advantages
        self._advantage_clip = advantage_clip
        self._entropy_regularization = entropy_regularization
        self._td_loss_weight = td_loss_weight
        self._debug_summaries = debug_summaries
        self._use_vtrace = use_vtrace

    @property
    def gamma(self) -> float:
        """What the environment's discount is multiplied with."""
        return self._gamma

    @property
    def td_lambda(self) -> float:
        """Lambda of GAE, TD(lambda) and V-trace."""
        return self._td_lambda

    def __call__(self, training_info: TrainingInfo, value: tf.Tensor) -> LossInfo:
        """Computes the loss of a segment.

        Args:
          training_info: [T, B, ...], T >= 2. `info.action_distribution` is the policy that learns; with V-trace
            `rollout_info.action_distribution` is the one that acted (without it the ratio is 1).
          value: float32 [T, B], of the network that learns.

        Returns:
          LossInfo with `loss` float32 [T, B], 0 at LAST and in the last row, which only bootstraps, and `extra` with
          scalars over the valid rows: policy_gradient_loss, td_loss, entropy, explained_variance and, with V-trace,
          importance_ratio.

        Raises:
          ValueError: T < 2.
        """
        mask = valid_mask(training_info.step_type)
        log_prob, entropy, entropy_for_gradient = dist_utils.compute_log_probability_and_entropy(
            training_info.info.action_distribution, training_info.action, training_info.step_type.shape.rank
        )
        # The action that stands in for that of the last row is of another observation, which may forbid it: -inf times 0
        # would be NaN.
        log_prob = tf.where(mask > 0.0, log_prob, 0.0)
        ratio = self._importance_ratio(training_info, log_prob, mask) if self._use_vtrace else None
        returns, advantages = self._targets(training_info, value, ratio)
        advantages = self._scaled(advantages, mask)
        pg_loss = -log_prob * advantages
        td_loss = self._td_error_loss_fn(returns, value)
        means = {"policy_gradient_loss": pg_loss, "td_loss": td_loss, "entropy": entropy}
        if ratio is not None:
            means["importance_ratio"] = ratio
        extra = masked_means(mask, means)
        extra["explained_variance"] = math_ops.explained_variance(value, returns, mask)
        if self._debug_summaries:
            extra.update(returns=returns, advantages=advantages)
        return LossInfo(loss=self._combine(mask, pg_loss, td_loss, entropy_for_gradient), extra=extra)

    def _combine(
        self, mask: tf.Tensor, pg_loss: tf.Tensor, td_loss: tf.Tensor, entropy_for_gradient: tf.Tensor
    ) -> tf.Tensor:
        """The weighted sum of the terms, [T, B], 0 at invalid rows."""
        loss = pg_loss + (td_loss if self._td_loss_weight == 1.0 else self._td_loss_weight * td_loss)
        if self._entropy_regularization:
            loss -= self._entropy_regularization * entropy_for_gradient
        return loss * mask

    def _importance_ratio(self, training_info: TrainingInfo, log_prob: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """pi(a) / mu(a), [T, B], 1 at invalid rows."""
        if training_info.rollout_info == () or training_info.rollout_info.action_distribution == ():
            return tf.ones_like(log_prob)
        collect_log_prob = dist_utils.compute_log_probability(
            training_info.rollout_info.action_distribution, training_info.action, training_info.step_type.shape.rank
        )
        log_ratio = dist_utils.log_importance_ratio(tf.stop_gradient(log_prob), collect_log_prob)
        # The last row has no action of its own, and what stands there need not have a finite log-probability.
        return tf.exp(tf.where(mask > 0.0, log_ratio, 0.0))

    def _targets(
        self, training_info: TrainingInfo, value: tf.Tensor, ratio: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(returns, advantages), [T, B]; in the last row the own value and 0."""
        value = tf.stop_gradient(value)
        reward, step_type = training_info.reward, training_info.step_type
        discount = training_info.discount * self._gamma
        if ratio is not None:
            return value_ops.vtrace_returns_and_advantages_impl(
                ratio, reward, value, step_type, discount, self._td_lambda, rho_bar=1.0, c_bar=1.0
            )
        last_value, last_advantage = value[-1:], tf.zeros_like(value[-1:])
        advantages = None
        if self._use_gae:
            advantages = value_ops.generalized_advantage_estimation(reward, value, step_type, discount, self._td_lambda)
            advantages = tf.concat([advantages, last_advantage], 0)
            if self._use_td_lambda_return:
                return advantages + value, advantages
        returns = value_ops.discounted_return(reward, value, step_type, discount)
        returns = tf.concat([returns, last_value], 0)
        return returns, returns - value if advantages is None else advantages

    def _scaled(self, advantages: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        if self._normalize_advantages:
            advantages = math_ops.normalize_advantages(advantages, mask)
        if self._advantage_clip:
            advantages = tf.clip_by_value(advantages, -self._advantage_clip, self._advantage_clip)
        return advantages
