"""Skills without a reward: diversity is all you need (Eysenbach et al. 2018, https://arxiv.org/abs/1802.06070)."""

from __future__ import annotations

import math
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms import curiosity
from alf.algorithms.curiosity import CuriosityAlgorithm, CuriosityInfo, Transition
from alf.data_structures import AlgorithmStep, Nest
from alf.utils.common import check_sizes


@gin.configurable(module="alf")
class DIAYNAlgorithm(CuriosityAlgorithm):
    """Rewards states from which the skill that is being followed can be told.

    The skill is the one-hot goal of a `RandomCategoricalGoalGenerator`. The loss is the negative log-probability that a
    discriminator gives to it at the next observation; the reward, log q(z | s') - log p(z), is at most log K of K skills.
    """

    def __init__(
        self,
        num_of_skills: int,
        feature_spec: Any,
        hidden_size: int = 256,
        reward_adapt_speed: float | None = 8.0,
        encoding_net: Any = None,
        discriminator_net: Any = None,
        name: str = "DIAYNAlgorithm",
    ) -> None:
        """Creates the algorithm.

        Args:
          num_of_skills: how many skills there are.
          feature_spec: spec of one feature vector: of what `encoding_net` gives, or of the observation without one.
          hidden_size: size of the hidden layer of the default discriminator.
          reward_adapt_speed: see `CuriosityAlgorithm`.
          encoding_net: feed-forward TF-Agents network from the observation (without goal) to the feature.
          discriminator_net: network from the feature to the logits of the skills.
          name: name of the algorithm.

        Raises:
          ValueError: a size is below 1; or a feature is no vector, and there is no `discriminator_net` that takes it.
        """
        check_sizes(num_of_skills=num_of_skills, hidden_size=hidden_size)
        super().__init__(reward_adapt_speed, name=name)
        self._num_of_skills = num_of_skills
        self._encoding_net = encoding_net
        self._discriminator_net = discriminator_net or curiosity.mlp(
            curiosity.vector_spec(name, feature_spec), hidden_size, num_of_skills, "discriminator_net"
        )
        for network in (encoding_net, self._discriminator_net):
            if network is not None:
                network.create_variables()

    def check_goal(self, goal_spec: Nest) -> None:
        """Raises ValueError where goals of this spec are no skills, one-hot and as many as there are."""
        of_one = isinstance(goal_spec, (tf.TypeSpec, tf.Tensor))
        if not of_one or goal_spec.shape[-1:].as_list() != [self._num_of_skills]:
            got = goal_spec if of_one or goal_spec else "none"
            raise ValueError(
                f"{self.name} needs one-hot skills of {self._num_of_skills} as goals, got {got}: "
                f"set Agent.goal_generator to a RandomCategoricalGoalGenerator with num_of_goals={self._num_of_skills}."
            )

    def train_step(self, inputs: Transition, state: Nest = None) -> AlgorithmStep:
        self.check_goal(inputs.goal)
        feature = curiosity.apply(self._encoding_net, inputs.next_observation)
        logits = curiosity.apply(self._discriminator_net, feature)
        loss = tf.nn.softmax_cross_entropy_with_logits(inputs.goal, logits)
        # Less the chance of the skill: where the state tells nothing, there is nothing to gain by ending the episode.
        reward = math.log(self._num_of_skills) - tf.stop_gradient(loss)
        return AlgorithmStep(info=CuriosityInfo(reward=reward, losses={"loss": loss}))
