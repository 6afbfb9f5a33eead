"""Deep deterministic policy gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
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
from alf.algorithms.exploration import ActionExploration, Exploration, OUNoise, exploration_for, half_range
from alf.algorithms.network_kinds import build_network, check_critic, check_output
from alf.algorithms.one_step_loss import row_weights
from alf.algorithms.parameter_noise import ParameterNoise, action_distance, attach
from alf.algorithms.predictions import several
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
from alf.utils import math_ops
from alf.utils.common import check_range, is_stateless

DdpgInfo = namedtuple("DdpgInfo", ["action_distribution", "observation", "state"], default_value=())


@gin.configurable(module="alf")
class DdpgAlgorithm(CriticAlgorithm):
    """A deterministic actor that climbs the value of a critic; Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971.

    Exploration is noise on the action, every environment row with its own.
    """

    # How many critics learn; the smallest of their targets counts.
    num_critics = 1
    _exploration: ActionExploration

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
        exploration: Exploration | Mapping[str, Exploration] | None = None,
        target_update_unit: str = "updates",
        parameter_noise: ParameterNoise | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: bounded float spec of one action.
          actor_network: a network whose output is an action within its bounds, or a function that makes it; it and the
            critic may be recurrent.
          critic_network: one whose input is (observation, action) and whose output a value [B]; copied for the targets.
          ou_stddev: of the Ornstein-Uhlenbeck noise of acting, in the action's units.
          ou_damping: the share of the noise that is gone after a step.
          critic_loss: the critic's loss, `OneStepTDLoss` by default.
          target_update_tau: see `get_target_updater`.
          target_update_period: updates between two moves of the target networks.
          dqda_clipping: bounds the components of the gradient of the value with respect to the action.
          actor_optimizer: trains the actor; None leaves it to `critic_optimizer`, or without one to the parent.
          critic_optimizer: trains the critic; None likewise.
          exploration: takes the place of the Ornstein-Uhlenbeck noise; one, or a mapping from the kind of action to one.
          target_update_unit: what `target_update_period` counts, "updates" or "env_steps".
          parameter_noise: shakes the weights of the actor that collects; the exploration adds its noise to what it does.

        Raises:
          ValueError: the action spec is a nest or not continuous, or a network is of another kind.
        """
        if any(not spec.dtype.is_floating for spec in tf.nest.flatten(action_spec)):
            raise ValueError(f"{type(self).__name__} needs continuous actions, got {action_spec}: use SAC, DQN or PPO.")
        self.check_nesting(action_spec)
        actor, critic = build_network(actor_network), build_network(critic_network)
        critics = [critic, *copies([critic] * (self.num_critics - 1), "critic")]
        noise = OUNoise(ou_stddev, ou_damping) if exploration is None else exploration
        chosen = exploration_for(action_spec, noise, ActionExploration, name)
        super().__init__(
            observation_spec,
            action_spec,
            trained=[(actor_optimizer, [actor]), (critic_optimizer, critics)],
            followed=[actor, *critics],
            critic_loss=critic_loss,
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            target_update_unit=target_update_unit,
            train_state_spec=state_spec_of(actor, critics, chosen.state_spec(action_spec)),
            predict_state_spec=state_spec_of(actor),
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        shape = action_spec.shape.as_list()
        check_output(name, actor, f"an actor that gives an action, of shape {shape}, such as ActorNetwork", [shape])
        check_critic(name, critic, action_spec)
        self._actor_network = actor
        self._critic_networks = critics
        check_range(0.0, dqda_clipping=dqda_clipping)
        self._dqda_clipping = dqda_clipping
        self._exploration = chosen
        self._parameter_noise = parameter_noise
        attach(name, parameter_noise, actor)

    def _action(self, inputs: Any, state: Nest = (), network: Any = None) -> tuple[tf.Tensor, Nest]:
        acting = network or self._actor_network
        action, state = call_network(acting, inputs.observation, step_type=inputs.step_type, network_state=state)
        return action, state

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The actor's action with noise."""
        states = self.states_of(state)
        acting = None if self._parameter_noise is None else self._parameter_noise.network
        action, actor_state = self._action(time_step, states.actor, acting)
        action, noise = self._exploration(action, states.noise, self._action_spec)
        after = self.state_after_acting(time_step, action, states._replace(noise=noise), actor_state)
        return PolicyStep(action, after, DdpgInfo())

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The actor's action; there is no distribution that `epsilon_greedy` could sample from."""
        action, actor_state = self._action(inputs, self.states_of(state).actor)
        return PolicyStep(
            action, () if is_stateless(self._predict_state_spec) else NetworkStates(actor=actor_state), ()
        )

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The values of the actor's action by each critic."""
        states = self.states_of(state)
        inputs = (time_step.observation, self._action(time_step, states.actor)[0])
        values = critic_values(self._critic_networks, inputs, time_step.step_type, states.critics)
        return several("q_values", values)

    @property
    def runs_in_loss(self) -> bool:
        """See `OffPolicyAlgorithm.runs_in_loss`."""
        return True

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The actor's action at the recorded rows [B, ...] under the current weights, and what the critics see."""
        states = self.states_of(state)
        # Feed-forward, it learns in the loss, and costs nothing here unless somebody looks at what it gives.
        with learning(False) if is_stateless(states.actor) else contextlib.nullcontext():
            action, actor_state = self._action(inputs, states.actor)
        info = DdpgInfo(action, inputs.observation, states._replace(noise=()))
        return PolicyStep(inputs.action, self.next_states(inputs, inputs.action, states, actor_state), info)

    @property
    def _target_actor(self) -> Any:
        return self._target_networks[0]

    @property
    def _target_critics(self) -> list[Any]:
        return self._target_networks[1:]

    def next_action(self, training_info: TrainingInfo, rows: Transitions) -> tf.Tensor:
        """What a target supposes to be done next: the target actor's action.

        Args:
          training_info: [T, B, ...].
          rows: those that are trained and looked at, K * B of them.

        Returns:
          float32 [K * B, action shape], of the rows looked at.
        """
        info = training_info.info
        seen, step_type, state = rows.following((info.observation, training_info.step_type, info.state.target_actor))
        return self._target_actor(seen, step_type=step_type, network_state=state)[0]

    def value_of_acting(self, training_info: TrainingInfo, rows: Transitions, climbed: bool = True) -> tf.Tensor:
        """What the first critic makes of the actor's actions.

        Args:
          training_info: [T, B, ...].
          rows: those that are trained, K * B of them.
          climbed: the actor gets its gradient, and what encodes observations for it; the critic never does.

        Returns:
          float32 [K * B].
        """
        info, judges = training_info.info, self._critic_networks[:1]
        recorded = (info.observation, training_info.step_type, info.state.critics[:1])
        seen, step_type, remembered = rows.now(recorded)
        if is_stateless(info.state.actor):
            chosen = call_network(self._actor_network, seen, step_type=step_type)[0]
        else:
            chosen = rows.now(info.action_distribution)
        if climbed:
            return value_ascent(judges, seen, chosen, self._dqda_clipping, step_type, remembered)
        with learning(False):
            return tf.stop_gradient(critic_values(judges, (seen, chosen), step_type, remembered)[0])

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The losses of critics and actor, [T, B]; the last rows are only looked at."""
        info, like = training_info.info, training_info.step_type
        rows = Transitions(training_info, self.n_step)
        now, step_type, remembered = rows.now((info.observation, like, info.state.critics))
        recorded = rows.now(training_info.action)
        values = critic_values(self._critic_networks, (now, recorded), step_type, remembered)
        following, following_type, states = rows.following((info.observation, like, info.state.target_critics))
        supposed = (following, self.next_action(training_info, rows))
        with learning(False):
            target = minimum(critic_values(self._target_critics, supposed, following_type, states))
        critic_loss = self._critic_loss(training_info, [rows.as_now(v) for v in values], rows.as_following(target))
        actor_loss = -self.value_of_acting(training_info, rows)
        weights = row_weights(like, self.n_step)
        mean = math_ops.masked_mean(actor_loss, rows.now(weights))
        own = {**self.target_mark(), "actor_loss": mean, **self.exploration_metrics()}
        return critic_loss._replace(
            loss=critic_loss.loss + rows.as_now(actor_loss) * weights,
            extra=contracts.merged(self.name, critic_loss.extra, own),
        )

    def _shake(self, noise: ParameterNoise, rows: TrainingInfo) -> None:
        def distance() -> tf.Tensor:
            networks, state = (self._actor_network, noise.network), rows.info.state.actor
            one, other = (n(rows.info.observation, step_type=rows.step_type, network_state=state)[0] for n in networks)
            return action_distance(one, other, half_range(self._action_spec))

        noise.after_update(distance, lambda strength: strength)
