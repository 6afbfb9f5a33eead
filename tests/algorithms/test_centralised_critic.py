"""A critic that sees what the whole group sees, beside an actor that sees its own part alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.predictions import get_predictions
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment, suite_agents
from alf.networks.combining import FlattenAndConcatenate


def _make(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> PPOAlgorithm:
    return PPOAlgorithm(
        observation_spec,
        action_spec,
        ActorDistributionNetwork(observation_spec["own"], action_spec, fc_layer_params=(16,)),
        ValueNetwork(observation_spec, preprocessing_combiner=FlattenAndConcatenate(), fc_layer_params=(16,)),
        loss_class=PPOLoss,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        actor_field="own",
    )


def _environment() -> Any:
    load = lambda name: suite_agents.load(name, with_group=True, share_reward=True)  # noqa: E731
    return create_environment("spread", load, num_parallel_environments=4, seed=1)


def test_the_actor_sees_its_own_part_and_the_critic_all() -> None:
    env = _environment()
    specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    algorithm = Behaviors(*specs, {"*": Behavior(_make)})
    first = env.reset().observation["agent"]["observation"]
    seen = tf.nest.map_structure(lambda x: tf.constant(x[:, 0]), first)
    others = {**seen, "group": seen["group"] + 1.0}
    mine = {**seen, "own": seen["own"] + 1.0}
    child = algorithm.by_name["agent"]
    for kind, changed, equal in (
        ("action_probabilities", others, True),
        ("action_probabilities", mine, False),
        ("value", others, False),
        ("value", mine, False),
    ):
        before, after = get_predictions(child, seen, kind).numpy(), get_predictions(child, changed, kind).numpy()
        assert np.allclose(before, after, atol=1e-7) == equal, kind
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=1)
    try:
        driver.run()
        weights = [v.numpy() for v in child.trainable_variables]
        algorithm.train(mini_batch_size=4)
    finally:
        driver.stop()
    assert all(not np.array_equal(a, b.numpy()) for a, b in zip(weights, child.trainable_variables, strict=True))


def test_a_nest_becomes_one_tensor_in_its_order() -> None:
    nest = {"b": tf.constant([[1, 2], [3, 4]]), "a": tf.constant([[[5.0], [6.0]], [[7.0], [8.0]]])}
    np.testing.assert_array_equal(FlattenAndConcatenate()(nest), [[5, 6, 1, 2], [7, 8, 3, 4]])
