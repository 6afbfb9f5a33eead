"""The clipped surrogate loss of PPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.actor_critic_loss import ActorCriticLoss, masked_means, valid_mask
from alf.data_structures import LossInfo, TrainingInfo, namedtuple
from alf.utils import dist_utils, math_ops
from alf.utils.common import check_range
from alf.utils.losses import element_wise_squared_loss

PPOInfo = namedtuple("PPOInfo", ["action_distribution", "returns", "advantages"], default_value=())
PPOInfo.__doc__ = """What PPO records about the rollout, each with the leading axes of the experience.

`action_distribution`: of the policy that acted; `returns` float32: value targets; `advantages` float32: returns minus
the values of the rollout, before any normalisation.
"""


@gin.configurable(module="alf")
class PPOLoss(ActorCriticLoss):
    """Clipped surrogate objective of Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7.

    The ratio is clipped to [1 - importance_ratio_clipping, 1 + importance_ratio_clipping]; values are not clipped.
    Returns and advantages were computed once from the rollout and come in `PPOInfo`.
    """

    trains_last_row = True

    def __init__(
        self,
        action_spec: Any,
        gamma: float = 0.99,
        td_error_loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = element_wise_squared_loss,
        td_lambda: float = 0.95,
        normalize_advantages: bool = True,
        advantage_clip: float | None = None,
        entropy_regularization: float | None = None,
        td_loss_weight: float = 1.0,
        importance_ratio_clipping: float = 0.2,
        log_prob_clipping: float = 0.0,
        check_numerics: bool = False,
        debug_summaries: bool = False,
        name: str = "PPOLoss",
    ) -> None:
        """Creates the loss.

        Args:
          action_spec: nest of action specs.
          gamma: multiplies the environment's discount where `PPOAlgorithm` computes the advantages.
          td_error_loss_fn: (returns, values) -> element-wise loss.
          td_lambda: lambda of the GAE that `PPOAlgorithm` computes.
          normalize_advantages: mean 0 and standard deviation 1 over the valid entries of each minibatch.
          advantage_clip: above 0, advantages are clipped to [-advantage_clip, advantage_clip] after normalising.
          entropy_regularization: weight of the entropy bonus.
          td_loss_weight: weight of the value loss.
          importance_ratio_clipping: epsilon of the clipping.
          log_prob_clipping: above 0, log-probabilities are clipped to [-log_prob_clipping, log_prob_clipping].
          check_numerics: fail on NaN or infinity in the ratio or in the loss.
          debug_summaries: `extra` also holds ratios and advantages, [T, B].
          name: name of the module.

        Raises:
          ValueError: `importance_ratio_clipping` is not above 0, `log_prob_clipping` is below 0, or as `ActorCriticLoss`.
        """
        super().__init__(
            action_spec=action_spec,
            gamma=gamma,
            td_error_loss_fn=td_error_loss_fn,
            use_gae=True,
            td_lambda=td_lambda,
            use_td_lambda_return=True,
            normalize_advantages=normalize_advantages,
            advantage_clip=advantage_clip,
            entropy_regularization=entropy_regularization,
            td_loss_weight=td_loss_weight,
            debug_summaries=debug_summaries,
            use_vtrace=False,
            name=name,
        )
        if not importance_ratio_clipping > 0.0:
            raise ValueError(
                f"PPOLoss.importance_ratio_clipping must be above 0, got {importance_ratio_clipping}: 0.2 is usual."
            )
        check_range(0.0, log_prob_clipping=log_prob_clipping)
        self._importance_ratio_clipping = importance_ratio_clipping
        self._log_prob_clipping = log_prob_clipping
        self._check_numerics = check_numerics

    def __call__(self, training_info: TrainingInfo, value: tf.Tensor) -> LossInfo:
        """Computes the loss of a minibatch.

        Args:
          training_info: [T, B, ...], T >= 1. `info.action_distribution` is the policy that learns, `rollout_info` a
            PPOInfo. Every row but those that are LAST is valid, the last one too.
          value: float32 [T, B], of the network that learns.

        Returns:
          LossInfo with `loss` float32 [T, B], 0 at LAST, and `extra` with scalars over the valid rows:
          policy_gradient_loss, td_loss, entropy, approx_kl (mean of (r - 1) - log r), clip_fraction and
          explained_variance (of the values of the rollout).
        """
        info = training_info.rollout_info
        mask = valid_mask(training_info.step_type, last_row=True)
        outer_rank = training_info.step_type.shape.rank
        log_prob, entropy, entropy_for_gradient = dist_utils.compute_log_probability_and_entropy(
            training_info.info.action_distribution, training_info.action, outer_rank
        )
        collect_log_prob = dist_utils.compute_log_probability(
            info.action_distribution, training_info.action, outer_rank
        )
        log_ratio = dist_utils.log_importance_ratio(log_prob, collect_log_prob, self._log_prob_clipping)
        ratio = self._checked(tf.exp(log_ratio), "importance ratio")
        advantages = self._scaled(tf.stop_gradient(info.advantages), mask)
        # min(r A, clip(r, 1 - e, 1 + e) A) with the clipping resolved: only the bound on A's side can bind, and it is a
        # constant, which halves the operations of the gradient.
        bound = advantages + self._importance_ratio_clipping * tf.abs(advantages)
        pg_loss = -tf.minimum(ratio * advantages, bound)
        td_loss = self._td_error_loss_fn(tf.stop_gradient(info.returns), value)
        excess = ratio - 1.0
        extra = masked_means(
            mask,
            {
                "policy_gradient_loss": pg_loss,
                "td_loss": td_loss,
                "entropy": entropy,
                "approx_kl": excess - log_ratio,
                "clip_fraction": tf.cast(tf.abs(excess) > self._importance_ratio_clipping, tf.float32),
            },
        )
        extra["explained_variance"] = math_ops.explained_variance(info.returns - info.advantages, info.returns, mask)
        if self._debug_summaries:
            extra.update(importance_ratio=ratio, advantages=advantages)
        loss = self._combine(mask, pg_loss, td_loss, entropy_for_gradient)
        return LossInfo(loss=self._checked(loss, "PPO loss"), extra=extra)

    def _checked(self, tensor: tf.Tensor, what: str) -> tf.Tensor:
        return tf.debugging.check_numerics(tensor, f"{self.name}: {what}") if self._check_numerics else tensor
