"""Deep Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms import contracts
from alf.algorithms.critic_algorithm import (
    CriticAlgorithm,
    advance,
    critic_values,
    state_spec_of,
)
from alf.algorithms.exploration import (
    EpsilonGreedy,
    Exploration,
    Strength,
    ValueExploration,
    epsilon_greedy,
    exploration_for,
)
from alf.algorithms.network_kinds import build_network, check_judges_all, number_of_actions
from alf.algorithms.parameter_noise import ParameterNoise, attach, divergence_of_epsilon, value_distance
from alf.algorithms.transitions import Transitions
from alf.data_structures import ActionTimeStep, Experience, LossInfo, Nest, PolicyStep, TrainingInfo, namedtuple
from alf.networks.calling import call_network, learning
from alf.utils.action_masks import ActionMasks, Splitter
from alf.utils.common import is_stateless

DqnInfo = namedtuple("DqnInfo", ["output", "observation", "state"], default_value=())
_Explorations = Exploration | Mapping[str, Exploration]


@gin.configurable(module="alf")
class DqnAlgorithm(CriticAlgorithm):
    """Q-learning with a target network; Mnih et al. 2015, and double, van Hasselt et al. 2015, arXiv:1509.06461.

    With `OneStepTDLoss.n_step` the targets look several steps ahead.
    """

    _exploration: ValueExploration

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        q_network: Any,
        critic_loss: Any = None,
        epsilon_greedy: Strength = 0.1,
        double: bool = True,
        target_update_tau: float = 1.0,
        target_update_period: int = 200,
        optimizer: Any = None,
        gradient_clipping: float | None = None,
        debug_summaries: bool = False,
        name: str = "DqnAlgorithm",
        *,
        exploration: _Explorations | None = None,
        target_update_unit: str = "updates",
        observation_and_action_constraint_splitter: Splitter | None = None,
        parameter_noise: ParameterNoise | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: integer spec of one action, shape [] or [1], from 0 on.
          q_network: a network from observations to the values of all actions, [B, number of actions], such as a QNetwork,
            or a function that makes it; it may be recurrent, such as a QRnnNetwork. It is copied for the target.
          critic_loss: `OneStepTDLoss` by default, of squared errors; usual in the literature is element_wise_huber_loss.
          epsilon_greedy: share of random actions when collecting, a number or a schedule.
          double: the action that a target supposes is the best by the network that learns, not by the target network.
          target_update_tau: see `get_target_updater`.
          target_update_period: updates between two moves of the target network.
          exploration: takes the place of `epsilon_greedy`; one, or a mapping from the kind of action to one.
          target_update_unit: what `target_update_period` counts, "updates" or "env_steps".
          observation_and_action_constraint_splitter: takes masks of actions out of observations, such as `split_mask`;
            the network sees the rest. A target supposes the best of the allowed actions.
          parameter_noise: shakes the weights that act when collecting; the exploration then chooses by what they say.

        Raises:
          ValueError: the actions are not discrete, there is no exploration for them, or the network gives something else.
        """
        if any(not spec.dtype.is_integer for spec in tf.nest.flatten(action_spec)):
            raise ValueError(f"{type(self).__name__} needs discrete actions, got {action_spec}: use SAC, DDPG or TD3.")
        self.check_nesting(action_spec)
        network = build_network(q_network)
        state_spec = state_spec_of(critics=[network])
        super().__init__(
            observation_spec,
            action_spec,
            trained=[(optimizer, [network])],
            followed=[network],
            critic_loss=critic_loss,
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            target_update_unit=target_update_unit,
            train_state_spec=state_spec,
            predict_state_spec=state_spec,
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        self._action_masks = ActionMasks(observation_and_action_constraint_splitter)
        chosen = EpsilonGreedy(epsilon_greedy) if exploration is None else exploration
        self._exploration = exploration_for(action_spec, chosen, ValueExploration, name)
        self._parameter_noise = parameter_noise
        attach(name, parameter_noise, network, farthest=1.0)
        self._check_network(network)
        self._q_network = network
        self._critic_networks = [network]
        self._double = double

    def _check_network(self, network: Any) -> None:
        check_judges_all(self.name, network, self._action_spec)

    def values_of(self, output: tf.Tensor) -> tf.Tensor:
        """The values of all actions, float32 [..., number of actions], of the network's output."""
        return output

    def _output(self, inputs: Any, state: Nest, network: Any = None) -> tuple[tf.Tensor, Any]:
        """The network's output for rows [B, ...], and the NetworkStates after them."""
        states = self.states_of(state)
        seen = self._action_masks.observation(inputs.observation)
        acting = network or self._q_network
        output, after = call_network(acting, seen, step_type=inputs.step_type, network_state=states.critics[0])
        return output, states._replace(critics=(after,))

    def _masked_values(self, output: tf.Tensor, observation: Nest) -> tf.Tensor:
        """`values_of` an output, lower than any where the observation of its row forbids the action."""
        return self._action_masks.values(self.values_of(output), observation)

    def _as_action(self, number: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.reshape(number, [-1, *self._action_spec.shape]), self._action_spec.dtype)

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """An action that explores."""
        acting = None if self._parameter_noise is None else self._parameter_noise.network
        output, after = self._output(time_step, state, acting)
        values = self._masked_values(output, time_step.observation)
        allowed = self.allowed_actions(time_step)
        number = self._exploration(values) if allowed is None else self._exploration(values, allowed)
        return PolicyStep(self._as_action(number), () if is_stateless(self._train_state_spec) else after, ())

    @property
    def runs_in_loss(self) -> bool:
        """See `OffPolicyAlgorithm.runs_in_loss`."""
        return True

    def state_after_decision(self, time_step: Any, action: tf.Tensor, before: Nest, acted: Nest) -> Nest:
        """That after acting: the network remembers what it has seen, and not what was done."""
        return acted

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The best action; with probability `epsilon_greedy`, a row, any."""
        output, after = self._output(inputs, state)
        values = self._masked_values(output, inputs.observation)
        number = _epsilon_greedy(values, epsilon_greedy, self.allowed_actions(inputs))
        return PolicyStep(self._as_action(number), () if is_stateless(self._predict_state_spec) else after, ())

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The values of all actions, masked."""
        return {"q_values": self._masked_values(self._output(time_step, state)[0], time_step.observation)}

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """What the loss runs the networks on; the output of a recurrent one, which is run from row to row, at [B, ...]."""
        states = self.states_of(state)
        if is_stateless(states.critics):
            return PolicyStep(inputs.action, state, DqnInfo(observation=inputs.observation, state=states))
        output, after = self._output(inputs, state)
        seen = self._action_masks.observation(inputs.observation)
        targets = advance(self._target_networks, seen, inputs.step_type, states.target_critics)
        info = DqnInfo(output, inputs.observation, states)
        return PolicyStep(inputs.action, after._replace(target_critics=targets), info)

    def _outputs(self, training_info: TrainingInfo, rows: Transitions) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The network's output at the trained rows, and at those that they look at where it chooses for the targets."""
        info = training_info.info
        if not is_stateless(info.state.critics):
            return rows.now(info.output), rows.following(info.output) if self._double else None

        def run(inputs: tuple[Nest, tf.Tensor]) -> tf.Tensor:
            observation, step_type = inputs
            seen = self._action_masks.observation(observation)
            return critic_values([self._q_network], seen, step_type, info.state.critics)[0]

        recorded = (info.observation, training_info.step_type)
        now = run(rows.now(recorded))
        if not self._double:
            return now, None
        if not rows.look_at_next:
            return now, run(rows.following(recorded))
        # Each trained row but the first is looked at by the one before it: the last row alone is missing.
        last = tf.nest.map_structure(lambda x: x[-1], recorded)
        return now, tf.concat([now[tf.shape(last[1])[0] :], run(last)], 0)

    def _taken(self, training_info: TrainingInfo, rows: Transitions, output: tf.Tensor) -> tf.Tensor:
        """The part of the network's output at the trained rows that is about the recorded actions."""
        taken = tf.cast(tf.reshape(rows.now(training_info.action), [-1]), tf.int32)
        return tf.gather(output, taken, batch_dims=1)

    def _target(self, training_info: TrainingInfo, rows: Transitions, judge: tf.Tensor | None) -> tf.Tensor:
        """What the target network says of the best actions by `judge`, by default itself, of the rows that are looked at."""
        info = training_info.info
        following = rows.following(info.observation)
        seen = self._action_masks.observation(following)
        step_type, states = rows.following((training_info.step_type, info.state.target_critics))
        with learning(False):
            output = critic_values(self._target_networks, seen, step_type, states)[0]
        best = tf.argmax(self._masked_values(output if judge is None else judge, following), -1, output_type=tf.int32)
        return tf.gather(output, best, batch_dims=1)

    def _taken_and_target(self, training_info: TrainingInfo, rows: Transitions) -> tuple[tf.Tensor, tf.Tensor]:
        """What the network says of the recorded actions, and the target network of the best ones that follow."""
        now, judge = self._outputs(training_info, rows)
        return self._taken(training_info, rows, now), self._target(training_info, rows, judge)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The loss [T, B]; the last rows are only looked at."""
        rows = Transitions(training_info, self.n_step)
        value, target = self._taken_and_target(training_info, rows)
        loss = self._critic_loss(training_info, rows.as_now(value), rows.as_following(target))
        return self._with_control(loss)

    def _with_control(self, loss: LossInfo) -> LossInfo:
        own = {**self.exploration_metrics(), **self.target_mark()}
        return loss._replace(extra=contracts.merged(self.name, loss.extra, own))

    def _shake(self, noise: ParameterNoise, rows: TrainingInfo) -> None:
        num_actions = number_of_actions(self._action_spec)
        observation = rows.info.observation
        seen = self._action_masks.observation(observation)

        def distance() -> tf.Tensor:
            states = rows.info.state.critics * 2
            outputs = critic_values((self._q_network, noise.network), seen, rows.step_type, states)
            return value_distance(*(self._masked_values(output, observation) for output in outputs))

        noise.after_update(distance, lambda epsilon: divergence_of_epsilon(epsilon, num_actions))


# The arguments of this name hide the function inside of the class.
_epsilon_greedy = epsilon_greedy
