"""Actions of several parts, discrete and continuous: every part is explored and becomes the best."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.environments import create_environment
from alf.environments.batched_environment import BatchedEnvironment
from alf.networks.critic_network import CriticNetwork
from tests.algorithms.networks import ppo, specs_of
from tests.algorithms.off_policy import _normal, adam

ROWS = 32
EPISODE = 8
Box, Dict, Discrete, Tuple = (getattr(gymnasium.spaces, name) for name in ("Box", "Dict", "Discrete", "Tuple"))


class PartsEnv(gymnasium.Env):
    """Each part of the action that does what the observation shows earns its share of 1."""

    def __init__(self, action_space: gymnasium.Space) -> None:
        self.action_space = action_space
        self.observation_space = Box(-1.0, 1.0, (2,))
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        self._wanted = self.np_random.choice([-1.0, 1.0], 2)
        return self._wanted.astype(np.float32)

    def step(self, action: Any) -> Any:
        reward = float(np.mean(self._earned(action)))
        self._steps += 1
        return self._observe(), reward, self._steps == EPISODE, False, {}

    def _earned(self, action: Any) -> list[float]:
        raise NotImplementedError


class MixedEnv(PartsEnv):
    """A choice, and a number in a tuple."""

    def __init__(self) -> None:
        super().__init__(Dict({"choice": Discrete(2), "more": Tuple((Box(-1.0, 1.0, (1,)),))}))

    def _earned(self, action: Any) -> list[float]:
        chosen = 1.0 if 2.0 * float(action["choice"]) - 1.0 == self._wanted[0] else 0.0
        return [chosen, 1.0 - 0.5 * abs(float(np.reshape(action["more"][0], [])) - self._wanted[1])]


class TwoNumbersEnv(PartsEnv):
    """Two numbers of different ranges."""

    def __init__(self) -> None:
        super().__init__(Dict({"left": Box(-1.0, 1.0, (1,)), "right": Box(-3.0, 3.0, (1,))}))

    def _earned(self, action: Any) -> list[float]:
        numbers = [float(np.reshape(action["left"], [])), float(np.reshape(action["right"], [])) / 3.0]
        return [1.0 - 0.5 * abs(a - w) for a, w in zip(numbers, self._wanted, strict=True)]


def environment(make: type[gymnasium.Env], seed: int) -> BatchedEnvironment:
    return create_environment(make, num_parallel_environments=ROWS, seed=seed, vectorization="sync")


def learn(make: type[gymnasium.Env], algorithm: Any, seed: int, mode: str, **sizes: Any) -> float:
    """The greedy return after at most 100 iterations."""
    envs = [environment(make, 10 * seed + i) for i in range(2)]
    judged = environment(make, 99)
    replayer = "one_time" if "mini_batch_length" in sizes and sizes["mini_batch_length"] == 1 else "uniform"
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 8, 2, exp_replayer=replayer, mode=mode, random_seed=seed)
    driver.start()
    best = 0.0
    try:
        for i in range(100):
            driver.run_async()
            algorithm.train(**sizes)
            if i % 10 == 9:
                judge = PolicyDriver(judged, algorithm, epsilon_greedy=0.0)
                judge.run_episodes(ROWS)
                best = max(best, float(judge.get_metrics()[2].result()))
                if best > 0.93 * EPISODE:
                    break
    finally:
        driver.stop()
        judged.close()
    return best


@pytest.mark.parametrize(("mode", "seed"), [("sync", 0), ("async", 1)])
def test_ppo_learns_a_choice_and_a_number(mode: str, seed: int) -> None:
    tf.keras.utils.set_random_seed(seed)
    env = environment(MixedEnv, 0)
    algorithm = ppo(env, lr=1e-2, gamma=0.5)
    env.close()
    sizes = {"num_updates": 4, "mini_batch_length": 1, "mini_batch_size": 128}
    assert learn(MixedEnv, algorithm, seed, mode, **sizes) > 0.9 * EPISODE


@pytest.mark.slow
def test_sac_learns_two_numbers() -> None:
    tf.keras.utils.set_random_seed(0)
    env = environment(TwoNumbersEnv, 0)
    observation_spec, action_spec = specs_of(env)
    env.close()
    actor = ActorDistributionNetwork(
        observation_spec, action_spec, fc_layer_params=(32,), continuous_projection_net=_normal
    )
    critic = CriticNetwork((observation_spec, action_spec), joint_fc_layer_params=(32, 32))
    algorithm = SacAlgorithm(
        observation_spec,
        action_spec,
        actor,
        critic,
        critic_loss=OneStepTDLoss(0.3),
        actor_optimizer=adam(5e-3),
        critic_optimizer=adam(5e-3),
        alpha_optimizer=adam(5e-3),
    )
    assert algorithm._target_entropy == pytest.approx(np.log(0.02) + np.log(0.06))
    sizes = {"num_updates": 8, "mini_batch_length": 2, "mini_batch_size": 64, "whole_replay_buffer_training": False}
    assert learn(TwoNumbersEnv, algorithm, 0, "sync", **sizes) > 0.85 * EPISODE


def test_what_sac_cannot_take_is_told() -> None:
    env = environment(MixedEnv, 0)
    observation_spec, action_spec = specs_of(env)
    env.close()
    actor = ActorDistributionNetwork(observation_spec, action_spec, fc_layer_params=None)
    critic = CriticNetwork((observation_spec, action_spec))
    with pytest.raises(ValueError, match=r"a nest of continuous ones, got .* use PPO"):
        SacAlgorithm(observation_spec, action_spec, actor, critic)
