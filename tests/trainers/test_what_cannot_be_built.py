"""Algorithms that do not fit their environment, or are none, are told before anything is built around them."""

from __future__ import annotations

import gin
import pytest

import alf.algorithms.ppo_loss
import alf.trainers.off_policy_trainer  # noqa: F401
from alf.environments.utils import create_environment
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

_CART_POLE = "create_environment.env_name='CartPole-v1'"
_OTHER_ACTOR = (
    "import alf.networks.actor_network",
    "DdpgAlgorithm.actor_network=@o/alf.networks.actor_network.ActorNetwork()",
    "o/alf.networks.actor_network.ActorNetwork.input_tensor_spec=%observation_spec",
    "o/alf.networks.actor_network.ActorNetwork.output_tensor_spec=%action_spec",
)


def _told(example: str, *bindings: str) -> str:
    """The first line of the error of an example with these bindings."""
    gin.clear_config()
    try:
        gin_utils.parse_gin([example], bindings)
        env = create_environment(num_parallel_environments=2, seed=0)
        with pytest.raises(ValueError) as told:
            build_algorithm(TrainerConfig(root_dir="unused"), env)
        env.close()
        return str(told.value).splitlines()[0]
    finally:
        gin.clear_config()


@pytest.mark.parametrize("example", ["ddpg_pendulum", "td3_pendulum", "sarsa_pendulum", "trac_ddpg_pendulum"])
def test_deterministic_actors_need_continuous_actions(example: str) -> None:
    told = _told(example, _CART_POLE)
    assert told.startswith("Deterministic actors, as of DDPG, TD3 and SARSA, need continuous actions, got BoundedArray")
    assert told.endswith(": use SAC, DQN or PPO.")


def test_the_actor_of_alf_says_so_too() -> None:
    told = _told("ddpg_pendulum", _CART_POLE, *_OTHER_ACTOR)
    assert told.startswith("A deterministic actor gives continuous actions only, not [BoundedTensorSpec(")
    assert told.endswith(": use DQN, SAC or PPO.")


@pytest.mark.parametrize("where", ["TrainerConfig.algorithm_ctor", "Agent.rl_algorithm_cls"])
def test_a_loss_is_no_algorithm(where: str) -> None:
    told = _told("ppo_cart_pole", f"{where}=@PPOLoss")
    assert told == f"{where}=PPOLoss makes no algorithm: bind it to one, such as @SacAlgorithm."
