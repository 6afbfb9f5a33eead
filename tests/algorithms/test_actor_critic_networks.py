"""What an actor-critic needs of its networks, and says where it is not so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.sequential import Sequential
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.normalization import RewardNormalizer
from alf.data_structures import ActionTimeStep
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.networks.actor_network import ActorNetwork
from alf.utils.action_masks import split_mask
from alf.utils.common import zeros_from_spec
from tests.algorithms.networks import feed_forward, ppo, recurrent, specs_of

OBS = tf.TensorSpec([3], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
FLOAT_MAX = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("low", [-FLOAT_MAX, 0.0, -np.inf])
@pytest.mark.parametrize("make", [feed_forward, recurrent])
def test_means_are_not_scaled_to_bounds_that_are_none(make: Any, low: float) -> None:
    """Half of such a range overflows: actions would be infinite, and the environment be blamed for what comes of them."""
    unbounded = tensor_spec.BoundedTensorSpec([2], tf.float32, low, FLOAT_MAX)
    with pytest.raises(ValueError, match=r"scales its means .* NormalProjectionNetwork\.mean_transform = None"):
        ActorCriticAlgorithm(OBS, unbounded, *make(OBS, unbounded))


def test_actions_without_bounds_are_drawn_around_plain_means() -> None:
    from tf_agents.networks.normal_projection_network import NormalProjectionNetwork

    unbounded = tensor_spec.BoundedTensorSpec([2], tf.float32, -FLOAT_MAX, FLOAT_MAX)
    projection = {"continuous_projection_net": lambda spec: NormalProjectionNetwork(spec, mean_transform=None)}
    algorithm = ActorCriticAlgorithm(OBS, unbounded, *feed_forward(OBS, unbounded, projection=projection))
    time_step = zeros_from_spec(ActionTimeStep(*[tf.TensorSpec([], tf.int32)] * 3, OBS, unbounded, ()), 4)
    assert np.isfinite(algorithm.rollout(time_step, (), 0).action).all()


def test_an_actor_without_distributions_is_refused() -> None:
    value = feed_forward(OBS, BOX)[1]
    with pytest.raises(
        ValueError, match=r"needs an actor that gives distri.*; ActorNetwork gives values of shape \(2,\)"
    ):
        ActorCriticAlgorithm(OBS, BOX, ActorNetwork(OBS, BOX), value)


def test_a_value_network_that_gives_distributions_is_refused() -> None:
    actor = feed_forward(OBS, BOX)[0]
    with pytest.raises(ValueError, match=r"gives one value, .*; ActorDistributionNetwork gives distributions"):
        ActorCriticAlgorithm(OBS, BOX, actor, feed_forward(OBS, BOX)[0])


def test_a_value_of_more_axes_is_refused() -> None:
    actor = feed_forward(OBS, BOX)[0]
    value = Sequential([tf.keras.layers.Dense(1)], input_spec=OBS, name="Values")
    with pytest.raises(ValueError, match=r"gives one value, \[B\].*; Values gives values of shape \(1,\)"):
        ActorCriticAlgorithm(OBS, BOX, actor, value)


@pytest.mark.parametrize("inside", [False, True])
def test_ppo_does_not_learn_from_single_steps_of_a_memory(inside: bool) -> None:
    env = PolicyUnittestEnv(4, 5, seed=0)
    algorithm = ppo(env)
    if inside:
        algorithm = Agent(*specs_of(env), rl_algorithm_cls=lambda **kwargs: ppo(env))
    algorithm.set_exp_replayer("uniform", 4)
    with pytest.raises(
        ValueError, match=r"sequences of 2 steps or more and mini_batch_length=1 is shorter: .* least 2"
    ):
        algorithm.train(mini_batch_size=2, mini_batch_length=1, whole_replay_buffer_training=False)


def test_curiosity_does_not_learn_from_single_steps_of_a_memory() -> None:
    env = PolicyUnittestEnv(4, 5, seed=0)
    obs, act = specs_of(env)

    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> ActorCriticAlgorithm:
        return ActorCriticAlgorithm(observation_spec, action_spec, *feed_forward(observation_spec, action_spec))

    optimizer = tf.keras.optimizers.legacy.Adam(1e-3)
    agent = Agent(obs, act, make, intrinsic_curiosity_module=ICMAlgorithm(act, obs, hidden_size=4), optimizer=optimizer)
    assert agent.least_sample_length == 2
    assert Agent(obs, act, make, optimizer=optimizer).least_sample_length == 1


@pytest.mark.parametrize(
    "part",
    [{"extrinsic_reward_coef": 2.0}, {"reward_normalizer": RewardNormalizer()}],
    ids=["coefficient", "normalizer"],
)
def test_a_reward_that_is_put_together_is_not_learned_from_single_steps(part: dict[str, Any]) -> None:
    """The reward of a single step would be what the environment gave, whatever the agent makes of it."""
    obs, act = specs_of(PolicyUnittestEnv(4, 5, seed=0))

    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> ActorCriticAlgorithm:
        return ActorCriticAlgorithm(observation_spec, action_spec, *feed_forward(observation_spec, action_spec))

    agent = Agent(obs, act, make, optimizer=tf.keras.optimizers.legacy.Adam(1e-3), **part)
    sizes = {"mini_batch_size": 2, "mini_batch_length": 1, "whole_replay_buffer_training": False}
    with pytest.raises(ValueError, match=r"^AgentAlgorithm learns from sequences of 2 steps .*mini_batch_length=1 is"):
        agent.memory_uses(sizes)


def test_goals_and_masks_of_actions_are_refused_together() -> None:
    obs = {"observation": OBS, "mask": tf.TensorSpec([3], tf.bool)}
    act = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)

    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> ActorCriticAlgorithm:
        nets = feed_forward(OBS, action_spec)
        return ActorCriticAlgorithm(
            observation_spec, action_spec, *nets, observation_and_action_constraint_splitter=split_mask
        )

    Agent(obs, act, make)
    with pytest.raises(ValueError, match=r"sees \[observation, goal\], which has no masks of actions: leave out"):
        Agent(obs, act, make, goal_generator=RandomCategoricalGoalGenerator(obs, 3))
