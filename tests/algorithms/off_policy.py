"""Small off-policy algorithms for tests, by name."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.networks import (
    actor_distribution_network,
    categorical_q_network,
    normal_projection_network,
    q_network,
)

from alf.algorithms.categorical_dqn_algorithm import CategoricalDqnAlgorithm
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf.algorithms.td3_algorithm import Td3Algorithm
from alf.networks.actor_network import ActorNetwork
from alf.networks.critic_network import CriticNetwork

CONTINUOUS = ("sac", "ddpg", "td3", "sarsa")
DISCRETE = ("discrete_sac", "dqn", "c51")


def adam(lr: float) -> Any:
    return tf.keras.optimizers.legacy.Adam(lr)


def _normal(spec: Any) -> Any:
    return normal_projection_network.NormalProjectionNetwork(
        spec, state_dependent_std=True, scale_distribution=True, std_transform=tf.exp
    )


def make(
    name: str,
    obs: Any,
    act: Any,
    gamma: float = 0.9,
    layers: tuple[int, ...] | None = (32,),
    lr: float = 1e-2,
    seen: Any = None,
    **kw: Any,
) -> Any:
    """The algorithm `name` with networks of `layers` for the tensor specs of an observation and an action.

    Networks of discrete actions see `seen` of an observation, all of it by default.
    """
    seen = obs if seen is None else seen
    if name == "c51":
        q = categorical_q_network.CategoricalQNetwork(seen, act, num_atoms=21, fc_layer_params=layers)
        limits = {"min_q_value": -2.0, "max_q_value": 10.0, "gamma": gamma}
        return CategoricalDqnAlgorithm(
            obs, act, q, **{**limits, "optimizer": adam(lr), "target_update_period": 10, **kw}
        )
    loss = OneStepTDLoss(gamma)
    critic = lambda: CriticNetwork((obs, act), joint_fc_layer_params=layers)  # noqa: E731
    actor = lambda: ActorNetwork(obs, act, fc_layer_params=layers)  # noqa: E731
    two = {"actor_optimizer": adam(lr), "critic_optimizer": adam(lr)}
    if name == "sac":
        pi = actor_distribution_network.ActorDistributionNetwork(
            obs, act, fc_layer_params=layers, continuous_projection_net=_normal
        )
        return SacAlgorithm(obs, act, pi, critic, **{"critic_loss": loss, **two, "alpha_optimizer": adam(lr), **kw})
    if name == "discrete_sac":
        pi = actor_distribution_network.ActorDistributionNetwork(seen, act, fc_layer_params=layers)
        q = q_network.QNetwork(seen, act, fc_layer_params=layers)
        return SacAlgorithm(obs, act, pi, q, **{"critic_loss": loss, **two, "alpha_optimizer": adam(lr), **kw})
    if name == "ddpg":
        return DdpgAlgorithm(obs, act, actor, critic, **{"critic_loss": loss, **two, **kw})
    if name == "td3":
        return Td3Algorithm(obs, act, actor, critic, **{"critic_loss": loss, **two, "target_update_tau": 0.05, **kw})
    if name == "sarsa":
        return SarsaAlgorithm(obs, act, actor, critic, gamma=gamma, **{**two, "target_update_period": 1, **kw})
    assert name == "dqn"
    q = q_network.QNetwork(seen, act, fc_layer_params=layers)
    return DqnAlgorithm(obs, act, q, **{"critic_loss": loss, "optimizer": adam(lr), "target_update_period": 10, **kw})
