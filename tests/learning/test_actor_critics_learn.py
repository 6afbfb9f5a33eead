"""Actor-critics solve the old unit-test environments, in turns with acting and beside it, from every one of three seeds."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv, RNNPolicyUnittestEnv, ValueUnittestEnv
from tests.algorithms import networks
from tests.learning.test_off_policy_learns import begin_anew

SEEDS = range(3)
SIZES = {"ppo": {"num_updates": 4, "mini_batch_size": 128, "mini_batch_length": 1}}
RECURRENT_SIZES = {"ppo": {"num_updates": 4, "mini_batch_size": 16}}


def make(name: str, env: Any, seed: int, rnn: bool = False) -> Any:
    tf.keras.utils.set_random_seed(seed)
    obs, act = networks.specs_of(env)
    nets = networks.recurrent(obs, act) if rnn else networks.feed_forward(obs, act)
    if name == "ppo":
        cls, loss = PPOAlgorithm, PPOLoss(act, gamma=0.5, entropy_regularization=0.01)
    else:
        options: dict[str, Any] = {"use_vtrace": True} if name == "vtrace" else {"use_gae": True}
        cls, loss = ActorCriticAlgorithm, ActorCriticLoss(act, gamma=0.5, entropy_regularization=0.01, **options)
    optimizer = tf.keras.optimizers.legacy.Adam(1e-2)
    algorithm = cls(obs, act, *nets, loss=loss, optimizer=optimizer, gradient_clipping=0.5, clip_by_global_norm=True)
    algorithm.use_rollout_state = rnn
    algorithm.set_seed(seed)
    algorithm.build_optimizers()
    return algorithm


def check_learning(name: str, mode: str, make_env: Any, good: float, rnn: bool = False) -> None:
    """From each seed, a greedy policy is good after at most 200 iterations."""
    envs = [make_env(16, i) for i in range(2)]
    algorithm = make(name, envs[0], 0, rnn)
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 12, 2, exp_replayer="one_time", mode=mode, random_seed=1)
    judge = PolicyDriver(make_env(16, 99), algorithm, epsilon_greedy=0.0)
    sizes = (RECURRENT_SIZES if rnn else SIZES).get(name, {})
    driver.start()
    try:
        for seed in SEEDS:
            begin_anew(algorithm, make(name, envs[0], seed, rnn))
            for i in range(200):
                driver.run_async()
                algorithm.train(**sizes)
                if i % 10 == 9:
                    judge.run_episodes(16)
                    if judge.get_metrics()[2].result() > good:
                        break
            assert judge.get_metrics()[2].result() > good, (name, mode, seed)
    finally:
        driver.stop()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["a2c", "vtrace", "ppo"])
def test_the_best_policy_is_found(name: str, mode: str) -> None:
    check_learning(name, mode, lambda rows, seed: PolicyUnittestEnv(rows, 9, seed=seed), 0.93 * 8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["a2c", "vtrace", "ppo"])
def test_recurrent_networks_remember(name: str, mode: str) -> None:
    """Of the best return 3, a policy that cannot remember gets 1.5."""
    check_learning(name, mode, lambda rows, seed: RNNPolicyUnittestEnv(rows, 6, 2, seed=seed), 0.95 * 3, rnn=True)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["a2c", "vtrace", "ppo"])
def test_values_are_those_of_the_rewards(name: str, mode: str) -> None:
    """With gamma 0.5, reward 1 in every step and ends that cannot be seen, V is 1 + 0.5 V, but at the ends.

    Of the 19 steps that lead on, the one i before the end is worth 2 - 2 * 0.5^i; a constant observation tells the mean.
    """
    envs = [ValueUnittestEnv(8, 20, seed=i) for i in range(2)]
    algorithm = make(name, envs[0], 0)
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 20, 2, exp_replayer="one_time", mode=mode, random_seed=1)
    expected = sum(2.0 - 2.0 * 0.5**i for i in range(1, 20)) / 19
    driver.start()
    try:
        for seed in SEEDS:
            begin_anew(algorithm, make(name, envs[0], seed))
            for _ in range(60):
                driver.run_async()
                algorithm.train(**SIZES.get(name, {}))
            value, _ = algorithm._value_network(tf.ones([1, 1]), step_type=tf.constant([1]), network_state=())
            assert float(value[0]) == pytest.approx(expected, abs=0.15), seed
    finally:
        driver.stop()
