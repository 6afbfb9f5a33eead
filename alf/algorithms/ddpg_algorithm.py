"""Deep deterministic policy gradient."""

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
from alf.algorithms.exploration import ActionExploration, OUNoise
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
from alf.utils import math_ops
from alf.utils.common import is_stateless

DdpgState = namedtuple("DdpgState", ["noise"], default_value=())
DdpgInfo = namedtuple("DdpgInfo", ["action_distribution", "observation"], default_value=())


@gin.configurable(module="alf")
class DdpgAlgorithm(CriticAlgorithm):
    """A deterministic actor that climbs the value of a critic; Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971.

    Exploration is noise on the action, every environment row with its own.
    """

    # How many critics learn; the smallest of their targets counts.
    num_critics = 1

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        actor_network: Any,
        critic_network: Any,
        ou_stddev: float = 0.2,
        ou_damping: float = 0.15,
        critic_loss: Any = None,
        target_update_tau: float = 0.05,
        target_update_period: int = 1,
        dqda_clipping: float | None = None,
        actor_optimizer: Any = None,
        critic_optimizer: Any = None,
        gradient_clipping: float | None = None,
        debug_summaries: bool = False,
        name: str = "DdpgAlgorithm",
        *,
        exploration: ActionExploration | None = None,
        target_update_unit: str = "updates",
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: bounded float spec of one action.
          actor_network: a network whose output is an action within its bounds, or a function that makes it.
          critic_network: one whose input is (observation, action) and whose output a value [B]; copied for the targets.
          ou_stddev: of the Ornstein-Uhlenbeck noise of acting, in the action's units.
          ou_damping: the share of the noise that is gone after a step.
          critic_loss: the critic's loss, `OneStepTDLoss` by default.
          target_update_tau: see `get_target_updater`.
          target_update_period: updates between two moves of the target networks.
          dqda_clipping: bounds the components of the gradient of the value with respect to the action.
          actor_optimizer: trains the actor; None leaves it to the parent.
          critic_optimizer: trains the critic.
          exploration: takes the place of the Ornstein-Uhlenbeck noise.
          target_update_unit: what `target_update_period` counts, "updates" or "env_steps".

        Raises:
          ValueError: a network is recurrent, or the action spec is a nest or not continuous.
        """
        if any(not spec.dtype.is_floating for spec in tf.nest.flatten(action_spec)):
            raise ValueError(f"{type(self).__name__} needs continuous actions, got {action_spec}: use SAC, DQN or PPO.")
        actor = build_network(actor_network, "actor_network")
        critic = build_network(critic_network, "critic_network")
        critics = [critic, *copies([critic] * (self.num_critics - 1), "critic")]
        exploration = exploration or OUNoise(ou_stddev, ou_damping)
        noise_spec = exploration.state_spec(action_spec)
        super().__init__(
            observation_spec,
            action_spec,
            trained=[(actor_optimizer, [actor]), (critic_optimizer, critics)],
            followed=[actor, *critics],
            critic_loss=critic_loss,
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            target_update_unit=target_update_unit,
            train_state_spec=() if is_stateless(noise_spec) else DdpgState(noise=noise_spec),
            predict_state_spec=(),
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        self._actor_network = actor
        self._critic_networks = critics
        self._dqda_clipping = dqda_clipping
        self._exploration = exploration

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """Nothing: `predict` has no noise."""
        return ()

    def _action(self, inputs: Any) -> tf.Tensor:
        return self._actor_network(inputs.observation, step_type=inputs.step_type, network_state=())[0]

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The actor's action with noise."""
        noise = () if is_stateless(self._train_state_spec) else state.noise
        action, noise = self._exploration(self._action(time_step), noise, self._action_spec)
        return PolicyStep(action, () if is_stateless(self._train_state_spec) else DdpgState(noise=noise), DdpgInfo())

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The actor's action; there is no distribution that `epsilon_greedy` could sample from."""
        return PolicyStep(self._action(inputs), (), ())

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The actor's action at the recorded rows [B, ...] under the current weights, and what the critics see."""
        return PolicyStep(inputs.action, (), DdpgInfo(self._action(inputs), inputs.observation))

    @property
    def _target_actor(self) -> Any:
        return self._target_networks[0]

    @property
    def _target_critics(self) -> list[Any]:
        return self._target_networks[1:]

    def next_action(self, training_info: TrainingInfo, following: Nest) -> tf.Tensor:
        """What a target supposes to be done next: the target actor's action.

        Args:
          training_info: [T, B, ...].
          following: observations of all rows but the first, [(T - 1) * B, ...].

        Returns:
          float32 [(T - 1) * B, action shape].
        """
        return self._target_actor(following, step_type=(), network_state=())[0]

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The losses of critics and actor, [T, B]; the last row is only looked at."""
        info, like = training_info.info, training_info.step_type
        now, following = flat(without_last(info.observation)), flat(without_first(info.observation))
        values = critic_values(self._critic_networks, now, flat(without_last(training_info.action)))
        next_action = self.next_action(training_info, following)
        target = minimum(critic_values(self._target_critics, following, next_action))
        critic_loss = self._critic_loss(training_info, [with_last(v, like) for v in values], with_first(target, like))
        chosen = flat(without_last(info.action_distribution))
        actor_loss = -value_ascent(self._critic_networks[:1], now, chosen, self._dqda_clipping)
        valid = tf.reshape(without_last(tf.cast(tf.not_equal(like, StepType.LAST), tf.float32)), [-1])
        extra = dict(critic_loss.extra)
        extra["actor_loss"] = math_ops.masked_mean(actor_loss, valid)
        extra[self._exploration.control] = tf.convert_to_tensor(self._exploration.strength())
        return critic_loss._replace(loss=critic_loss.loss + with_last(actor_loss * valid, like), extra=extra)

    def count_env_steps(self, steps: int) -> None:
        """See `RLAlgorithm.count_env_steps`."""
        super().count_env_steps(steps)
        self._exploration.advance("env_steps", steps)

    def after_train(self, training_info: TrainingInfo) -> None:
        """Moves the target networks and the exploration's clock."""
        super().after_train(training_info)
        self._exploration.advance("updates", 1)
