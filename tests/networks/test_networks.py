"""ALF's networks: shapes, nested observations, bounds, copies, and gradients that stay bounded."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import actor_distribution_network
from tf_agents.specs import tensor_spec

from alf.networks.actor_network import ActorNetwork
from alf.networks.critic_network import CriticNetwork
from alf.networks.stable_normal_projection_network import StableNormalProjectionNetwork

OBS = {"image": tensor_spec.TensorSpec([8, 8, 3], tf.float32), "vector": tensor_spec.TensorSpec([5], tf.float32)}
ACTION = tensor_spec.BoundedTensorSpec([2], tf.float32, [-1.0, 0.0], [1.0, 4.0])


def preprocessing() -> dict[str, Any]:
    layers = {
        "image": tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(7)]),
        "vector": tf.keras.layers.Dense(7),
    }
    return {"layers": layers, "combiner": tf.keras.layers.Add()}


def observation(outer: list[int]) -> dict[str, tf.Tensor]:
    return {k: tf.random.stateless_normal([*outer, *s.shape], [1, 2]) for k, s in OBS.items()}


@pytest.mark.parametrize("outer", [[3], [4, 3]])
def test_critic_takes_nested_observations_with_any_outer_axes(outer: list[int]) -> None:
    # Of few units, all may be dead for a row.
    tf.keras.utils.set_random_seed(0)
    parts = preprocessing()
    critic = CriticNetwork(
        (OBS, ACTION),
        observation_preprocessing_layers=parts["layers"],
        observation_preprocessing_combiner=parts["combiner"],
        observation_fc_layer_params=(16,),
        action_fc_layer_params=(8,),
        joint_fc_layer_params=(12, 6),
    )
    critic.create_variables()
    value, _ = critic((observation(outer), tf.zeros([*outer, 2])))
    assert value.shape == outer
    other, _ = critic((observation(outer), tf.ones([*outer, 2])))
    assert (value.numpy() != other.numpy()).all()


@pytest.mark.parametrize("outer", [[3], [4, 3]])
def test_actor_stays_within_bounds(outer: list[int]) -> None:
    parts = preprocessing()
    actor = ActorNetwork(
        OBS,
        ACTION,
        preprocessing_layers=parts["layers"],
        preprocessing_combiner=parts["combiner"],
        fc_layer_params=(8,),
    )
    actor.create_variables()
    action, _ = actor(observation(outer))
    assert action.shape == [*outer, 2]
    # At the start, with weights close to 0, the action is close to the middle.
    np.testing.assert_allclose(action, np.broadcast_to([0.0, 2.0], action.shape), atol=0.2)
    for variable in actor.variables:
        variable.assign(100.0 * tf.random.stateless_normal(variable.shape, [3, 4]))
    extreme = actor(observation(outer))[0].numpy().reshape(-1, 2)
    assert (extreme >= [-1.0, 0.0]).all()
    assert (extreme <= [1.0, 4.0]).all()


def test_copies_have_the_same_shapes_and_weights_of_their_own() -> None:
    with gin.unlock_config():
        gin.parse_config("some/alf.networks.critic_network.CriticNetwork.joint_fc_layer_params = (5,)")
    try:
        spec = (tensor_spec.TensorSpec([3], tf.float32), ACTION)
        with gin.config_scope("some"):
            critic = CriticNetwork(spec)
        copy = critic.copy(name="other")
        for network in (critic, copy):
            network.create_variables()
    finally:
        gin.clear_config()
    assert [v.shape for v in critic.variables] == [v.shape for v in copy.variables]
    assert critic.variables[0].shape == [5, 5]
    assert (critic.variables[0].numpy() != copy.variables[0].numpy()).any()


def test_discrete_actions_have_no_deterministic_actor() -> None:
    with pytest.raises(ValueError, match="continuous actions only"):
        ActorNetwork(OBS["vector"], tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2))


def _projection(**kwargs: Any) -> tuple[StableNormalProjectionNetwork, tf.Tensor]:
    network = StableNormalProjectionNetwork(ACTION, **kwargs)
    features = tf.random.stateless_normal([6, 4], [1, 2])
    network(features, 1)
    return network, features


@pytest.mark.parametrize("transform", ["softplus", "exp"])
@pytest.mark.parametrize("state_dependent_std", [False, True])
def test_stable_projection_starts_at_init_std(transform: str, state_dependent_std: bool) -> None:
    network, features = _projection(
        inverse_std_transform=transform,
        state_dependent_std=state_dependent_std,
        init_std=0.7,
        min_std=0.1,
        max_std=1.5,
        mean_transform=None,
    )
    dist, _ = network(features, 1)
    np.testing.assert_allclose(dist.stddev(), np.full([6, 2], 0.7), rtol=1e-4)


@pytest.mark.parametrize("value", [-50.0, 0.0, 50.0])
def test_stable_projection_keeps_the_deviation_in_bounds_and_scales_the_mean_by_it(value: float) -> None:
    network, features = _projection(min_std=0.1, max_std=1.5, init_std=1.0, mean_transform=None)
    means_layer = network._means_projection_layer
    means_layer.bias.assign([2.0, -3.0])
    network._bias.trainable_variables[0].assign(tf.fill([2], value))
    dist, _ = network(features, 1)
    std = 0.1 + 1.0 / (1.0 / 1.4 + np.logaddexp(0.0, value))
    np.testing.assert_allclose(dist.stddev(), np.full([6, 2], std), rtol=1e-4)
    np.testing.assert_allclose(dist.mean(), np.tile([[2.0 * std, -3.0 * std]], [6, 1]), rtol=1e-3)


def test_stable_projection_in_an_actor() -> None:
    actor = actor_distribution_network.ActorDistributionNetwork(
        OBS["vector"], ACTION, fc_layer_params=(4,), continuous_projection_net=StableNormalProjectionNetwork
    )
    actor.create_variables()
    dist, _ = actor(tf.ones([3, 5]), step_type=tf.ones([3], tf.int32), network_state=())
    assert dist.sample(seed=1).shape == [3, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"inverse_std_transform": "square"}, "not one of"), ({"init_std": 2.0, "max_std": 1.0}, "in order")],
)
def test_stable_projection_names_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StableNormalProjectionNetwork(ACTION, **arguments)
