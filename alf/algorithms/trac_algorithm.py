"""Trust region actor-critic: no update changes the policy by more than allowed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions.utils import SquashToSpecNormal

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.minibatch import map_params
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
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
from alf.utils import dist_utils, nest_utils
from alf.utils.common import flat
from alf.utils.trusted_updater import TrustedUpdater

TracInfo = namedtuple("TracInfo", ["ac", "observation", "state", "judged"], default_value=())
TracInfo.__doc__ = """`ac`: the info of the wrapped algorithm; `observation` and `state`: what its actor network got; `judged`:
what that gives outside of training mode, where that is not what the info says."""

# Layers that do something else in training mode, such as what forgets at random.
_OF_TWO_MODES = (
    tf.keras.layers.AlphaDropout,
    tf.keras.layers.BatchNormalization,
    tf.keras.layers.Dropout,
    tf.keras.layers.GaussianDropout,
    tf.keras.layers.GaussianNoise,
)


@dataclasses.dataclass
class _Traced:
    """Lives from the loss to the end of the update, while one function is traced."""

    updater: TrustedUpdater | None = None


def squared_distance(one: Any, other: Any, outer_rank: int) -> tf.Tensor:
    """How far two action distributions of one kind are from each other, float32, outer axes, summed over the action's.

    The squared difference of the logits of Categorical distributions and of deterministic actions, otherwise
    KL(one, other) + KL(other, one), before any squashing, which does not change it. Each is about quadratic in a small
    change of the parameters.

    Args:
      one: distribution or tensor [outer axes, ...].
      other: likewise.
      outer_rank: number of time and batch axes.
    """
    if not nest_utils.is_distribution(one):
        distance = tf.math.squared_difference(one, other)
    elif isinstance(one, tfp.distributions.Categorical):
        # Logits are given up to a constant.
        distance = tf.math.squared_difference(dist_utils.log_probabilities(one), dist_utils.log_probabilities(other))
    elif isinstance(one, SquashToSpecNormal):
        return squared_distance(one.input_distribution, other.input_distribution, outer_rank)
    # Not its subclasses: a multivariate normal is one, of a normal without parameters.
    elif type(one) is tfp.distributions.TransformedDistribution:
        return squared_distance(one.distribution, other.distribution, outer_rank)
    else:
        distance = one.kl_divergence(other) + other.kl_divergence(one)
    return tf.reduce_sum(distance, list(range(outer_rank, distance.shape.rank)))


def max_distance(action_spec: Any, action_dist_clip_per_dim: float) -> float:
    """sqrt(action_dist_clip_per_dim * dimensions) of an action's spec; each choice of a discrete action is a dimension."""
    choices = np.ones(action_spec.shape, int)
    if action_spec.dtype.is_integer:
        choices *= action_spec.maximum - action_spec.minimum + 1
    return math.sqrt(action_dist_clip_per_dim * np.sum(choices))


