"""Exploration by random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894)."""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from alf.algorithms import curiosity
from alf.algorithms.curiosity import CuriosityAlgorithm, CuriosityInfo, Transition
from alf.data_structures import AlgorithmStep, Nest
from alf.networks.calling import learning
from alf.utils.normalizers import AdaptiveNormalizer

# The paper's.
_OBSERVATION_CLIP = 5.0


@gin.configurable(module="alf")
class RNDAlgorithm(CuriosityAlgorithm):
    """Rewards observations on which a trained network differs from a random one: those not seen often.

    Reward and loss are the sum of the squared differences of the two networks' outputs at the next observation.
    """

    def __init__(
        self,
        target_net: Any,
        predictor_net: Any,
        encoder_net: Any = None,
        reward_adapt_speed: float | None = None,
        observation_adapt_speed: float | None = None,
        observation_spec: Any = None,
        learning_rate: float | None = None,
        clip_value: float = -1.0,
        stacked_frames: bool = True,
        name: str = "RNDAlgorithm",
    ) -> None:
        """Creates the algorithm.

        Args:
          target_net: the random feed-forward TF-Agents network; it is never trained.
          predictor_net: the network that learns to give the same outputs.
          encoder_net: applied before both of them; never trained.
          reward_adapt_speed: see `CuriosityAlgorithm`.
          observation_adapt_speed: speed of the AdaptiveNormalizer of the observations, which are then clipped to
            [-5, 5]; None leaves them as they are.
          observation_spec: spec of one observation, needed for that.
          learning_rate: of an Adam optimiser for the predictor only; None trains it with the parent's.
          clip_value: above 0, rewards are clipped to [-clip_value, clip_value], after normalising.
          stacked_frames: of images, only the last channel is looked at.
          name: name of the algorithm.

        Raises:
          ValueError: `observation_adapt_speed` without `observation_spec`.
        """
        optimizer = None if learning_rate is None else tf.keras.optimizers.legacy.Adam(learning_rate)
        super().__init__(reward_adapt_speed, clip_value, optimizer, name)
        self._stacked_frames = stacked_frames
        self._observation_normalizer = None
        if observation_adapt_speed is not None:
            if observation_spec is None:
                raise ValueError(
                    f"{name}: observation_adapt_speed needs observation_spec, e.g. @get_observation_spec()."
                )
            spec = tf.nest.map_structure(
                lambda s: tf.TensorSpec([*s.shape[:-1], 1] if self._is_stack(s.shape.rank) else s.shape, s.dtype),
                observation_spec,
            )
            self._observation_normalizer = AdaptiveNormalizer(spec, speed=observation_adapt_speed)
        self._target_net = target_net
        self._predictor_net = predictor_net
        self._encoder_net = encoder_net
        for network in (target_net, predictor_net, encoder_net):
            if network is not None:
                network.create_variables()

    def _trainable_attributes_to_ignore(self) -> list[str]:
        return ["_target_net", "_encoder_net"]

    def _is_stack(self, rank: int) -> bool:
        return self._stacked_frames and rank == 3

    def _last_frames(self, observation: Nest) -> Nest:
        return tf.nest.map_structure(lambda o: o[..., -1:] if self._is_stack(o.shape.rank - 1) else o, observation)

    def update_statistics(self, inputs: Transition, valid: tf.Tensor) -> None:
        if self._observation_normalizer is not None:
            self._observation_normalizer.update(self._last_frames(inputs.next_observation), valid)

    def train_step(self, inputs: Transition, state: Nest = None) -> AlgorithmStep:
        observation = self._last_frames(inputs.next_observation)
        if self._observation_normalizer is not None:
            observation = self._observation_normalizer.normalize(observation, _OBSERVATION_CLIP)
        with learning(False):
            embedding = curiosity.apply(self._encoder_net, tf.nest.map_structure(tf.stop_gradient, observation))
            embedding = tf.nest.map_structure(tf.stop_gradient, embedding)
            target = tf.stop_gradient(curiosity.apply(self._target_net, embedding))
        error = tf.math.squared_difference(curiosity.apply(self._predictor_net, embedding), target)
        loss = tf.reduce_sum(tf.reshape(error, [tf.shape(error)[0], -1]), -1)
        return AlgorithmStep(info=CuriosityInfo(reward=tf.stop_gradient(loss), losses={"loss": loss}))
