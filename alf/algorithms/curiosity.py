"""What rewards that an agent gives itself have in common: computed from transitions, in the learner only."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import tensorflow as tf

from alf.algorithms.algorithm import Algorithm
from alf.data_structures import AlgorithmStep, LossInfo, Nest, TrainingInfo
from alf.networks.calling import call_network
from alf.utils.averager import batch_mean
from alf.utils.normalizers import ScalarAdaptiveNormalizer


class Transition(NamedTuple):
    """One step of an agent, leading axes [B] or any other.

    `observation` and `next_observation`: what the policy saw before and after `action`; `goal`: of the goal generator,
    `()` without one.
    """

    observation: Nest = ()
    action: Nest = ()
    next_observation: Nest = ()
    goal: Nest = ()


class CuriosityInfo(NamedTuple):
    """`reward` float32 [B], before any normalisation; `losses`: float32 [B] by name, to be minimised."""

    reward: Any = ()
    losses: Any = ()


class Explored(NamedTuple):
    """What the learner knows of each step before the loss, [B', T, ...]; it comes back as `rollout_info`.

    `next_observation`: the observation of the following step; `valid` float32: 0 where there is none, because the step
    is LAST or ends the data; `reward` float32: the intrinsic reward of the step's transition, after normalisation.
    """

    next_observation: Nest = ()
    valid: Any = ()
    reward: Any = ()


class CuriosityAlgorithm(Algorithm):
    """A model of transitions whose surprise, or success, is a reward.

    Subclasses define `train_step`, of a Transition [B, ...], whose info is a CuriosityInfo.
    """

    def __init__(
        self,
        reward_adapt_speed: float | None = None,
        reward_clip_value: float = -1.0,
        optimizer: Any = None,
        name: str = "CuriosityAlgorithm",
    ) -> None:
        """Creates the algorithm.

        Args:
          reward_adapt_speed: speed of the ScalarAdaptiveNormalizer of the rewards; None leaves them as they are.
          reward_clip_value: above 0, rewards are clipped to [-reward_clip_value, reward_clip_value], after normalising.
          optimizer: of the model; None for the parent's.
          name: name of the algorithm.
        """
        super().__init__(optimizer=optimizer, name=name)
        self._reward_clip_value = reward_clip_value
        self._reward_normalizer = (
            None if reward_adapt_speed is None else ScalarAdaptiveNormalizer(speed=reward_adapt_speed)
        )

    def check_goal(self, goal_spec: Nest) -> None:
        """Raises ValueError where it cannot learn beside goals of this spec, `()` for none; by default it can beside all."""

    @abc.abstractmethod
    def train_step(self, inputs: Transition, state: Nest = None) -> AlgorithmStep:
        """The CuriosityInfo of transitions [B, ...], as the step's info."""

    def rewards(self, inputs: Transition, valid: tf.Tensor) -> tf.Tensor:
        """The rewards of transitions; called once for each that is learned from, since the statistics in here are updated by it.

        Args:
          inputs: [B, ...].
          valid: float32 [B], 0 for what is no transition.

        Returns:
          float32 [B], normalised, without gradient, 0 where not valid.
        """
        self.update_statistics(inputs, valid)
        reward = tf.stop_gradient(self.train_step(inputs).info.reward)
        if self._reward_normalizer is not None:
            self._reward_normalizer.update(reward, valid)
            reward = self._reward_normalizer.normalize(reward, self._reward_clip_value)
        elif self._reward_clip_value > 0.0:
            reward = tf.clip_by_value(reward, -self._reward_clip_value, self._reward_clip_value)
        return tf.where(valid > 0.0, reward, 0.0)

    def update_statistics(self, inputs: Transition, valid: tf.Tensor) -> None:
        """Updates what the model knows of its inputs' statistics; see `rewards`. By default nothing."""

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The sum of the losses, as `scalar_loss`, a mean over the valid transitions.

        Args:
          training_info: `info` a CuriosityInfo [T, B], `rollout_info` an Explored [T, B].
        """
        explored = training_info.rollout_info
        spec = tf.TensorSpec([], tf.float32)

        def mean(x: tf.Tensor) -> tf.Tensor:
            # What stands at invalid rows need not be finite.
            x = tf.where(explored.valid > 0.0, x, 0.0)
            return tf.math.divide_no_nan(tf.reduce_sum(x), tf.reduce_sum(explored.valid))

        extra = {f"{self.name}/{name}": mean(loss) for name, loss in training_info.info.losses.items()}
        total = tf.add_n(list(extra.values()))
        extra[f"{self.name}/reward"] = tf.cast(batch_mean(explored.reward, spec, explored.valid)[1], tf.float32)
        return LossInfo(scalar_loss=total, extra=extra)


def apply(network: Any, inputs: Nest) -> tf.Tensor:
    """The output of a feed-forward TF-Agents network; `inputs` themselves where `network` is None."""
    return inputs if network is None else call_network(network, inputs, step_type=(), network_state=())[0]


def vector_spec(name: str, feature_spec: Any) -> tf.TensorSpec:
    """`feature_spec` of the module called `name` as float32; raises ValueError where it is not the spec of one vector."""
    if not isinstance(feature_spec, tf.TypeSpec) or feature_spec.shape.rank != 1:
        raise ValueError(
            f"{name}: a feature must be one vector, got feature_spec {feature_spec}: give an encoding_net and the "
            "spec of its output."
        )
    return tf.TensorSpec(feature_spec.shape, tf.float32)


def mlp(input_spec: Nest, hidden_size: int, output_size: int, name: str) -> Any:
    """A network of one hidden layer over the concatenation of a list of vectors, or over one vector."""
    from tf_agents.networks.sequential import Sequential

    layers: list[tf.keras.layers.Layer] = [
        tf.keras.layers.Dense(hidden_size, tf.nn.relu),
        tf.keras.layers.Dense(output_size),
    ]
    if isinstance(input_spec, list):
        layers.insert(0, tf.keras.layers.Concatenate())
    return Sequential(layers, input_spec=input_spec, name=name)
