"""The shell that composes an algorithm from parts: an encoder, and what learns to act on its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import (
    ActionTimeStep,
    Bootstrap,
    Experience,
    LossInfo,
    Nest,
    PolicyStep,
    TrainingInfo,
    namedtuple,
)
from alf.utils.common import cast_transformer, is_stateless

AgentState = namedtuple("AgentState", ["rl"], default_value=())
AgentInfo = namedtuple("AgentInfo", ["rl"], default_value=())


@gin.configurable(module="alf")
class Agent(OffPolicyAlgorithm):
    """Encodes observations and hands them to an RL algorithm; owns transforms, optimiser and clipping."""

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        rl_algorithm_cls: Callable[..., Any] = ActorCriticAlgorithm,
        encoding_network: Any = None,
        optimizer: Any = None,
        gradient_clipping: float | None = None,
        clip_by_global_norm: bool = False,
        reward_shaping_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        observation_transformer: Callable[[Nest], Nest] | Sequence[Callable[[Nest], Nest]] | None = cast_transformer,
        debug_summaries: bool = False,
        name: str = "AgentAlgorithm",
    ) -> None:
        """Creates the agent; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one raw observation.
          action_spec: nest of specs of one action.
          rl_algorithm_cls: makes the RL algorithm, called with observation_spec, action_spec and debug_summaries.
          encoding_network: a feed-forward TF-Agents network (or a function that makes it) from transformed observations
            to what the RL algorithm sees; trained with it.

        Raises:
          ValueError: the encoding network is recurrent.
        """
        encoder = encoding_network
        if encoder is not None and not isinstance(encoder, tf.Module):
            encoder = encoder()
        encoded_spec = observation_spec
        if encoder is not None:
            encoded_spec = encoder.create_variables()
            if not is_stateless(encoder.state_spec):
                raise ValueError(
                    "Agent's encoding_network must be feed-forward: put recurrence into the actor and value networks."
                )
        rl_algorithm = rl_algorithm_cls(
            observation_spec=encoded_spec, action_spec=action_spec, debug_summaries=debug_summaries
        )
        states = rl_algorithm.train_state_spec, rl_algorithm.predict_state_spec
        train_spec, predict_spec = (() if is_stateless(s) else AgentState(rl=s) for s in states)
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=train_spec,
            predict_state_spec=predict_spec,
            optimizer=optimizer,
            gradient_clipping=gradient_clipping,
            clip_by_global_norm=clip_by_global_norm,
            reward_shaping_fn=reward_shaping_fn,
            observation_transformer=observation_transformer,
            debug_summaries=debug_summaries,
            name=name,
        )
        self._encoding_network = encoder
        self._rl_algorithm = rl_algorithm

    def _encode(self, inputs: Any) -> Any:
        """`inputs` (a time step or experience, [B, ...]) with its observation encoded."""
        if self._encoding_network is None:
            return inputs
        encoded, _ = self._encoding_network(inputs.observation, step_type=inputs.step_type, network_state=())
        return inputs._replace(observation=encoded)

    def _wrap(self, policy_step: PolicyStep) -> PolicyStep:
        state = () if is_stateless(self._train_state_spec) else AgentState(rl=policy_step.state)
        return PolicyStep(policy_step.action, state, AgentInfo(rl=policy_step.info))

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The RL algorithm's rollout on the encoded observation."""
        return self._wrap(self._rl_algorithm.rollout(self._encode(time_step), _rl(state), mode))

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The RL algorithm's train_step on the encoded observation."""
        inputs = inputs._replace(rollout_info=_rl(inputs.rollout_info))
        return self._wrap(self._rl_algorithm.train_step(self._encode(inputs), _rl(state)))

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The RL algorithm's predict on the encoded observation."""
        return self._wrap(self._rl_algorithm.predict(self._encode(inputs), _rl(state), epsilon_greedy))

    def preprocess_experience(self, experience: Experience) -> Experience:
        """The RL algorithm's preprocessing; it sees the bootstrap's observation encoded."""
        bootstrap = experience.bootstrap
        inner = experience._replace(rollout_info=_rl(experience.rollout_info), state=_rl(experience.state))
        if bootstrap != ():
            inner = inner._replace(bootstrap=Bootstrap(self._encode(bootstrap.time_step), _rl(bootstrap.state)))
        inner = self._rl_algorithm.preprocess_experience(inner)
        return inner._replace(
            rollout_info=AgentInfo(rl=inner.rollout_info),
            state=experience.state,
            bootstrap=bootstrap if inner.bootstrap != () else (),
        )

    def loss_info_spec(self, rollout_info_spec: Nest) -> Nest:
        """The RL algorithm's."""
        return AgentInfo(rl=self._rl_algorithm.loss_info_spec(rollout_info_spec.rl))

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The RL algorithm's loss."""
        return self._rl_algorithm.calc_loss(_inner(training_info))

    def after_train(self, training_info: TrainingInfo) -> None:
        """The RL algorithm's."""
        self._rl_algorithm.after_train(_inner(training_info))


def _inner(training_info: TrainingInfo) -> TrainingInfo:
    return training_info._replace(info=_rl(training_info.info), rollout_info=_rl(training_info.rollout_info))


def _rl(nest: Nest) -> Nest:
    """The RL algorithm's part of a state or info; nothing of nothing."""
    return nest.rl if isinstance(nest, (AgentState, AgentInfo)) else ()
