"""Behavioural cloning: a policy that imitates recorded episodes and never acts to learn."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import tensorflow as tf

from alf.algorithms.network_kinds import build_network
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.predictions import outputs_of
from alf.algorithms.stored_steps import time_steps_of
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
from alf.replay.dataset import DatasetError, DatasetReplayer, Steps, checked, read_dataset, sequences
from alf.utils import dist_utils, files, nest_utils
from alf.utils.action_masks import ActionMasks, Splitter
from alf.utils.common import check_sizes, is_stateless

BcInfo = namedtuple("BcInfo", ["action_distribution"], default_value=())


@gin.configurable(module="alf")
class BcAlgorithm(OffPolicyAlgorithm):
    """Maximises the likelihood of the recorded actions; of an actor without distribution, the squared error falls.

    A trainer makes passes over the whole dataset: `num_updates_per_train_step` of them an iteration, in minibatches of
    `mini_batch_size` sequences of `sequence_length` steps, shuffled anew for each. The environment of the configuration is
    only played in for evaluation.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        actor_network: Any,
        dataset: str | Steps,
        sequence_length: int = 1,
        entropy_regularization: float | None = None,
        optimizer: Any = None,
        debug_summaries: bool = False,
        name: str = "BcAlgorithm",
        *,
        observation_and_action_constraint_splitter: Splitter | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: nest of specs of one action.
          actor_network: a TF-Agents network whose output is a nest of actions or of their distributions, or a function
            that makes it.
          dataset: path of a file by `alf.replay.dataset.write_dataset`, or its steps. A file is read by the first training,
            and by a trainer as it begins: whoever only acts needs none.
          sequence_length: steps in a sequence; more than 1 for a recurrent actor.
          entropy_regularization: weight of an entropy bonus.
          observation_and_action_constraint_splitter: see `ActorCriticAlgorithm`.

        Raises:
          ValueError: `sequence_length` is no whole number of at least 1.
          DatasetError: the steps are of other observations or actions, no whole episodes, or hold numbers that are not finite
            or actions that the mask of their observation forbids. Of a file this, and that it cannot be read, is told when
            it is read.
        """
        check_sizes(sequence_length=sequence_length)
        actor = build_network(actor_network)
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=actor.state_spec,
            optimizer=optimizer,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        self._action_masks = ActionMasks(observation_and_action_constraint_splitter)
        self._actor_network = actor
        self._entropy_regularization = entropy_regularization
        if isinstance(dataset, str):
            begin = files.beginning()

            def read() -> Experience:
                with files.relative_to(begin):
                    steps = read_dataset(dataset, observation_spec, action_spec)
                return self._sequences(steps, f"The dataset {dataset}", sequence_length)

            self._volatile.replayer = DatasetReplayer(read)
        else:
            told = "The dataset"
            steps = checked(dataset, observation_spec, action_spec, told)
            self._volatile.replayer = DatasetReplayer(self._sequences(steps, told, sequence_length))

    @property
    def acts(self) -> bool:
        """False: it learns from what it is given."""
        return False

    def _sequences(self, steps: Steps, name: str, length: int) -> Experience:
        """Sequences of the transformed steps [N, ...]; DatasetError, with their `name`, where a mask forbids an action."""
        time_step = self.transform_timestep(time_steps_of(steps))
        action = tf.nest.map_structure(tf.constant, steps.action)
        version = tf.zeros_like(time_step.step_type, tf.int64)
        experience = Experience(**time_step._asdict(), action=action, policy_version=version)
        _check_allowed(name, experience, self._action_masks)
        return sequences(experience, length)

    def _act(self, inputs: Any, state: Nest) -> tuple[Nest, Nest]:
        state = () if is_stateless(self._train_state_spec) else state
        seen = self._action_masks.observation(inputs.observation)
        distribution, state = call_network(self._actor_network, seen, step_type=inputs.step_type, network_state=state)
        return self._action_masks.distribution(distribution, inputs.observation), state

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The most likely action; with probability `epsilon_greedy`, a row, a sampled one."""
        distribution, state = self._act(inputs, state)
        return PolicyStep(dist_utils.epsilon_greedy_sample(distribution, epsilon_greedy), state, ())

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The probabilities of actions."""
        return outputs_of(BcInfo(action_distribution=self._act(time_step, state)[0]))

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """What the actor would do in the recorded rows [B, ...]."""
        distribution, state = self._act(inputs, state)
        return PolicyStep((), state, BcInfo(action_distribution=distribution))

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """Minus the log-probability of the recorded actions, or the squared error, [T, B]."""
        policy = training_info.info.action_distribution
        leaves = tf.nest.flatten(policy)
        if not any(nest_utils.is_distribution(leaf) for leaf in leaves):
            loss = tf.add_n(
                [_squared(p, a) for p, a in zip(leaves, tf.nest.flatten(training_info.action), strict=True)]
            )
            return LossInfo(loss=loss, extra={"squared_error": loss})
        log_prob, entropy, for_gradient = dist_utils.compute_log_probability_and_entropy(
            policy, training_info.action, 2
        )
        loss = -log_prob
        if self._entropy_regularization:
            loss -= self._entropy_regularization * for_gradient
        return LossInfo(loss=loss, extra={"log_prob": log_prob, "entropy": entropy})


def _check_allowed(name: str, experience: Experience, masks: ActionMasks) -> None:
    """Raises DatasetError where recorded steps [N, ...] have an action that nothing allowed: its likelihood stays 0.

    Args:
      name: of what holds them, in messages.
      experience: with transformed observations.
      masks: of actions, of what is in them.
    """
    allowed, actions = masks.allowed(experience.observation), tf.nest.flatten(experience.action)
    # Masks that do not fit, and more actions than one, are told where the network is run.
    if allowed is None or len(actions) != 1 or not actions[0].dtype.is_integer:
        return
    action = tf.cast(tf.reshape(actions[0], [len(actions[0]), -1]), tf.int32)
    allowed = tf.reshape(allowed, [len(action), -1, allowed.shape[-1]])
    if allowed.shape[1] != action.shape[1] or tf.reduce_max(action) >= allowed.shape[-1]:
        return
    forbidden = (
        ~tf.gather(allowed, action, batch_dims=2).numpy() & (experience.step_type != StepType.LAST).numpy()[:, None]
    )
    if forbidden.any():
        row, choice = (int(i) for i in np.argwhere(forbidden)[0])
        raise DatasetError(
            f"{name} has action {int(action[row, choice])} at step {row}, which the mask of its observation forbids, so that "
            "no policy could take it: correct the mask, or leave out the episode."
        )


def _squared(predicted: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """The squared error [T, B], summed over the action's axes."""
    error = tf.math.squared_difference(predicted, tf.cast(action, predicted.dtype))
    return tf.reduce_sum(error, list(range(2, error.shape.rank)))
