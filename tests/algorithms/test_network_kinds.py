"""Networks of another kind than an algorithm needs are told when it is made."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.categorical_q_network import CategoricalQNetwork
from tf_agents.networks.network import Network
from tf_agents.networks.q_network import QNetwork
from tf_agents.networks.sequential import Sequential
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.categorical_dqn_algorithm import CategoricalDqnAlgorithm
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf.algorithms.td3_algorithm import Td3Algorithm
from alf.networks.actor_network import ActorNetwork
from alf.networks.critic_network import CriticNetwork

OBS = tf.TensorSpec([3], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 3)


def _adams() -> dict[str, Any]:
    adam = tf.keras.optimizers.legacy.Adam
    return {"actor_optimizer": adam(), "critic_optimizer": adam()}


class _Own(Network):
    """What `gives` makes of the inputs and a state; without a name."""

    def __init__(self, gives: Any) -> None:
        super().__init__(OBS, state_spec=(), name="own")
        self._gives = gives
        self._layer = tf.keras.layers.Dense(4)

    def call(self, inputs: tf.Tensor, step_type: Any = None, network_state: Any = ()) -> Any:
        return self._gives(self._layer(inputs), network_state)


def _pair() -> Any:
    return CriticNetwork((OBS, BOX))


_NEEDS_ACTION = "needs an actor that gives an action, of shape [2], such as ActorNetwork; "
_NEEDS_FOUR = "needs a network that gives the value of each of the 4 actions, such as QNetwork; "


@pytest.mark.parametrize("kind", [DdpgAlgorithm, Td3Algorithm, SarsaAlgorithm])
def test_deterministic_actors_give_actions(kind: Any) -> None:
    with pytest.raises(ValueError) as told:
        kind(OBS, BOX, ActorDistributionNetwork(OBS, BOX), _pair(), **_adams())
    said = "ActorDistributionNetwork gives distributions for each row."
    assert str(told.value).splitlines()[0] == f"{kind.__name__} {_NEEDS_ACTION}{said}"
    with pytest.raises(ValueError, match=r"ValueNetwork gives values of shape \(\) for each row"):
        kind(OBS, BOX, ValueNetwork(OBS), _pair(), **_adams())


def test_critics_of_ddpg_judge_an_action() -> None:
    with pytest.raises(
        ValueError, match=r"needs a critic of \(observation, action\), .*; got ValueNetwork of inputs \[3\]"
    ):
        DdpgAlgorithm(OBS, BOX, ActorNetwork(OBS, BOX), ValueNetwork(OBS))


def test_the_actor_of_sac_gives_distributions() -> None:
    with pytest.raises(ValueError, match=r"needs an actor that gives distributions.*; ActorNetwork gives values of sh"):
        SacAlgorithm(OBS, BOX, ActorNetwork(OBS, BOX), _pair())


@pytest.mark.parametrize(
    ("critic", "said"),
    [
        (lambda: ValueNetwork(OBS), _NEEDS_FOUR + "ValueNetwork gives values of shape () for each row."),
        (lambda: CriticNetwork((OBS, CHOICE)), "with discrete actions needs a critic of observations, which gives the"),
    ],
)
def test_critics_of_discrete_sac_judge_all_actions(critic: Any, said: str) -> None:
    with pytest.raises(ValueError) as told:
        SacAlgorithm(OBS, CHOICE, ActorDistributionNetwork(OBS, CHOICE), critic)
    assert str(told.value).startswith(f"SacAlgorithm {said}")


@pytest.mark.parametrize(
    ("network", "gives"),
    [
        (lambda: ValueNetwork(OBS), "values of shape ()"),
        (lambda: ActorDistributionNetwork(OBS, CHOICE), "distributions"),
        (lambda: CategoricalQNetwork(OBS, CHOICE), "values of shape (4, 51)"),
        (lambda: QNetwork(OBS, tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)), "values of shape (2,)"),
    ],
)
def test_the_network_of_dqn_judges_all_actions(network: Any, gives: str) -> None:
    with pytest.raises(ValueError) as told:
        DqnAlgorithm(OBS, CHOICE, network)
    assert str(told.value).startswith(f"DqnAlgorithm {_NEEDS_FOUR}")
    assert str(told.value).splitlines()[0].endswith(f" gives {gives} for each row.")


def test_the_network_of_c51_gives_logits() -> None:
    with pytest.raises(
        ValueError, match=r"logits for each of the 4 actions, .*; QNetwork gives values of shape \(4,\)"
    ):
        CategoricalDqnAlgorithm(OBS, CHOICE, QNetwork(OBS, CHOICE))


def test_a_pair_of_observations_is_no_observation_and_action() -> None:
    """The critic of discrete actions takes what the environment observes, whatever nest that is."""
    two = (OBS, OBS)

    def merged() -> dict[str, Any]:
        layers = tuple(tf.keras.layers.Dense(2) for _ in two)
        return {"preprocessing_layers": layers, "preprocessing_combiner": tf.keras.layers.Concatenate()}

    actor, critic = ActorDistributionNetwork(two, CHOICE, **merged()), QNetwork(two, CHOICE, **merged())
    assert SacAlgorithm(two, CHOICE, actor, critic).name == "SacAlgorithm"


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ("QNetwork", r"A network of TF-Agents' kind is needed, got 'QNetwork': make one, such as @QNetwork\(\)"),
        (lambda: tf.keras.Sequential([tf.keras.layers.Dense(4)]), r"is needed, got <.*Sequential.*>: make one"),
        (
            lambda: Sequential([tf.keras.layers.Dense(4)]),
            r"'sequential\w*' fails at its first call: .* no input_tensor_spec",
        ),
        (
            lambda: _Own(lambda output, state: output),
            r"_Own 'own' fails .* has to give the pair \(output, network_state\)",
        ),
        (
            lambda: _Own(lambda output, state: (output, state)),
            r"own cannot be copied, .* `name`, which its __init__ has to",
        ),
    ],
)
def test_what_is_no_network_says_what_one_is(network: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DqnAlgorithm(OBS, CHOICE, network)


@pytest.mark.parametrize("loss", [OneStepTDLoss, 3])
def test_what_is_no_loss_of_a_critic_says_so(loss: Any) -> None:
    with pytest.raises(
        ValueError, match=r"DqnAlgorithm.critic_loss=.* is not the loss of a critic: make one, in gin @One"
    ):
        DqnAlgorithm(OBS, CHOICE, QNetwork(OBS, CHOICE), critic_loss=loss)
