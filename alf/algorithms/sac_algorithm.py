"""Soft actor-critic."""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from alf.algorithms import contracts
from alf.algorithms.critic_algorithm import (
    CriticAlgorithm,
    NetworkStates,
    copies,
    critic_values,
    minimum,
    state_spec_of,
    value_ascent,
)
from alf.algorithms.network_kinds import build_network, check_critic, check_draws
from alf.algorithms.one_step_loss import row_weights
from alf.algorithms.predictions import outputs_of, several
from alf.algorithms.transitions import Transitions
from alf.data_structures import (
    ActionTimeStep,
    Experience,
    LossInfo,
    Nest,
    PolicyStep,
    TrainingInfo,
    namedtuple,
)
from alf.networks.calling import call_network, learning
from alf.utils import dist_utils, math_ops
from alf.utils.action_masks import ActionMasks, Splitter
from alf.utils.common import check_range, is_stateless
from alf.utils.dist_utils import calc_default_target_entropy, epsilon_greedy_sample, sample_action_distribution

SacInfo = namedtuple("SacInfo", ["action_distribution", "observation", "state"], default_value=())


@gin.configurable(module="alf")
class SacAlgorithm(CriticAlgorithm):
    """Soft actor-critic with twin critics and a temperature that holds the entropy at a target.

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; with discrete actions Christodoulou 2019,
    https://arxiv.org/abs/1910.07207, where expectations over actions are exact sums. Of a nest of continuous actions the
    log-probabilities and entropies are summed.
    """

    takes_nests = True

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
        observation_and_action_constraint_splitter: Splitter | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: spec of one action: float, or a nest of such, or integer with shape [] or [1].
          actor_network: a network whose output is an action distribution, or a function that makes it; it and the critic may
            be recurrent.
          critic_network: one whose input is (observation, action) and whose output a value [B]; for discrete actions one
            from observations to the values of all actions, [B, number of actions], such as a QNetwork. It is copied for
            the second critic and the targets.
          critic_loss: the critics' loss, `OneStepTDLoss` by default.
          target_entropy: what the temperature holds the entropy at; by default `calc_default_target_entropy`.
          initial_log_alpha: logarithm of the temperature at the start.
          target_update_tau: see `get_target_updater`.
          target_update_period: updates between two moves of the target critics.
          dqda_clipping: bounds the components of the gradient of the value with respect to the action.
          actor_optimizer: trains the actor; what has no optimiser of its own is left to the first of the others, or, where there
            is none, to the parent.
          critic_optimizer: trains both critics.
          alpha_optimizer: trains the temperature. Without it, and with an optimiser for the others, the temperature stays.
          target_update_unit: what `target_update_period` counts, "updates" or "env_steps".
          observation_and_action_constraint_splitter: takes masks of discrete actions out of observations, such as
            `split_mask`; the networks see the rest.

        Raises:
          ValueError: the action spec is a nest that is not all float, the actor gives no distributions, the critic network judges
            actions of another kind, or `dqda_clipping` is given for discrete ones.
        """
        actor, critic = build_network(actor_network), build_network(critic_network)
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
            train_state_spec=state_spec_of(actor, critics),
            predict_state_spec=state_spec_of(actor),
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        self._action_masks = ActionMasks(observation_and_action_constraint_splitter)
        self._actor_network = actor
        self._critic_networks = critics
        self._log_alpha = log_alpha
        check_range(0.0, dqda_clipping=dqda_clipping)
        self._dqda_clipping = dqda_clipping
        self._discrete = tf.nest.flatten(action_spec)[0].dtype.is_integer
        if self._discrete and dqda_clipping:
            raise ValueError(
                f"{name}.dqda_clipping={dqda_clipping} bounds the slope of values over a continuous action, and {action_spec} is "
                "discrete: leave it out, or set gradient_clipping."
            )
        check_draws(name, actor)
        check_critic(name, critic, action_spec)
        if target_entropy is None:
            target_entropy = sum(calc_default_target_entropy(spec) for spec in tf.nest.flatten(action_spec))
        self._target_entropy = float(target_entropy)

    def _distribution(self, inputs: Any, state: Nest) -> tuple[Any, Nest]:
        seen = self._action_masks.observation(inputs.observation)
        distribution, state = call_network(self._actor_network, seen, step_type=inputs.step_type, network_state=state)
        return self._action_masks.distribution(distribution, inputs.observation), state

    def critic_inputs(self, observation: Nest, action: tf.Tensor) -> Nest:
        """Critics of discrete actions judge all of them."""
        seen = self._action_masks.observation(observation)
        return seen if self._discrete else (seen, action)

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """Samples an action; records the distribution."""
        states = self.states_of(state)
        distribution, actor_state = self._distribution(time_step, states.actor)
        action = sample_action_distribution(distribution)
        after = self.state_after_acting(time_step, action, states, actor_state)
        return PolicyStep(action, after, SacInfo(action_distribution=distribution))

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The most likely action; with probability `epsilon_greedy`, a row, a sampled one."""
        distribution, actor_state = self._distribution(inputs, self.states_of(state).actor)
        after = () if is_stateless(self._predict_state_spec) else NetworkStates(actor=actor_state)
        return PolicyStep(epsilon_greedy_sample(distribution, epsilon_greedy), after, ())

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The probabilities of discrete actions, and the values by each critic, of all actions or of the most likely one."""
        states = self.states_of(state)
        distribution, _ = self._distribution(time_step, states.actor)
        likely = dist_utils.mode_action_distribution(distribution)
        inputs = self.critic_inputs(time_step.observation, likely)
        values = critic_values(self._critic_networks, inputs, time_step.step_type, states.critics)
        return outputs_of(SacInfo(action_distribution=distribution)) | several("q_values", values)

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The distribution of the recorded rows [B, ...] under the current weights, and what the critics see."""
        states = self.states_of(state)
        distribution, actor_state = self._distribution(inputs, states.actor)
        info = SacInfo(action_distribution=distribution, observation=inputs.observation, state=states)
        return PolicyStep(inputs.action, self.next_states(inputs, inputs.action, states, actor_state), info)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The losses of critics, actor and temperature, [T, B]; the last rows are only looked at."""
        alpha = tf.exp(tf.convert_to_tensor(self._log_alpha))
        rows, weights = Transitions(training_info, self.n_step), row_weights(training_info.step_type, self.n_step)
        parts = self._discrete_parts if self._discrete else self._continuous_parts
        values, target, actor_loss, entropies = parts(training_info, rows, alpha)
        # The entropy of each row that a target looks at, the last of them and those on the way, is a part of its return.
        bonus = self._critic_loss.gamma * training_info.discount * tf.stop_gradient(alpha * entropies)
        soft = training_info._replace(reward=training_info.reward + bonus)
        critic_loss = self._critic_loss(soft, [rows.as_now(v) for v in values], rows.as_following(target))
        entropy = rows.now(entropies)
        alpha_loss = self._log_alpha * tf.stop_gradient(entropy - self._target_entropy)
        own = {
            **self.target_mark(),
            "actor_loss": math_ops.masked_mean(actor_loss, rows.now(weights)),
            "entropy": math_ops.masked_mean(entropy, rows.now(weights)),
            "alpha": alpha,
        }
        extra = contracts.merged(self.name, critic_loss.extra, own)
        return critic_loss._replace(loss=critic_loss.loss + rows.as_now(actor_loss + alpha_loss) * weights, extra=extra)

    def _continuous_parts(
        self, training_info: TrainingInfo, rows: Transitions, alpha: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """Of K * B rows: values of the recorded actions, values of what is looked at, actor loss; of [T, B], entropies."""
        info = training_info.info
        now, step_type, remembered = rows.now((info.observation, training_info.step_type, info.state.critics))
        # One sample a row serves all: the actor's loss and the temperature's where the row is learned from, the target
        # where it is looked at.
        sample = dist_utils.sample_with_log_probability(info.action_distribution, 2)
        chosen, log_pi = rows.now(sample)
        supposed, _ = rows.following(sample)
        values = critic_values(self._critic_networks, (now, rows.now(training_info.action)), step_type, remembered)
        inputs = (rows.following(info.observation), supposed)
        target = self._target_value(training_info, rows, inputs)
        q = value_ascent(self._critic_networks, now, chosen, self._dqda_clipping, step_type, remembered)
        return values, target, tf.stop_gradient(alpha) * log_pi - q, -sample[1]

    def _target_value(self, training_info: TrainingInfo, rows: Transitions, inputs: Nest) -> tf.Tensor:
        """The smaller of the target critics' values of `inputs` [K * B, ...] at the rows looked at."""
        step_type, states = rows.following((training_info.step_type, training_info.info.state.target_critics))
        with learning(False):
            return minimum(critic_values(self._target_networks, inputs, step_type, states))

    def _discrete_parts(
        self, training_info: TrainingInfo, rows: Transitions, alpha: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """As `_continuous_parts`, with exact expectations over actions."""
        info = training_info.info
        observation = self._action_masks.observation(info.observation)
        log_pi = dist_utils.log_probabilities(info.action_distribution)
        log_pi = tf.reshape(log_pi, [*training_info.step_type.shape[:1], -1, log_pi.shape[-1]])
        log_now, pi_following = rows.now(log_pi), tf.exp(rows.following(log_pi))
        now, step_type, remembered = rows.now((observation, training_info.step_type, info.state.critics))
        all_values = critic_values(self._critic_networks, now, step_type, remembered)
        taken = tf.cast(tf.reshape(rows.now(training_info.action), [-1]), tf.int32)
        values = [tf.gather(v, taken, batch_dims=1) for v in all_values]
        target_values = self._target_value(training_info, rows, rows.following(observation))
        target = tf.reduce_sum(pi_following * target_values, -1)
        best = tf.stop_gradient(minimum(all_values))
        pi = tf.exp(log_now)
        actor_loss = tf.reduce_sum(pi * (tf.stop_gradient(alpha) * log_now - best), -1)
        return values, target, actor_loss, -tf.reduce_sum(tf.exp(log_pi) * log_pi, -1)
