"""CartPole environments, a PPO learner and slow environments, made in a few lines for the benchmarks."""

from __future__ import annotations

import time
from typing import Any

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments import BatchedEnvironment, create_environment
import tensorflow as tf
from tf_agents.networks import actor_distribution_network, value_network
from tf_agents.specs import tensor_spec

ITERATION = {"num_updates": 4, "mini_batch_size": 32}


def cart_pole(batch_size: int, vectorization: str = "vector_entry_point", seed: int = 0) -> BatchedEnvironment:
    """B rows of CartPole-v1."""
    return create_environment(
        "CartPole-v1", num_parallel_environments=batch_size, vectorization=vectorization, seed=seed
    )


def ppo(env: BatchedEnvironment, layers: tuple[int, ...] = (64, 64)) -> PPOAlgorithm:
    """PPO with one multi-layer perceptron for the actor and one for the value."""
    specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    return ppo_of(*specs, layers=layers)


def ppo_of(
    observation_spec: Any, action_spec: Any, debug_summaries: bool = False, layers: tuple[int, ...] = (64, 64)
) -> PPOAlgorithm:
    """The same, for one agent of these specs."""
    return PPOAlgorithm(
        observation_spec,
        action_spec,
        actor_network=lambda: actor_distribution_network.ActorDistributionNetwork(
            observation_spec, action_spec, fc_layer_params=layers
        ),
        value_network=lambda: value_network.ValueNetwork(observation_spec, fc_layer_params=layers),
        loss_class=PPOLoss,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        debug_summaries=debug_summaries,
    )


class SlowEnvironment(BatchedEnvironment):
    """An environment whose step sleeps first, like one that waits for a simulator or a socket."""

    def __init__(self, env: BatchedEnvironment, seconds: float) -> None:
        super().__init__()
        self._env = env
        self._seconds = seconds

    @property
    def batch_size(self) -> int:
        """B of the environment inside."""
        return self._env.batch_size

    def observation_spec(self) -> Any:
        """Of the environment inside."""
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        """Of the environment inside."""
        return self._env.action_spec()

    def _reset(self) -> Any:
        return self._env.reset()

    def _step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return self._env.step(action)

    def close(self) -> None:
        """Closes the environment inside."""
        self._env.close()


def collect(driver: AsyncOffPolicyDriver, seconds: float) -> float:
    """Takes batches without learning; environment steps/s over about `seconds`, after two batches of warm-up."""
    for _ in range(2):
        driver.get_training_exps()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        steps += driver.get_training_exps()[1]
    return steps / (time.perf_counter() - begun)


def learn(driver: AsyncOffPolicyDriver, seconds: float) -> dict[str, float]:
    """Collects and learns; steps/s learned from and the milliseconds of one `train` call (median)."""
    algorithm = driver.algorithm
    for _ in range(2):
        driver.run_async()
        algorithm.train(**ITERATION)
    steps, times, begun = 0, [], time.perf_counter()
    while time.perf_counter() - begun < seconds:
        steps += driver.run_async()
        before = time.perf_counter()
        algorithm.train(**ITERATION)
        times.append(time.perf_counter() - before)
    wall = time.perf_counter() - begun
    return {"steps_per_s": steps / wall, "train_ms": 1e3 * sorted(times)[len(times) // 2], "iterations": len(times)}
