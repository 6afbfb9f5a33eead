"""What acts, steps and draws is for the processors, whatever GPU there is, and what learns is for that.

Where there is one these would be their own tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.agent import Agent
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.drivers.unroll import Unroller
from alf.environments import create_environment
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.uniform_replay import UniformReplay
from alf.utils import common, rng
from alf.utils.action_masks import split_mask
from alf.utils.common import image_scale_transformer
from alf.utils.devices import HOST
from tests.algorithms import networks
from tests.algorithms.off_policy import DISCRETE, make
from tests.replay.streams import SPEC

# What stands for an argument or a result.
_NOWHERE = ("Placeholder", "NoOp", "Identity")


def _elsewhere(graph: tf.Graph) -> set[str]:
    """Operations of a traced function that are not for the processors; the body of a loop is where the loop is."""
    nodes = graph.get_operations()
    assert len(nodes) > 5
    return {n.type for n in nodes if n.type not in _NOWHERE and not n.device.upper().endswith(HOST.upper()[1:])}


def _check(unroller: Unroller) -> None:
    for function in unroller._functions.values():
        assert not _elsewhere(function.graph)


def _environment() -> Any:
    return create_environment("CartPole-v1", num_parallel_environments=3, seed=7)


@pytest.mark.parametrize("stepping", ["graph", "host"])
def test_of_acting_beside_the_environment(stepping):
    env = _environment()
    driver = SyncOffPolicyDriver(env, networks.ppo(env, rnn=True), unroll_length=2, stepping=stepping)
    try:
        driver.run()
        _check(driver._unrollers[False])
        assert all(w.device.endswith("CPU:0") for w in driver._store.latest().weights)
    finally:
        driver.stop()


def test_of_an_environment_that_asks_an_actor():
    env = _environment()
    driver = AsyncOffPolicyDriver(
        [env], algorithm=networks.ppo(env), num_actor_queues=1, unroll_length=2, learn_queue_cap=1, stepping="graph"
    )
    driver.start()
    try:
        driver.run_async()
        _check(driver._collection.unrollers[False])
    finally:
        driver.stop()


def _played(copies: bool) -> tuple[list[np.ndarray], PolicyDriver]:
    env = _environment()
    tf.keras.utils.set_random_seed(3)
    algorithm = networks.ppo(env)
    actions: list[np.ndarray] = []
    driver = PolicyDriver(env, algorithm, [lambda step: actions.append(step.action)], epsilon_greedy=1.0, random_seed=5)
    driver._copies = copies
    driver.predict(150)
    for variable in algorithm.trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    driver.predict(150)
    env.close()
    return actions, driver


def test_of_playing_which_follows_the_weights_all_the_same():
    copied, driver = _played(copies=True)
    for function in (driver._act, driver._act_in_a_row):
        assert not _elsewhere(function.graph)
    live, _ = _played(copies=False)
    np.testing.assert_array_equal(copied, live)


@pytest.mark.parametrize("kind", [UniformReplay, PrioritizedReplay])
def test_of_drawing_from_a_memory(kind):
    replay = kind(SPEC, 1)
    steps = tf.nest.map_structure(lambda s: tf.ones([1, 8, 1, *s.shape], s.dtype), SPEC)
    replay.observe(steps._replace(env_id=tf.zeros([1, 8, 1], tf.int32)))

    @tf.function(autograph=False)
    def draw(view: Any, seed: tf.Tensor) -> tf.Tensor:
        sample = replay.sample(view, 4, 2, seed)
        replay.learned(sample, tf.ones([4]))
        return sample.experience.reward

    graph = draw.get_concrete_function(replay.view(2), tf.constant([1, 2])).graph
    # The priority is the caller's; a variable is read where it is.
    assert _elsewhere(graph) <= {"Const", "Fill", "ReadVariableOp"}


def _without_a_way_on_gpus(graph: tf.Graph) -> Iterator[str]:
    """Operations of a traced function, those of its loops included, that TensorFlow has nothing for on GPUs for their types.

    It would bring their arguments to the processors and their results back.
    """
    traced = graph.as_graph_def()
    for nodes in (traced.node, *(function.node_def for function in traced.library.function)):
        for node in nodes:
            registered = kernels.get_registered_kernels_for_op(node.op).kernel
            ways = [k for k in registered if k.device_type in ("GPU", "DEFAULT") and _takes(k, node)]
            if node.op not in _NOWHERE and not ways:
                yield node.op


def _takes(kernel: Any, node: Any) -> bool:
    def types(name: str) -> set[int]:
        return set(node.attr[name].list.type) or {node.attr[name].type}

    # Those that are not of types are of what to do with indices that are out of bounds.
    return all(
        types(c.name) <= set(c.allowed_values.list.type) for c in kernel.constraint if c.allowed_values.list.type
    )


_GPUS = any(k.device_type == "GPU" for k in kernels.get_registered_kernels_for_op("MatMul").kernel)
_of_gpus = pytest.mark.skipif(not _GPUS, reason="this TensorFlow is built without GPUs")


@_of_gpus
def test_of_learning_from_minibatches_of_pictures(monkeypatch):
    monkeypatch.setattr(common, "has_gpu", lambda: True)
    action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, 2)
    encoder = EncodingNetwork(
        tf.TensorSpec([8, 8, 4], tf.float32), conv_layer_params=((4, 3, 2),), fc_layer_params=(8,)
    )

    def actor_critic(observation_spec: Any, action_spec: Any, **kwargs: Any) -> PPOAlgorithm:
        both = networks.feed_forward(observation_spec, action_spec)
        return PPOAlgorithm(observation_spec, action_spec, *both, loss=PPOLoss(action_spec), **kwargs)

    agent = Agent(
        tensor_spec.BoundedTensorSpec([8, 8, 4], tf.uint8, 0, 255),
        action,
        actor_critic,
        encoding_network=encoder,
        observation_transformer=image_scale_transformer,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
    )
    experience = tf.nest.map_structure(
        lambda s: tf.zeros([3, 8, *s.shape], s.dtype), agent.experience_spec._replace(bootstrap=())
    )
    agent.train_from(experience, num_updates=2, mini_batch_size=2, mini_batch_length=4)
    (function,) = agent._volatile.functions.values()
    (traced,) = function._concrete.values()
    # Once in each epoch, of the numbers of the sequences.
    assert set(_without_a_way_on_gpus(traced.graph)) == {"StatelessShuffle"}


@_of_gpus
@pytest.mark.parametrize("name", ["sac", "ddpg", "td3", *DISCRETE])
def test_of_an_update_with_targets_of_three_steps(name):
    spec: Any = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
    observation: Any = tf.TensorSpec([3], tf.float32)
    given: Any = {"n_step": 3} if name == "c51" else {"critic_loss": OneStepTDLoss(n_step=3)}
    if name in DISCRETE:
        spec = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 3)
        observation = {"observation": tf.TensorSpec([3], tf.float32), "mask": tf.TensorSpec([4], tf.bool)}
        given |= {"seen": observation["observation"], "observation_and_action_constraint_splitter": split_mask}
    algorithm = make(name, observation, spec, **given)
    algorithm.build_optimizers()
    zeros = tf.nest.map_structure(
        lambda s: tf.zeros([4, 5, *s.shape], s.dtype), algorithm.experience_spec._replace(bootstrap=())
    )

    @tf.function(autograph=False)
    def update(experience: Any) -> tf.Tensor:
        with rng.scope(tf.constant([1, 2])):
            return algorithm._update(experience, True, 1.0)[0]

    assert set(_without_a_way_on_gpus(update.get_concrete_function(zeros).graph)) == set()
