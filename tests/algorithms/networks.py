"""Small networks for tests."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.networks import (
    actor_distribution_network,
    actor_distribution_rnn_network,
    value_network,
    value_rnn_network,
)
from tf_agents.specs import tensor_spec

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss


def specs_of(env: Any) -> tuple[Any, Any]:
    """Observation and action tensor specs of an environment."""
    return tensor_spec.from_spec(env.observation_spec()), tensor_spec.from_spec(env.action_spec())


def feed_forward(
    obs: Any, act: Any, layers: tuple[int, ...] = (32,), projection: dict[str, Any] | None = None, **kwargs: Any
) -> tuple[Any, Any]:
    """Actor and value networks."""
    actor = actor_distribution_network.ActorDistributionNetwork(
        obs, act, fc_layer_params=layers, activation_fn=tf.nn.tanh, **(projection or {}), **kwargs
    )
    return actor, value_network.ValueNetwork(obs, fc_layer_params=layers, activation_fn=tf.nn.tanh, **kwargs)


def recurrent(obs: Any, act: Any, size: int = 16, **kwargs: Any) -> tuple[Any, Any]:
    """LSTM actor and value networks."""
    sizes = {"input_fc_layer_params": (size,), "lstm_size": (size,), "output_fc_layer_params": None, **kwargs}
    actor = actor_distribution_rnn_network.ActorDistributionRnnNetwork(obs, act, **sizes)
    return actor, value_rnn_network.ValueRnnNetwork(obs, **sizes)


def ppo(env: Any, rnn: bool = False, lr: float = 3e-3, layers: tuple[int, ...] = (32,), **loss: Any) -> PPOAlgorithm:
    """PPO for an environment."""
    obs, act = specs_of(env)
    actor, value = recurrent(obs, act) if rnn else feed_forward(obs, act, layers)
    return PPOAlgorithm(
        obs,
        act,
        actor,
        value,
        loss=PPOLoss(act, **{"gamma": 0.98, "td_loss_weight": 0.5, "entropy_regularization": 0.01, **loss}),
        optimizer=tf.keras.optimizers.legacy.Adam(lr),
        gradient_clipping=0.5,
        clip_by_global_norm=True,
    )
