"""Small off-policy algorithms with recurrent networks for tests, by name."""

from __future__ import annotations

from typing import Any

from tf_agents.agents.ddpg import actor_rnn_network, critic_rnn_network
from tf_agents.networks import actor_distribution_rnn_network, q_rnn_network

from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.td3_algorithm import Td3Algorithm
from tests.algorithms.off_policy import _normal, adam

CONTINUOUS = ("sac", "ddpg", "td3")
DISCRETE = ("discrete_sac", "dqn")


def make(
    name: str, obs: Any, act: Any, gamma: float = 0.9, size: int = 4, lr: float = 1e-2, seen: Any = None, **kw: Any
) -> Any:
    """The algorithm `name` whose networks all have an LSTM of `size`, for specs of an observation and an action.

    Networks of discrete actions see `seen` of an observation, all of it by default.
    """
    seen = obs if seen is None else seen
    sizes = {"input_fc_layer_params": (size,), "lstm_size": (size,), "output_fc_layer_params": None}
    loss = {"critic_loss": OneStepTDLoss(gamma)}
    two = {"actor_optimizer": adam(lr), "critic_optimizer": adam(lr), **loss}
    distribution = actor_distribution_rnn_network.ActorDistributionRnnNetwork
    if name in CONTINUOUS:
        critic = critic_rnn_network.CriticRnnNetwork(
            (obs, act),
            observation_fc_layer_params=None,
            action_fc_layer_params=None,
            joint_fc_layer_params=(size,),
            lstm_size=(size,),
            output_fc_layer_params=None,
        )
        if name == "sac":
            actor = distribution(obs, act, continuous_projection_net=_normal, **sizes)
            return SacAlgorithm(obs, act, actor, critic, **{**two, "alpha_optimizer": adam(lr), **kw})
        actor = actor_rnn_network.ActorRnnNetwork(obs, act, **sizes)
        return (DdpgAlgorithm if name == "ddpg" else Td3Algorithm)(obs, act, actor, critic, **{**two, **kw})
    q = q_rnn_network.QRnnNetwork(seen, act, **sizes)
    if name == "discrete_sac":
        actor = distribution(seen, act, **sizes)
        return SacAlgorithm(obs, act, actor, q, **{**two, "alpha_optimizer": adam(lr), **kw})
    assert name == "dqn"
    return DqnAlgorithm(obs, act, q, **{**loss, "optimizer": adam(lr), "target_update_period": 10, **kw})