@gin.configurable(module="alf")
class TracAlgorithm(OffPolicyAlgorithm):
    """Any actor-critic algorithm, with the step of its actor network shortened after each update.

    For each action, the root of the mean of `squared_distance` over the rows trained on is at most `max_distance`.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        ac_algorithm_cls: Callable[..., Any] = ActorCriticAlgorithm,
        action_dist_clip_per_dim: float = 0.01,
        debug_summaries: bool = False,
        name: str = "TracAlgorithm",
    ) -> None:
        """Creates the algorithm.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: nest of bounded specs of one action.
          ac_algorithm_cls: makes the algorithm, called with observation_spec, action_spec and debug_summaries. It has an
            `_actor_network`, a TF-Agents network from observations to actions or their distributions. Its
            `reward_shaping_fn` and `observation_transformer` hold.
          action_dist_clip_per_dim: see `max_distance`.
          debug_summaries: passed on.
          name: name of the algorithm.

        Raises:
          ValueError: `action_dist_clip_per_dim` is not above 0, or the algorithm has no actor network.
        """
        if action_dist_clip_per_dim <= 0.0:
            raise ValueError(f"{name}.action_dist_clip_per_dim must be above 0, got {action_dist_clip_per_dim}.")
        ac = ac_algorithm_cls(
            observation_spec=observation_spec, action_spec=action_spec, debug_summaries=debug_summaries
        )
        if ac._actor_network is None:
            raise ValueError(
                f"{name}.ac_algorithm_cls makes a {type(ac).__name__}, which has no _actor_network to hold back: use an "
                "actor-critic, SAC, DDPG or TD3."
            )
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=ac.train_state_spec,
            predict_state_spec=ac.predict_state_spec,
            debug_summaries=debug_summaries,
            name=name,
        )
        self._ac_algorithm = ac
        self._report_as(ac)
        self._action_masks = ac.action_masks
        self._limits = tf.nest.map_structure(lambda spec: max_distance(spec, action_dist_clip_per_dim), action_spec)
        self._traced = _Traced()
        self._has_two_modes = any(isinstance(part, _OF_TWO_MODES) for part in ac._actor_network.submodules)

    @property
    def takes_encoded(self) -> bool:
        """No: it would change with the update, and only the step of the actor network is held."""
        return False

    @property
    def actor_field(self) -> str | None:
        """The wrapped algorithm's."""
        return self._ac_algorithm.actor_field

    @property
    def shapes_reward(self) -> bool:
        """The wrapped algorithm's."""
        return self._ac_algorithm.shapes_reward

    def shape_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """The wrapped algorithm's."""
        return self._ac_algorithm.shape_reward(reward)

    @property
    def transforms_observation(self) -> bool:
        """The wrapped algorithm's."""
        return self._ac_algorithm.transforms_observation

    def transform_timestep(self, time_step: ActionTimeStep) -> ActionTimeStep:
        """The wrapped algorithm's, which looks at time steps only behind it."""
        return self._ac_algorithm.transform_timestep(time_step)

    @property
    def least_sample_length(self) -> int:
        """The wrapped algorithm's."""
        return self._ac_algorithm.least_sample_length

    @property
    def learner(self) -> OffPolicyAlgorithm:
        """The wrapped algorithm's."""
        return self._ac_algorithm.learner

    @property
    def rows_only_looked_at(self) -> int:
        """The wrapped algorithm's."""
        return self._ac_algorithm.rows_only_looked_at

    @property
    def rows_for_targets(self) -> int:
        """The wrapped algorithm's."""
        return self._ac_algorithm.rows_for_targets

    @property
    def learning_state_spec(self) -> Nest:
        """The wrapped algorithm's."""
        return self._ac_algorithm.learning_state_spec

    def state_for_learning(self, state: Nest) -> Nest:
        """The wrapped algorithm's."""
        return self._ac_algorithm.state_for_learning(state)

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """The wrapped algorithm's."""
        return self._ac_algorithm.convert_train_state_to_predict_state(state)

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The wrapped algorithm's."""
        return self._ac_algorithm.rollout(time_step, state, mode)

    def state_after_decision(self, time_step: ActionTimeStep, action: Nest, before: Nest, acted: Nest) -> Nest:
        """The wrapped algorithm's."""
        return self._ac_algorithm.state_after_decision(time_step, action, before, acted)

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The wrapped algorithm's."""
        return self._ac_algorithm.predict(inputs, state, epsilon_greedy)

    def preprocess_experience(self, experience: Experience) -> Experience:
        """The wrapped algorithm's."""
        return self._ac_algorithm.preprocess_experience(experience)

    def loss_info_spec(self, rollout_info_spec: Nest) -> Nest:
        """The wrapped algorithm's."""
        return self._ac_algorithm.loss_info_spec(rollout_info_spec)

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The wrapped algorithm's, whose info is kept with what the actor network got."""
        step = self._ac_algorithm.train_step(inputs, state)
        found = nest_utils.find_field(state, "actor")
        memory = found[0] if found else ()
        judged = self._acts(inputs.observation, inputs.step_type, memory) if self._has_two_modes else ()
        return step._replace(info=TracInfo(step.info, inputs.observation, memory, judged))

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The wrapped algorithm's."""
        return self._ac_algorithm.outputs(time_step, state)

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The wrapped algorithm's; it is where the weights before the update are seen last."""
        self._traced.updater = TrustedUpdater(self._ac_algorithm._actor_network.trainable_variables)
        return self._ac_algorithm.calc_loss(_inner(training_info))

    def after_train(self, training_info: TrainingInfo) -> None:
        """Shortens the step of the actor network, then the wrapped algorithm's."""
        updater, self._traced.updater = self._traced.updater, None
        assert updater is not None, "calc_loss comes before after_train"
        valid = training_info.valid
        trained = tf.range(valid.shape[0]) < valid.shape[0] - self.rows_only_looked_at
        valid *= tf.cast(trained, valid.dtype)[:, tf.newaxis]
        before = self._recorded_distributions(training_info)

        def change() -> Nest:
            after = self._act_again(training_info)

            def distance(one: Any, other: Any) -> tf.Tensor:
                rows = squared_distance(one, other, 2)
                return tf.sqrt(tf.math.divide_no_nan(tf.reduce_sum(rows * valid), tf.reduce_sum(valid)))

            return tf.nest.map_structure(distance, before, after)

        updater.adjust_step(change, self._limits)
        self._ac_algorithm.after_train(_inner(training_info))

    def _recorded_distributions(self, training_info: TrainingInfo) -> Nest:
        """What the actor network gave before the update, [T, B]."""
        if self._has_two_modes:
            return training_info.info.judged
        found = nest_utils.find_field(training_info.info.ac, "action_distribution")
        if not found:
            raise ValueError(
                f"{type(self._ac_algorithm).__name__} records no action_distribution in train_step; TracAlgorithm needs it."
            )
        return found[0]

    def _act_again(self, training_info: TrainingInfo) -> Nest:
        """What the actor network gives now, [T, B]."""
        info = training_info.info
        length = training_info.step_type.shape[0]
        output = self._acts(flat(info.observation), flat(training_info.step_type), flat(info.state))
        return map_params(lambda x: tf.reshape(x, [length, -1, *x.shape[1:]]), output)

    def _acts(self, observation: Nest, step_type: tf.Tensor, state: Nest) -> Nest:
        """What the actor network gives for rows [N, ...], as it acts."""
        seen = self._ac_algorithm.seen_by_actor(observation)
        with learning(False):
            output, _ = call_network(self._ac_algorithm._actor_network, seen, step_type=step_type, network_state=state)
        return self._action_masks.distribution(output, observation)


def _inner(training_info: TrainingInfo) -> TrainingInfo:
    return training_info._replace(info=training_info.info.ac)
