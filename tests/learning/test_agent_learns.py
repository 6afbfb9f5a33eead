"""Agents composed of several parts find the best policy of a small task, in turns with acting and beside it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tf_agents.networks.sequential import Sequential

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.agent import Agent
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.rnd_algorithm import RNDAlgorithm
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from tests.algorithms import networks

EPISODE = 9  # time steps, so that eight actions earn
GOOD = 0.9 * (EPISODE - 1)


def _actor_critic(cls: Any, loss: Any) -> Any:
    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
        combine = (
            {"preprocessing_combiner": tf.keras.layers.Concatenate()} if isinstance(observation_spec, list) else {}
        )
        nets = networks.feed_forward(observation_spec, action_spec, (32,), **combine)
        return cls(observation_spec, action_spec, *nets, loss=loss(action_spec, gamma=0.9))

    return make


def _ppo() -> Any:
    return _actor_critic(PPOAlgorithm, PPOLoss)


def _ac() -> Any:
    return _actor_critic(ActorCriticAlgorithm, ActorCriticLoss)


def _random(spec: Any) -> Any:
    return Sequential([tf.keras.layers.Dense(16, tf.nn.relu), tf.keras.layers.Dense(4)], input_spec=spec)


def _trac(ac: Any) -> Any:
    return lambda **kwargs: TracAlgorithm(ac_algorithm_cls=ac, action_dist_clip_per_dim=0.3, **kwargs)


PPO_SIZES = {"num_updates": 4, "mini_batch_size": 128, "mini_batch_length": 1}
AC_SIZES = {"num_updates": 1, "mini_batch_size": 16}
AGENTS: dict[str, Any] = {
    "ppo_icm": (
        PPO_SIZES,
        lambda obs, act: {
            "rl_algorithm_cls": _ppo(),
            "intrinsic_curiosity_module": ICMAlgorithm(act, obs, hidden_size=16),
            "intrinsic_reward_coef": 0.02,
        },
    ),
    "ac_icm": (
        AC_SIZES,
        lambda obs, act: {
            "rl_algorithm_cls": _ac(),
            "intrinsic_curiosity_module": ICMAlgorithm(act, obs, hidden_size=16),
            "intrinsic_reward_coef": 0.02,
        },
    ),
    # A controlled bonus beside an actor-critic without a ratio tears the found policy down now and then.
    "ppo_entropy_target": (PPO_SIZES, lambda obs, act: {"rl_algorithm_cls": _ppo(), "enforce_entropy_target": True}),
    "ppo_rnd": (
        PPO_SIZES,
        lambda obs, act: {
            "rl_algorithm_cls": _ppo(),
            "intrinsic_curiosity_module": RNDAlgorithm(_random(obs), _random(obs), reward_adapt_speed=8.0),
            "intrinsic_reward_coef": 0.02,
        },
    ),
    "ppo_diayn": (
        PPO_SIZES,
        lambda obs, act: {
            "rl_algorithm_cls": _ppo(),
            "intrinsic_curiosity_module": DIAYNAlgorithm(3, obs, hidden_size=16),
            "goal_generator": RandomCategoricalGoalGenerator(obs, 3),
            "intrinsic_reward_coef": 0.02,
        },
    ),
    "trac_ac": (AC_SIZES, lambda obs, act: {"rl_algorithm_cls": _trac(_ac())}),
    "trac_ppo": (PPO_SIZES, lambda obs, act: {"rl_algorithm_cls": _trac(_ppo())}),
}


@pytest.mark.parametrize(
    ("mode", "seed"), [("sync", 0), ("async", 1), pytest.param("async", 2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", AGENTS)
def test_composed_agents_find_the_best_policy(name: str, mode: str, seed: int) -> None:
    tf.random.set_seed(seed)
    envs = [PolicyUnittestEnv(16, EPISODE, action_type=ActionType.Discrete, seed=10 * seed + i) for i in range(2)]
    sizes, make = AGENTS[name]
    specs = networks.specs_of(envs[0])
    agent = Agent(*specs, **make(*specs), optimizer=tf.keras.optimizers.legacy.Adam(1e-2), gradient_clipping=0.5)
    driver = AsyncOffPolicyDriver(envs, agent, 0, 16, 2, mode=mode, random_seed=seed)
    average_return = driver.get_metrics()[2]
    driver.start()
    try:
        for _ in range(150):
            driver.run_async()
            agent.train(**sizes)
            if average_return.result() >= GOOD:
                break
    finally:
        driver.stop()
    assert average_return.result() >= GOOD
