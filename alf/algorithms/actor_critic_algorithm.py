"""Actor-critic: a policy network and a value network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.network_kinds import build_network, check_draws, check_output
from alf.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
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
from alf.networks.calling import call_network
from alf.utils.action_masks import ActionMasks, Splitter
from alf.utils.common import field_of, is_bounded, is_stateless, only_true, zeros_from_spec
from alf.utils.dist_utils import epsilon_greedy_sample, mode_action_distribution, sample_action_distribution

ActorCriticState = namedtuple("ActorCriticState", ["actor", "value"], default_value=())
ActorCriticInfo = namedtuple("ActorCriticInfo", ["action_distribution", "value"], default_value=())


@gin.configurable(module="alf")
class ActorCriticAlgorithm(OnPolicyAlgorithm):
    """Actor-critic over TF-Agents networks, feed-forward or recurrent; the loss decides between A2C and V-trace."""

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        actor_network: Any,
        value_network: Any,
        loss: Any = None,
        loss_class: Callable[..., Any] = ActorCriticLoss,
        optimizer: Any = None,
        debug_summaries: bool = False,
        name: str = "ActorCriticAlgorithm",
        *,
        observation_and_action_constraint_splitter: Splitter | None = None,
        actor_field: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: nest of specs of one action.
          actor_network: a TF-Agents network whose output is a nest of action distributions, or a function that makes it.
          value_network: one whose output is a value [B], or a function that makes it.
          loss: the loss; by default `loss_class(action_spec, debug_summaries=...)`.
          loss_class: makes the loss.
          observation_and_action_constraint_splitter: takes masks of discrete actions out of observations, such as
            `split_mask`; the networks see the rest.
          actor_field: dotted path of the part of it that the actor sees, such as "own"; None for all. The value network
            sees all in any case: a centralised critic, where the rest is what other agents see (Lowe et al. 2017).

        Raises:
          ValueError: the actor gives no distributions, or scales its means to bounds where there are none; or the value
            network gives more than a value.
        """
        actor, value = build_network(actor_network), build_network(value_network)
        check_draws(name, actor)
        check_output(name, value, "a value network that gives one value, [B], such as ValueNetwork", [[]])
        _check_means(actor, action_spec)
        state_spec = ActorCriticState(actor=actor.state_spec, value=value.state_spec)
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=() if is_stateless(state_spec) else state_spec,
            optimizer=optimizer,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        self._action_masks = ActionMasks(observation_and_action_constraint_splitter)
        self._actor_field = actor_field
        self._actor_network = actor
        self._value_network = value
        self._loss = loss
        if loss is None:
            self._loss = loss_class(action_spec=action_spec, **only_true(debug_summaries=debug_summaries))
        self._check_loss()

    def _check_loss(self) -> None:
        if isinstance(self._loss, PPOLoss):
            raise ValueError(
                f"{type(self).__name__}: PPOLoss needs what PPOAlgorithm prepares: use that, or ActorCriticLoss."
            )

    @property
    def actor_field(self) -> str | None:
        """See `RLAlgorithm`."""
        return self._actor_field

    def seen_by_actor(self, observation: Nest) -> Nest:
        """See `RLAlgorithm`; of its `actor_field`."""
        return field_of(super().seen_by_actor(observation), self._actor_field)

    def _act(self, time_step: ActionTimeStep, state: Nest) -> tuple[Nest, Nest]:
        seen = self.seen_by_actor(time_step.observation)
        memory = state.actor if state != () else ()
        distribution, state = call_network(
            self._actor_network, seen, step_type=time_step.step_type, network_state=memory
        )
        return self._action_masks.distribution(distribution, time_step.observation), state

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """Samples an action; records the distribution and the value."""
        stateless = is_stateless(self._train_state_spec)
        seen = self._action_masks.observation(time_step.observation)
        memory = () if stateless else state.value
        value, value_state = call_network(
            self._value_network, seen, step_type=time_step.step_type, network_state=memory
        )
        distribution, actor_state = self._act(time_step, () if stateless else state)
        return PolicyStep(
            action=sample_action_distribution(distribution),
            state=() if stateless else ActorCriticState(actor=actor_state, value=value_state),
            info=ActorCriticInfo(action_distribution=distribution, value=value),
        )

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The most likely action; with probability `epsilon_greedy`, a row, a sampled one."""
        stateless = is_stateless(self._train_state_spec)
        distribution, actor_state = self._act(inputs, () if stateless else state)
        return PolicyStep(
            action=epsilon_greedy_sample(distribution, epsilon_greedy),
            state=() if stateless else state._replace(actor=actor_state),
            info=(),
        )

    @property
    def rows_for_targets(self) -> int:
        """1 where the last row only bootstraps; of losses of another kind that is not known."""
        return 0 if getattr(self._loss, "trains_last_row", True) else 1

    def preprocess_experience(self, experience: Experience) -> Experience:
        """Without a bootstrap, what the last action has led to is not known: its row is only looked at."""
        return experience if experience.bootstrap != () else last_row_looked_at(experience)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The loss of [T, B] steps."""
        return self._loss(training_info, training_info.info.value)


def last_row_looked_at(experience: Experience) -> Experience:
    """Experience [B', T, ...] whose last row counts as the last of an episode that was cut: it has no outcome."""
    if experience.step_type.shape[1] == 1:
        return experience
    cut = tf.fill(tf.shape(experience.step_type[:, :1]), StepType.LAST)
    return experience._replace(step_type=tf.concat([experience.step_type[:, :-1], cut], 1))


def _check_means(actor: Any, action_spec: Nest) -> None:
    """Raises ValueError for an actor that scales its means to bounds where there are none."""
    ranges = [BoundedTensorSpec.from_spec(spec) for spec in tf.nest.flatten(action_spec) if spec.dtype.is_floating]
    if not all(is_bounded(spec.minimum, spec.maximum) for spec in ranges):
        inputs, step_type, state = zeros_from_spec(
            (actor.input_tensor_spec, tf.TensorSpec([], tf.int32), actor.state_spec), 1
        )
        action = mode_action_distribution(actor(inputs, step_type=step_type, network_state=state)[0])
        if not all(is_bounded(leaf, leaf) for leaf in tf.nest.flatten(action)):
            raise ValueError(
                f"{actor.name} scales its means to the bounds of actions that have none: bind its "
                "NormalProjectionNetwork.mean_transform = None, or have a wrapper rescale them from a Box such as [-1, 1]."
            )
