"""The algorithm of the small runs in these tests."""

from __future__ import annotations

import tensorflow as tf

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss


def make_algorithm(observation_spec, action_spec, debug_summaries=False):
    """PPO with networks of eight units."""
    from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
    from tf_agents.networks.value_network import ValueNetwork

    return PPOAlgorithm(
        observation_spec,
        action_spec,
        actor_network=ActorDistributionNetwork(observation_spec, action_spec, fc_layer_params=(8,)),
        value_network=ValueNetwork(observation_spec, fc_layer_params=(8,)),
        loss_class=PPOLoss,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        debug_summaries=debug_summaries,
    )


def fail_after(trainer, iteration):
    """Has an initialised trainer raise MemoryError when an iteration has been reported, before it can be saved."""
    after = trainer._report.after_iteration

    def fail():
        after()
        if trainer.counters.iterations == iteration:
            raise MemoryError("on purpose")

    trainer._report.after_iteration = fail
