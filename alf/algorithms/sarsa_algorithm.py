"""SARSA with a deterministic actor."""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.critic_algorithm import refuse
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.transitions import Transitions
from alf.data_structures import Experience, Nest, StepType, TrainingInfo, namedtuple
from alf.networks.calling import call_network, learning
from alf.utils.common import is_stateless, only_true

SarsaInfo = namedtuple("SarsaInfo", ["next_action"], default_value=())


@gin.configurable(module="alf")
class SarsaAlgorithm(DdpgAlgorithm):
    """Learns the value of what is done, not of what would be best (Rummery and Niranjan 1994); the actor climbs it.

    Its targets suppose the action that was really taken next, and the actor's where there is none: behind the last step of a
    fresh segment, which is handed over before, and at the last step of an episode that was cut.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        actor_network: Any,
        critic_network: Any,
        gamma: float = 0.99,
        ou_stddev: float = 0.2,
        ou_damping: float = 0.15,
        actor_optimizer: Any = None,
        critic_optimizer: Any = None,
        target_update_tau: float = 0.05,
        target_update_period: int = 10,
        dqda_clipping: float | None = None,
        gradient_clipping: float | None = None,
        debug_summaries: bool = False,
        name: str = "SarsaAlgorithm",
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `DdpgAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: bounded float spec of one action.
          actor_network: a network whose output is an action within its bounds, or a function that makes it.
          critic_network: one whose input is (observation, action) and whose output a value [B]; copied for the target.
          gamma: multiplies the environment's discount.

        Raises:
          ValueError: a network is recurrent, a `critic_loss` is given, or as `DdpgAlgorithm`.
        """
        refuse(name, kwargs, {"critic_loss": "its loss is OneStepTDLoss: set gamma, and the rest by gin"})
        super().__init__(
            observation_spec,
            action_spec,
            actor_network,
            critic_network,
            ou_stddev=ou_stddev,
            ou_damping=ou_damping,
            critic_loss=OneStepTDLoss(gamma, **only_true(debug_summaries=debug_summaries)),
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            dqda_clipping=dqda_clipping,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            **kwargs,
        )
        if not is_stateless(self.learning_state_spec):
            raise ValueError(f"{name} takes feed-forward networks only, and one is recurrent: use DDPG, TD3 or SAC.")

    @property
    def one_step_means_a_transition(self) -> bool:
        """True: in ALF's earlier releases a step brought the one before it along, in its state."""
        return True

    def preprocess_experience(self, experience: Experience) -> Experience:
        """Notes for each row the action of the row that follows."""
        if experience.bootstrap == ():
            final = experience.action[:, -1]  # stands in for what is not known: the last row is only looked at
        else:
            final = experience.bootstrap.action
            if isinstance(final, tuple):
                final, _ = self._action(experience.bootstrap.time_step)
        following = tf.concat([experience.action[:, 1:], final[:, tf.newaxis]], 1)
        return experience._replace(rollout_info=SarsaInfo(next_action=tf.stop_gradient(following)))

    def loss_info_spec(self, rollout_info_spec: Nest) -> Nest:
        """What `preprocess_experience` notes."""
        return SarsaInfo(next_action=tf.TensorSpec(self._action_spec.shape, self._action_spec.dtype))

    def next_action(self, training_info: TrainingInfo, rows: Transitions) -> tf.Tensor:
        """The action that was taken; the actor's at the last step of an episode."""
        noted = training_info.rollout_info.next_action
        # At each row of the one behind it.
        taken = rows.following(tf.concat([noted[:1], noted[:-1]], 0))
        seen, step_type = rows.following((training_info.info.observation, training_info.step_type))
        with learning(False):
            own = call_network(self._actor_network, seen, step_type=step_type)[0]
        ended = tf.reshape(tf.equal(step_type, StepType.LAST), [-1] + [1] * (taken.shape.rank - 1))
        return tf.where(ended, own, taken)
