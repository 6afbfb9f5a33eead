"""What gives an agent goals to follow."""

from __future__ import annotations

import gin
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep, Experience, LossInfo, Nest, PolicyStep, TrainingInfo, namedtuple
from alf.utils import rng
from alf.utils.common import check_sizes

GoalState = namedtuple("GoalState", ["goal"], default_value=())
GoalInfo = namedtuple("GoalInfo", ["goal", "reward", "loss"], default_value=())
GoalInfo.__doc__ = """What a goal generator records, [B, ...].

`goal`: what the policy follows in this step; `reward` float32: added to the reward of the step, `()` for none; `loss`
float32: what `calc_loss` needs, `()` for none.
"""


@gin.configurable(module="alf")
class RandomCategoricalGoalGenerator(RLAlgorithm):
    """A new goal at the beginning of each episode, one-hot, all equally likely."""

    def __init__(self, observation_spec: Nest, num_of_goals: int, name: str = "RandomCategoricalGoalGenerator") -> None:
        """Creates the generator.

        Args:
          observation_spec: nest of specs of one observation; goals do not depend on it.
          num_of_goals: how many goals there are.
          name: name of the algorithm.

        Raises:
          ValueError: there is no goal.
        """
        check_sizes(num_of_goals=num_of_goals)
        goal_spec = tensor_spec.BoundedTensorSpec((num_of_goals,), tf.float32, 0.0, 1.0, "goal")
        super().__init__(
            observation_spec,
            goal_spec,
            train_state_spec=GoalState(goal=tf.TensorSpec((num_of_goals,), tf.float32)),
            name=name,
        )
        self._num_of_goals = num_of_goals

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The goal of the episode as action, [B, num_of_goals]."""
        logits = tf.zeros([1, self._num_of_goals])
        rows = tf.shape(time_step.step_type)[0]
        chosen = tf.random.stateless_categorical(logits, rows, rng.next_seed())[0]
        fresh = tf.ensure_shape(tf.one_hot(chosen, self._num_of_goals), state.goal.shape)
        goal = tf.where(time_step.is_first()[:, tf.newaxis], fresh, state.goal)
        return PolicyStep(action=goal, state=GoalState(goal=goal), info=GoalInfo(goal=goal))

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The recorded goal; nothing is learned."""
        goal = inputs.rollout_info.goal
        return PolicyStep(action=goal, state=GoalState(goal=goal), info=GoalInfo(goal=goal))

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """Nothing."""
        return LossInfo()
