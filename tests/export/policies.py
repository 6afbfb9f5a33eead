"""Small policies of every kind that is exported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.networks import (
    actor_distribution_network,
    encoding_network,
    value_network,
)
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep
from alf.utils.common import cast_spec, cast_transformer, image_scale_transformer
from tests.algorithms.networks import feed_forward, recurrent

BOX = tensor_spec.BoundedTensorSpec([4], tf.float32, [-1.0, -2.0, -np.inf, -3.4e38], [1.0, 2.0, np.inf, 3.4e38])
DISCRETE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
MULTI_DISCRETE = tensor_spec.BoundedTensorSpec([3], tf.int64, 0, 3)
CONTINUOUS = tensor_spec.BoundedTensorSpec([2], tf.float32, [-1.0, 0.0], [1.0, 5.0])
CAMERA = {
    "Camera": tensor_spec.BoundedTensorSpec([4, 4, 1], tf.uint8, 0, 255),
    "goal": {"x": tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0), "n": DISCRETE},
}
HYBRID = {"steer": CONTINUOUS, "gear": DISCRETE}


def actor_critic(obs: Any, act: Any, networks: tuple[Any, Any], **kwargs: Any) -> RLAlgorithm:
    """An actor-critic of these networks."""
    return ActorCriticAlgorithm(obs, act, *networks, optimizer=tf.keras.optimizers.legacy.Adam(1e-3), **kwargs)


def squashed() -> RLAlgorithm:
    """Normal actions, squashed to their bounds by tanh."""
    projection = tanh_normal_projection_network.TanhNormalProjectionNetwork
    actor = actor_distribution_network.ActorDistributionNetwork(
        BOX, CONTINUOUS, fc_layer_params=(8,), continuous_projection_net=projection
    )
    return actor_critic(BOX, CONTINUOUS, (actor, value_network.ValueNetwork(BOX, fc_layer_params=(8,))))


def dict_observation() -> RLAlgorithm:
    """A nested observation of three dtypes, and an action of two parts."""
    spec = cast_spec(CAMERA)

    def parts() -> dict[str, Any]:
        def layer() -> Any:
            return tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(6, "tanh")])

        number = tf.keras.layers.Lambda(lambda n: tf.one_hot(tf.cast(n, tf.int32), 3))
        return {
            "preprocessing_layers": {"Camera": layer(), "goal": {"x": layer(), "n": number}},
            "preprocessing_combiner": tf.keras.layers.Concatenate(),
        }

    actor = actor_distribution_network.ActorDistributionNetwork(spec, HYBRID, fc_layer_params=(8,), **parts())
    value = value_network.ValueNetwork(spec, fc_layer_params=(8,), **parts())
    transformers = [
        functools.partial(image_scale_transformer, fields=["Camera"]),
        cast_transformer,
    ]
    return actor_critic(CAMERA, HYBRID, (actor, value), observation_transformer=transformers)


def agent() -> RLAlgorithm:
    """An encoder before recurrent networks, inside an Agent."""
    encoder = encoding_network.EncodingNetwork(BOX, fc_layer_params=(8,))

    def inner(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> RLAlgorithm:
        networks = recurrent(tf.TensorSpec([8], tf.float32), action_spec, 8)
        return ActorCriticAlgorithm(observation_spec, action_spec, *networks)

    return Agent(BOX, MULTI_DISCRETE, inner, encoder, optimizer=tf.keras.optimizers.legacy.Adam(1e-3))


def unnormalised(low: float, high: float) -> RLAlgorithm:
    """Fresh networks that see numbers of any size as they are."""
    tf.random.set_seed(0)
    spec = tensor_spec.BoundedTensorSpec([17], tf.float32, low, high)
    act = tensor_spec.BoundedTensorSpec([6], tf.float32, -1.0, 1.0)
    actor = actor_distribution_network.ActorDistributionNetwork(spec, act, fc_layer_params=(256, 256))
    return actor_critic(spec, act, (actor, value_network.ValueNetwork(spec, fc_layer_params=(256, 256))))


POLICIES: dict[str, Callable[[], RLAlgorithm]] = {
    "feed_forward": lambda: actor_critic(BOX, DISCRETE, feed_forward(BOX, DISCRETE, (16,))),
    "recurrent": lambda: actor_critic(BOX, DISCRETE, recurrent(BOX, DISCRETE, 8)),
    "multi_discrete": lambda: actor_critic(BOX, MULTI_DISCRETE, feed_forward(BOX, MULTI_DISCRETE, (16,))),
    "continuous": lambda: actor_critic(BOX, CONTINUOUS, feed_forward(BOX, CONTINUOUS, (16,))),
    "squashed": squashed,
    "dict_observation": dict_observation,
    "agent": agent,
}
RECURRENT = {"recurrent", "agent"}


def make(name: str, seed: int = 0) -> RLAlgorithm:
    """A policy with weights that make it depend on what it sees."""
    tf.random.set_seed(seed)
    algorithm = POLICIES[name]()
    rng = np.random.default_rng(seed)
    for variable in algorithm.acting_variables():
        variable.assign(rng.normal(0.0, 1.0 if variable.shape.rank > 1 else 0.2, variable.shape))
    return algorithm


def time_step(algorithm: RLAlgorithm, observation: Any, step_type: np.ndarray) -> ActionTimeStep:
    """A raw time step [B, ...] around an observation."""
    rows = len(step_type)
    return ActionTimeStep(
        step_type=tf.constant(step_type, tf.int32),
        reward=tf.zeros([rows]),
        discount=tf.ones([rows]),
        observation=tf.nest.map_structure(tf.constant, observation),
        prev_action=tf.nest.map_structure(lambda s: tf.zeros([rows, *s.shape], s.dtype), algorithm.action_spec),
        env_id=tf.range(rows),
    )
