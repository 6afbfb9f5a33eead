"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347)."""

from __future__ import annotations

import gin
import tensorflow as tf

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm, last_row_looked_at
from alf.algorithms.ppo_loss import PPOInfo, PPOLoss
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING
from alf.data_structures import Experience, Nest
from alf.utils import value_ops
from alf.utils.common import is_stateless, reset_state_at_first


@gin.configurable(module="alf")
class PPOAlgorithm(ActorCriticAlgorithm):
    """PPO: advantages once a batch from the recorded values, then several passes of clipped updates.

    To be used with `loss_class=PPOLoss`; without it nothing would be clipped, so that is a ValueError.
    """

    @property
    def least_sample_length(self) -> int:
        """2: a row's advantage is known from the row that follows it."""
        return 2

    @property
    def learns_from_recorded_values(self) -> bool:
        """Advantages are of them."""
        return True

    def _check_loss(self) -> None:
        if not isinstance(self._loss, PPOLoss):
            raise ValueError(
                f"{type(self).__name__} needs a PPOLoss, got {type(self._loss).__name__}: bind "
                "ActorCriticAlgorithm.loss_class = @PPOLoss."
            )

    def preprocess_experience(self, experience: Experience) -> Experience:
        """Computes advantages and returns [B', T] by GAE; `rollout_info` becomes PPOInfo.

        The values are those of the behaviour policy. That of the step after the last is computed here, by the learner's
        weights, since nobody has acted there yet. Without a bootstrap the last step is only looked at.
        """
        loss = self._loss
        rollout_info = experience.rollout_info
        rewards, values, discounts = experience.reward, rollout_info.value, experience.discount
        step_types = experience.step_type
        bootstrapped = experience.bootstrap != ()
        if bootstrapped:
            last = experience.bootstrap.time_step
            rewards = _append(rewards, last.reward)
            values = _append(values, tf.stop_gradient(self._bootstrap_value(experience)))
            discounts = _append(discounts, last.discount)
            step_types = _append(step_types, last.step_type)
        advantages = value_ops.generalized_advantage_estimation(
            rewards=rewards,
            values=values,
            step_types=step_types,
            discounts=discounts * loss.gamma,
            td_lambda=loss.td_lambda,
            time_major=False,
        )
        if not bootstrapped:
            experience = last_row_looked_at(experience)
            advantages = tf.concat([advantages, tf.zeros_like(advantages[:, :1])], 1)
        info = PPOInfo(
            action_distribution=rollout_info.action_distribution,
            returns=advantages + rollout_info.value,
            advantages=advantages,
        )
        return experience._replace(rollout_info=info, bootstrap=())

    def _bootstrap_value(self, experience: Experience) -> tf.Tensor:
        time_step, state = experience.bootstrap.time_step, experience.bootstrap.state
        if is_stateless(state) and not is_stateless(self._train_state_spec):
            raise ValueError(
                f"{self.name} has recurrent networks, and samples of a memory without recorded states do not tell what they "
                "remember at the end of a sequence: set TrainerConfig.use_rollout_state = True."
            )
        state = reset_state_at_first(state, time_step.step_type)
        return self.rollout(time_step, state, OFF_POLICY_TRAINING).info.value

    def loss_info_spec(self, rollout_info_spec: Nest) -> Nest:
        """PPOInfo, whose returns and advantages are plain tensors."""
        value = rollout_info_spec.value
        return PPOInfo(rollout_info_spec.action_distribution, returns=value, advantages=value)


def _append(x: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    return tf.concat([x, last[:, tf.newaxis]], 1)
