"""Soft actor-critic."""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.critic_algorithm import (
    CriticAlgorithm,
    build_network,
    copies,
    critic_values,
    flat,
    minimum,
    value_ascent,
    with_first,
    with_last,
    without_first,
    without_last,
)
from alf.data_structures import (
    ActionTimeStep,
    Experience,
    LossInfo,
    Nest,
    PolicyStep,
    StepType,
    TrainingInfo,
    namedtuple,
)
from alf.utils import dist_utils, math_ops
from alf.utils.dist_utils import calc_default_target_entropy, epsilon_greedy_sample, sample_action_distribution

SacInfo = namedtuple("SacInfo", ["action_distribution", "observation"], default_value=())


@gin.configurable(module="alf")
class SacAlgorithm(CriticAlgorithm):
    """Soft actor-critic with twin critics and a temperature that holds the entropy at a target.

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; with discrete actions Christodoulou 2019,
    https://arxiv.org/abs/1910.07207, where expectations over actions are exact sums.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        actor_network: Any,
        critic_network: Any,
        critic_loss: Any = None,
        target_entropy: float | None = None,
        initial_log_alpha: float = 0.0,
        target_update_tau: float = 0.05,
        target_update_period: int = 1,
        dqda_clipping: float | None = None,
        actor_optimizer: Any = None,
        critic_optimizer: Any = None,
        alpha_optimizer: Any = None,
        gradient_clipping: float | None = None,
        debug_summaries: bool = False,
        name: str = "SacAlgorithm",
        *,
        target_update_unit: str = "updates",
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: spec of one action: float, or integer with shape [] or [1].
          actor_network: a network whose output is an action distribution, or a function that makes it.
          critic_network: one whose input is (observation, action) and whose output a value [B]; for discrete actions one
            from observations to the values of all actions, [B, number of actions], such as a QNetwork. It is copied for
            the second critic and the targets.
          critic_loss: the critics' loss, `OneStepTDLoss` by default.
          target_entropy: what the temperature holds the entropy at; by default `calc_default_target_entropy`.
          initial_log_alpha: logarithm of the temperature at the start.
          target_update_tau: see `get_target_updater`.
          target_update_period: updates between two moves of the target critics.
          dqda_clipping: bounds the components of the gradient of the value with respect to the action.
          actor_optimizer: trains the actor; None leaves it to the parent.
          critic_optimizer: trains both critics.
          alpha_optimizer: trains the temperature. Without it, and with an optimiser for the others, the temperature stays.
          target_update_unit: what `target_update_period` counts, "updates" or "env_steps".

        Raises:
          ValueError: a network is recurrent, or the action spec is a nest.
        """
        actor = build_network(actor_network, "actor_network")
        critic = build_network(critic_network, "critic_network")
        critics = [critic, *copies([critic], "critic")]
        fixed = alpha_optimizer is None and (actor_optimizer is not None or critic_optimizer is not None)
        log_alpha = tf.Variable(float(initial_log_alpha), trainable=not fixed, name="log_alpha")
        super().__init__(
            observation_spec,
            action_spec,
            trained=[(actor_optimizer, [actor]), (critic_optimizer, critics), (alpha_optimizer, [log_alpha])],
            followed=critics,
            critic_loss=critic_loss,
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            target_update_unit=target_update_unit,
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        self._actor_network = actor
        self._critic_networks = critics
        self._log_alpha = log_alpha
        self._dqda_clipping = dqda_clipping
        self._discrete = tf.nest.flatten(action_spec)[0].dtype.is_integer
        if target_entropy is None:
            target_entropy = calc_default_target_entropy(action_spec)
        self._target_entropy = float(target_entropy)

    def _distribution(self, inputs: Any) -> Any:
        return self._actor_network(inputs.observation, step_type=inputs.step_type, network_state=())[0]

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """Samples an action; records the distribution."""
        distribution = self._distribution(time_step)
        return PolicyStep(sample_action_distribution(distribution), (), SacInfo(action_distribution=distribution))

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The most likely action; with probability `epsilon_greedy`, a row, a sampled one."""
        return PolicyStep(epsilon_greedy_sample(self._distribution(inputs), epsilon_greedy), (), ())

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The distribution of the recorded rows [B, ...] under the current weights, and what the critics see."""
        info = SacInfo(action_distribution=self._distribution(inputs), observation=inputs.observation)
        return PolicyStep(inputs.action, (), info)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The losses of critics, actor and temperature, [T, B]; the last row is only looked at."""
        alpha = tf.exp(tf.convert_to_tensor(self._log_alpha))
        parts = self._discrete_parts if self._discrete else self._continuous_parts
        values, target_value, actor_loss, entropy = parts(training_info, alpha)
        like = training_info.step_type
        critic_loss = self._critic_loss(
            training_info, [with_last(v, like) for v in values], with_first(target_value, like)
        )
        alpha_loss = self._log_alpha * tf.stop_gradient(entropy - self._target_entropy)
        valid = without_last(tf.cast(tf.not_equal(like, StepType.LAST), tf.float32))
        rows = tf.reshape(valid, [-1]) * (actor_loss + alpha_loss)
        extra = dict(critic_loss.extra)
        extra["actor_loss"] = math_ops.masked_mean(actor_loss, tf.reshape(valid, [-1]))
        extra["entropy"] = math_ops.masked_mean(entropy, tf.reshape(valid, [-1]))
        extra["alpha"] = alpha
        return critic_loss._replace(loss=critic_loss.loss + with_last(rows, like), extra=extra)

    def _continuous_parts(
        self, training_info: TrainingInfo, alpha: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """(values of the recorded actions, values of the following states, actor loss, entropy), all of T - 1 rows."""
        info = training_info.info
        now, following = flat(without_last(info.observation)), flat(without_first(info.observation))
        # One sample a row serves all: the actor's loss and the temperature's where the row is learned from, the target
        # where it is looked at.
        action, log_prob = dist_utils.sample_with_log_probability(info.action_distribution, 2)
        chosen, log_pi = flat(without_last(action)), flat(without_last(log_prob))
        values = critic_values(self._critic_networks, now, flat(without_last(training_info.action)))
        target = minimum(critic_values(self._target_networks, following, flat(without_first(action))))
        target -= alpha * flat(without_first(log_prob))
        q = value_ascent(self._critic_networks, now, chosen, self._dqda_clipping)
        return values, target, tf.stop_gradient(alpha) * log_pi - q, -log_pi

    def _discrete_parts(
        self, training_info: TrainingInfo, alpha: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """As `_continuous_parts`, with exact expectations over actions."""
        info = training_info.info
        now, following = flat(without_last(info.observation)), flat(without_first(info.observation))
        log_pi = dist_utils.log_probabilities(info.action_distribution)
        log_pi = tf.reshape(log_pi, [*training_info.step_type.shape[:1], -1, log_pi.shape[-1]])
        log_now, log_following = flat(without_last(log_pi)), flat(without_first(log_pi))
        all_values = [critic(now, step_type=(), network_state=())[0] for critic in self._critic_networks]
        taken = tf.reshape(without_last(training_info.action), [-1])
        values = [tf.gather(v, taken, batch_dims=1) for v in all_values]
        target_values = minimum(
            [critic(following, step_type=(), network_state=())[0] for critic in self._target_networks]
        )
        target = tf.reduce_sum(tf.exp(log_following) * (target_values - alpha * log_following), -1)
        best = tf.stop_gradient(minimum(all_values))
        pi = tf.exp(log_now)
        actor_loss = tf.reduce_sum(pi * (tf.stop_gradient(alpha) * log_now - best), -1)
        return values, target, actor_loss, -tf.reduce_sum(pi * log_now, -1)
