"""A learner of action values, as small as it gets, for tests of replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import LossInfo, PolicyStep
from alf.utils import rng


class QInfo(NamedTuple):
    values: Any


class TinyQ(OffPolicyAlgorithm):
    """One linear layer; acts epsilon-greedily, learns by n-step Q-learning over the rows of a sequence."""

    def __init__(
        self, observation_spec: Any, action_spec: Any, debug_summaries: bool = False, lr: float = 1e-2
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            optimizer=tf.keras.optimizers.legacy.Adam(lr),
            debug_summaries=debug_summaries,
            name="TinyQ",
        )
        self._actions = int(action_spec.maximum.max()) + 1
        self._layer = tf.keras.layers.Dense(
            self._actions, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=1)
        )
        self._layer.build([None, observation_spec.shape[0]])

    def _q(self, observation: tf.Tensor) -> tf.Tensor:
        return self._layer(observation)

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        best = tf.argmax(self._q(time_step.observation), -1, tf.int64)
        shape = tf.shape(best)
        other = tf.random.stateless_uniform(shape, rng.next_seed(), 0, self._actions, tf.int64)
        explore = tf.random.stateless_uniform(shape, rng.next_seed()) < 0.2
        action = tf.where(explore, other, best)
        return PolicyStep(tf.reshape(action, [-1, *self.action_spec.shape]), (), ())

    def train_step(self, inputs: Any, state: Any = None) -> PolicyStep:
        return PolicyStep((), (), QInfo(self._q(inputs.observation)))

    def calc_loss(self, training_info: Any) -> LossInfo:
        values = training_info.info.values
        action = tf.reshape(training_info.action, tf.shape(training_info.reward))
        chosen = tf.reduce_sum(values * tf.one_hot(action, self._actions), -1)
        following = tf.stop_gradient(tf.reduce_max(values, -1))[1:]
        target = training_info.reward[1:] + 0.9 * training_info.discount[1:] * following
        error = tf.concat([target - chosen[:-1], tf.zeros_like(chosen[:1])], 0)
        return LossInfo(tf.square(error), priority=tf.stop_gradient(tf.abs(error[0])))
