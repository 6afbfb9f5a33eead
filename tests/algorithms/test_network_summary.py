"""The printed summary of networks: every one once, its size, and who trains it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.networks import encoding_network
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.network_summary import network_summary, networks_of
from alf.algorithms.parameter_noise import ParameterNoise
from alf.environments import suite_agents
from alf.environments.utils import create_environment
from tests.algorithms.networks import feed_forward
from tests.algorithms.off_policy import adam, make

OBS = tensor_spec.TensorSpec([3], tf.float32)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 4)
BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)


def test_targets_and_copies_are_told_from_what_is_trained() -> None:
    algorithm = make("dqn", OBS, CHOICE, layers=(7,), parameter_noise=ParameterNoise())
    one = 3 * 7 + 7 + 7 * 5 + 5
    lines = network_summary(algorithm).splitlines()
    heads = [line.split() for line in lines if not line.startswith("  ")]
    assert heads.pop() == ["all", "networks", str(3 * one), str(one), "trained"]
    found = {head[0]: head[1:] for head in heads}
    assert found.pop("parameter_noise/shaken") == ["(QNetwork)", str(one), "not", "trained"]
    assert found.pop("target_networks/0") == ["(QNetwork)", str(one), "not", "trained"]
    assert list(found.values()) == [["(QNetwork)", str(one), "Adam"]]
    shapes = [line.split("[")[1].split("]")[0] for line in lines if line.startswith("  ")]
    assert shapes == ["3, 7", "7", "7, 5", "5"] * 3
    assert len({line.rfind(" ") for line in lines if line.startswith("  ")}) <= 2


def test_all_networks_of_parts_are_found_once_and_in_the_same_order() -> None:
    seen = tensor_spec.TensorSpec([4], tf.float32)
    encoder = encoding_network.EncodingNetwork(OBS, fc_layer_params=(4,))
    agent = Agent(
        OBS,
        CHOICE,
        lambda **_: ActorCriticAlgorithm(seen, CHOICE, *feed_forward(seen, CHOICE)),
        encoding_network=encoder,
        optimizer=adam(1e-3),
    )
    places = [place for place, _ in networks_of(agent)]
    assert places == ["encoding_network", "rl_algorithm/actor_network", "rl_algorithm/value_network"]
    total = sum(int(np.prod(v.shape)) for v in agent.trainable_variables)
    assert network_summary(agent).splitlines()[-1].split() == ["all", "networks", f"{total:,}", f"{total:,}", "trained"]
    algorithm = make("td3", OBS, BOX)
    networks = [network for _, network in networks_of(algorithm)]
    assert len(networks) == len({id(network) for network in networks}) == 6
    assert [place for place, _ in networks_of(algorithm)] == [place for place, _ in networks_of(make("td3", OBS, BOX))]


def test_a_behavior_that_does_not_learn_is_trained_by_nobody() -> None:
    """Though its algorithm has an optimizer, as an opponent in self-play has."""
    env = create_environment("pursuit", env_load_fn=suite_agents.load, num_parallel_environments=1, seed=1)
    specs = [tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec())]
    env.close()

    def dqn(observation_spec, action_spec, debug_summaries=False):
        return make("dqn", observation_spec, action_spec, layers=(7,))

    pair = Behaviors(*specs, {"chaser": Behavior(dqn, trained=False), "runner": Behavior(dqn)})
    lines = network_summary(pair).splitlines()
    kinds = sorted(" ".join(line.split()[3:]) for line in lines[:-1] if not line.startswith("  "))
    assert kinds == ["Adam", "not trained", "not trained", "not trained"]
    trained = sum(int(np.prod(v.shape)) for _, own in pair.by_name["runner"].optimized_variables() for v in own)
    assert lines[-1].split()[-2:] == [f"{trained:,}", "trained"]
