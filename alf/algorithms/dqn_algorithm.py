"""Deep Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.critic_algorithm import (
    CriticAlgorithm,
    build_network,
    flat,
    with_first,
    with_last,
    without_first,
    without_last,
)
from alf.algorithms.exploration import (
    EpsilonGreedy,
    Exploration,
    Strength,
    ValueExploration,
    epsilon_greedy,
    exploration_for,
)
from alf.data_structures import ActionTimeStep, Experience, LossInfo, Nest, PolicyStep, TrainingInfo, namedtuple

DqnInfo = namedtuple("DqnInfo", ["output", "observation"], default_value=())
_Explorations = Exploration | Mapping[str, Exploration]


@gin.configurable(module="alf")
class DqnAlgorithm(CriticAlgorithm):
    """Q-learning with a target network; Mnih et al. 2015, and double, van Hasselt et al. 2015, arXiv:1509.06461.

    With `OneStepTDLoss.n_step` the targets look several steps ahead.
    """

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
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: integer spec of one action, shape [] or [1], from 0 on.
          q_network: a network from observations to the values of all actions, [B, number of actions], such as a QNetwork,
            or a function that makes it; copied for the target.
          critic_loss: `OneStepTDLoss` by default; its usual td_error_loss_fn here is element_wise_huber_loss.
          epsilon_greedy: share of random actions when collecting, a number or a schedule.
          double: the action that a target supposes is the best by the network that learns, not by the target network.
          target_update_tau: see `get_target_updater`.
          target_update_period: updates between two moves of the target network.
          exploration: takes the place of `epsilon_greedy`; one, or a mapping from the kind of action to one.
          target_update_unit: what `target_update_period` counts, "updates" or "env_steps".

        Raises:
          ValueError: the network is recurrent, the actions are not discrete, or there is no exploration for them.
        """
        if any(not spec.dtype.is_integer for spec in tf.nest.flatten(action_spec)):
            raise ValueError(f"{type(self).__name__} needs discrete actions, got {action_spec}: use SAC, DDPG or TD3.")
        network = build_network(q_network, "q_network")
        super().__init__(
            observation_spec,
            action_spec,
            trained=[(optimizer, [network])],
            followed=[network],
            critic_loss=critic_loss,
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            target_update_unit=target_update_unit,
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        chosen = exploration_for(action_spec, exploration or EpsilonGreedy(epsilon_greedy))
        if not isinstance(chosen, ValueExploration):
            raise ValueError(f"{name} explores by values of actions (EpsilonGreedy, Boltzmann), not by {chosen.name}.")
        self._exploration = chosen
        self._q_network = network
        self._double = double

    def values_of(self, output: tf.Tensor) -> tf.Tensor:
        """The values of all actions, float32 [..., number of actions], of the network's output."""
        return output

    def _output(self, inputs: Any) -> tf.Tensor:
        return self._q_network(inputs.observation, step_type=inputs.step_type, network_state=())[0]

    def _as_action(self, number: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.reshape(number, [-1, *self._action_spec.shape]), self._action_spec.dtype)

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """An action that explores."""
        number = self._exploration(self.values_of(self._output(time_step)))
        return PolicyStep(self._as_action(number), (), ())

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The best action; with probability `epsilon_greedy`, a row, any."""
        return PolicyStep(
            self._as_action(_epsilon_greedy(self.values_of(self._output(inputs)), epsilon_greedy)), (), ()
        )

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The network's output at the recorded rows [B, ...], and what the target network sees."""
        return PolicyStep(inputs.action, (), DqnInfo(self._output(inputs), inputs.observation))

    def _target(self, training_info: TrainingInfo) -> tuple[tf.Tensor, tf.Tensor]:
        """The target network's output at all rows but the first, [(T - 1) * B, ...], and the numbers of the actions."""
        info = training_info.info
        output = self._target_networks[0](flat(without_first(info.observation)), step_type=(), network_state=())[0]
        judge = flat(without_first(info.output)) if self._double else output
        return output, tf.argmax(self.values_of(judge), -1, output_type=tf.int32)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The loss [T, B]; the last row is only looked at."""
        like = training_info.step_type
        taken = tf.reshape(without_last(training_info.action), [-1])
        value = tf.gather(flat(without_last(training_info.info.output)), taken, batch_dims=1)
        output, best = self._target(training_info)
        target = tf.gather(output, best, batch_dims=1)
        loss = self._critic_loss(training_info, with_last(value, like), with_first(target, like))
        return self._with_control(loss)

    def _with_control(self, loss: LossInfo) -> LossInfo:
        control = {self._exploration.control: tf.convert_to_tensor(self._exploration.strength())}
        return loss._replace(extra={**loss.extra, **control})

    def count_env_steps(self, steps: int) -> None:
        """See `RLAlgorithm.count_env_steps`."""
        super().count_env_steps(steps)
        self._exploration.advance("env_steps", steps)

    def after_train(self, training_info: TrainingInfo) -> None:
        """Moves the target network and the exploration's clock."""
        super().after_train(training_info)
        self._exploration.advance("updates", 1)


# The arguments of this name hide the function inside of the class.
_epsilon_greedy = epsilon_greedy
