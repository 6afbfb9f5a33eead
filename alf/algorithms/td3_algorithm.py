"""Twin delayed deep deterministic policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.critic_algorithm import refuse
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.exploration import Exploration, GaussianNoise, clip_to_spec, half_range
from alf.algorithms.transitions import Transitions
from alf.data_structures import Nest, TrainingInfo
from alf.utils import rng

# Arguments of DDPG that TD3 decides itself.
_DECIDED = {
    **dict.fromkeys(("ou_stddev", "ou_damping"), "set exploration = @OUNoise()"),
    **dict.fromkeys(
        ("target_update_period", "target_update_unit"), "targets move with the actor: set actor_update_period"
    ),
}


@gin.configurable(module="alf")
class Td3Algorithm(DdpgAlgorithm):
    """DDPG with two critics, smoothed target actions and a delayed actor; Fujimoto et al. 2018, arXiv:1802.09477."""

    num_critics = 2

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        actor_network: Any,
        critic_network: Any,
        critic_loss: Any = None,
        target_update_tau: float = 0.005,
        actor_update_period: int = 2,
        target_policy_noise: float = 0.2,
        target_policy_noise_clip: float = 0.5,
        dqda_clipping: float | None = None,
        actor_optimizer: Any = None,
        critic_optimizer: Any = None,
        gradient_clipping: float | None = None,
        debug_summaries: bool = False,
        name: str = "Td3Algorithm",
        *,
        exploration: Exploration | Mapping[str, Exploration] | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `DdpgAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: bounded float spec of one action.
          actor_network: a network whose output is an action within its bounds, or a function that makes it.
          critic_network: one whose input is (observation, action) and whose output a value [B]; copied for the second
            critic and the targets.
          target_update_tau: share of the way that the target networks go each time.
          actor_update_period: updates of the critics for each of the actor and the target networks.
          target_policy_noise: standard deviation of the noise on target actions, in halves of the action's range.
          target_policy_noise_clip: that noise is clipped to [-target_policy_noise_clip, target_policy_noise_clip].
          actor_optimizer: trains the actor.
          critic_optimizer: trains both critics; another object than `actor_optimizer`.
          exploration: noise of acting, `GaussianNoise()` by default; one, or a mapping from the kind of action to one.

        Raises:
          ValueError: the optimisers are not two, the period is below 1, a noise is below 0, an argument of DDPG is given
            that has no effect here, or as `DdpgAlgorithm`.
        """
        if actor_optimizer is None or critic_optimizer is None or actor_optimizer is critic_optimizer:
            raise ValueError(
                f"{name} updates the actor less often than the critics: give actor_optimizer and critic_optimizer, two objects."
            )
        refuse(name, kwargs, _DECIDED)
        if not (target_policy_noise >= 0.0 and target_policy_noise_clip >= 0.0):
            raise ValueError(
                f"{name} needs target_policy_noise and target_policy_noise_clip >= 0; got {target_policy_noise} and "
                f"{target_policy_noise_clip}."
            )
        super().__init__(
            observation_spec,
            action_spec,
            actor_network,
            critic_network,
            # Said here, so that bindings of DdpgAlgorithm's are not taken, and are listed as without use.
            ou_stddev=0.0,
            ou_damping=0.0,
            target_update_unit="updates",
            critic_loss=critic_loss,
            target_update_tau=target_update_tau,
            target_update_period=actor_update_period,
            dqda_clipping=dqda_clipping,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            gradient_clipping=gradient_clipping,
            debug_summaries=debug_summaries,
            name=name,
            exploration=GaussianNoise() if exploration is None else exploration,
            **kwargs,
        )
        self._delayed_optimizer = actor_optimizer
        self._noise = target_policy_noise
        self._noise_clip = target_policy_noise_clip

    def next_action(self, training_info: TrainingInfo, rows: Transitions) -> tf.Tensor:
        """The target actor's action with clipped noise, within its bounds."""
        action = super().next_action(training_info, rows)
        # One noise for each recorded row, whichever look at it.
        recorded = tf.random.stateless_normal(tf.shape(training_info.action), rng.next_seed())
        noise = self._noise * rows.following(recorded)
        noise = tf.clip_by_value(noise, -self._noise_clip, self._noise_clip)
        return clip_to_spec(action + noise * half_range(self._action_spec), self._action_spec)

    def value_of_acting(self, training_info: TrainingInfo, rows: Transitions, climbed: bool = True) -> tf.Tensor:
        """See `DdpgAlgorithm`; in updates that leave the actor alone there is no gradient to be computed."""
        value = super().value_of_acting
        return tf.cond(
            self._update_targets.due(),
            lambda: value(training_info, rows, climbed),
            lambda: value(training_info, rows, climbed=False),
        )

    def apply_gradients(self, optimizer: Any, grads_and_vars: list[tuple[tf.Tensor | None, tf.Variable]]) -> None:
        """Leaves the actor and its optimiser's moments alone but for every `actor_update_period`-th update."""
        apply_now = super().apply_gradients
        if optimizer is not self._delayed_optimizer:
            apply_now(optimizer, grads_and_vars)
            return

        def apply() -> tf.Tensor:
            apply_now(optimizer, grads_and_vars)
            return tf.zeros([])

        # The target networks move when the actor has moved.
        tf.cond(self._update_targets.due(), apply, lambda: tf.zeros([]))
