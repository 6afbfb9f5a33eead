"""PPO finds the best policy of small tasks of every kind of action and observation, in seconds."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.utils.common import cast_spec

BATCH = 32
EPISODE = 9  # time steps, so that eight actions earn


class ChooseEnv(gymnasium.Env):
    """Each action component that equals what the observation shows earns its share of 1."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        reward = float(np.mean(np.asarray(action) == self._wanted))
        self._steps += 1
        return self._observe(), reward, self._steps == EPISODE - 1, False, {}

    def _observe(self) -> Any:
        raise NotImplementedError


class DictObservationEnv(ChooseEnv):
    """The wanted action is the exclusive or of two bits, one in each part of the observation."""

    def __init__(self) -> None:
        spaces = gymnasium.spaces
        parts = {"bit": spaces.Discrete(2), "signs": spaces.Box(-1.0, 1.0, (2,))}
        super().__init__(spaces.Dict(parts), spaces.Discrete(2))

    def _observe(self) -> Any:
        bit, sign = self.np_random.integers(2, size=2)
        self._wanted = bit ^ sign
        return {"bit": np.int64(bit), "signs": np.array([2.0 * sign - 1.0, 0.0], np.float32)}


class MultiDiscreteEnv(ChooseEnv):
    """Two components of three values each, shown one-hot."""

    def __init__(self) -> None:
        spaces = gymnasium.spaces
        super().__init__(spaces.Box(0.0, 1.0, (2, 3)), spaces.MultiDiscrete([3, 3]))

    def _observe(self) -> Any:
        self._wanted = self.np_random.integers(3, size=2)
        return np.eye(3, dtype=np.float32)[self._wanted]


def _policy_env(action_type: ActionType, seed: int) -> BatchedEnvironment:
    return PolicyUnittestEnv(BATCH, EPISODE, action_type=action_type, seed=seed)


def _gym_env(make: type[gymnasium.Env], seed: int) -> BatchedEnvironment:
    return create_environment(make, num_parallel_environments=BATCH, seed=seed, vectorization="sync")


ENVIRONMENTS = {
    "discrete": functools.partial(_policy_env, ActionType.Discrete),
    "continuous": functools.partial(_policy_env, ActionType.Continuous),
    "dict_observation": functools.partial(_gym_env, DictObservationEnv),
    "multi_discrete": functools.partial(_gym_env, MultiDiscreteEnv),
}


def _preprocessing(observation_spec: Any) -> dict[str, Any]:
    """What makes one vector of a nest of observations."""
    if not isinstance(observation_spec, dict):
        return {}
    layers = {
        "bit": tf.keras.layers.Lambda(lambda x: tf.one_hot(tf.cast(x, tf.int32), 2)),
        "signs": tf.keras.layers.Lambda(lambda x: tf.identity(x)),
    }
    return {"preprocessing_layers": layers, "preprocessing_combiner": tf.keras.layers.Concatenate()}


def _normal(action_spec: Any) -> Any:
    return NormalProjectionNetwork(
        action_spec, state_dependent_std=False, std_transform=tf.exp, std_bias_initializer_value=-1.0
    )


def make_ppo(env: BatchedEnvironment) -> PPOAlgorithm:
    observation_spec, action_spec = tensor_spec.from_spec((env.observation_spec(), env.action_spec()))
    network_spec = cast_spec(observation_spec)
    actor = ActorDistributionNetwork(
        network_spec,
        action_spec,
        fc_layer_params=(32,),
        continuous_projection_net=_normal,
        **_preprocessing(observation_spec),
    )
    value = ValueNetwork(network_spec, fc_layer_params=(32,), **_preprocessing(observation_spec))
    return PPOAlgorithm(
        observation_spec,
        action_spec,
        actor_network=actor,
        value_network=value,
        loss=PPOLoss(action_spec),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-2),
        gradient_clipping=0.5,
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_ppo_finds_the_best_policy(name: str, seed: int) -> None:
    tf.random.set_seed(seed)
    env = ENVIRONMENTS[name](seed)
    algorithm = make_ppo(env)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=16, random_seed=seed)
    average_return = driver.get_metrics()[2]
    good = 0.9 * (EPISODE - 1)
    try:
        for _ in range(150):
            driver.run()
            algorithm.train(num_updates=4, mini_batch_length=1, mini_batch_size=128)
            if average_return.result() >= good:
                break
    finally:
        driver.stop()
    assert average_return.result() >= good
