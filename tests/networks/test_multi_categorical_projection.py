"""Several discrete choices of different sizes: each is a categorical distribution of its own, and is learned as such."""

from __future__ import annotations

from typing import Any

import gin
import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.trac_algorithm import TracAlgorithm, max_distance
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment, suite_gym
from alf.networks.multi_categorical_projection_network import MultiCategoricalProjectionNetwork
from alf.trainers.config import TrainerConfig
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.utils import dist_utils, rng
from alf.utils.action_masks import split_mask
from alf.utils.random_actions import random_actions
from tests.algorithms.networks import feed_forward, specs_of
from tests.algorithms.off_policy import adam
from tests.trainers.small_run import make_algorithm

SIZES = (3, 1, 5, 2)
ACTION = BoundedTensorSpec([4], tf.int64, 0, np.array(SIZES) - 1)
EPISODE = 8


class Choices(gymnasium.Env):
    """A step's reward is the mean of the offers taken, one from each choice; nothing else is accepted.

    Observation: the offers, float32 [sum of sizes], alone or beside a mask int8 [4, 5], a component's own part of which counts.
    """

    def __init__(self, masked: bool = False) -> None:
        self.action_space = gymnasium.spaces.MultiDiscrete(SIZES)
        self.observation_space: gymnasium.Space = gymnasium.spaces.Box(0, 1, (sum(SIZES),), np.float32)
        self.masked = masked
        if masked:
            mask = gymnasium.spaces.MultiBinary((4, 5))
            self.observation_space = gymnasium.spaces.Dict({"offers": self.observation_space, "mask": mask})

    def _observe(self) -> Any:
        offers = self.np_random.random(sum(SIZES), np.float32)
        self.offers = np.split(offers, np.cumsum(SIZES)[:-1])
        self.mask = self.np_random.random((4, 5)) < 0.6
        self.mask[range(4), self.np_random.integers(SIZES)] = True
        return {"offers": offers, "mask": self.mask.astype(np.int8)} if self.masked else offers

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.asarray(action)), action
        assert not self.masked or self.mask[range(4), action].all(), (self.mask, action)
        self.time += 1
        reward = float(np.mean([offers[a] for offers, a in zip(self.offers, action, strict=True)]))
        return self._observe(), reward, False, self.time == EPISODE, {}


def environment(masked: bool, rows: int, seed: int) -> Any:
    return create_environment(
        lambda: Choices(masked), env_load_fn=suite_gym.load, num_parallel_environments=rows, seed=seed
    )


def best_return(masked: bool) -> float:
    """The mean return of the best policy."""
    rng, total = np.random.default_rng(0), 0.0
    for _ in range(4000):
        for size in SIZES:
            allowed = rng.random(size) < 0.6 if masked else np.ones(size, bool)
            allowed[rng.integers(size)] = True
            total += rng.random(size)[allowed].max() / len(SIZES)
    return total / 4000 * EPISODE


def projection(features: int = 6) -> tuple[MultiCategoricalProjectionNetwork, tf.Tensor]:
    tf.keras.utils.set_random_seed(0)
    network = MultiCategoricalProjectionNetwork(ACTION, logits_init_output_factor=3.0)
    return network, tf.random.stateless_normal([2, 7, features], [1, 2])


def test_each_component_has_a_distribution_of_its_own() -> None:
    network, inputs = projection()
    distribution, state = network(inputs, outer_rank=2)
    assert state == ()
    assert distribution.batch_shape == [2, 7, 4]
    assert distribution.dtype == tf.int64
    kernel, bias = (weights.numpy() for weights in network.trainable_weights)
    scores = (inputs.numpy() @ kernel + bias).reshape(2, 7, 4, 5)
    action = np.stack([np.random.default_rng(i).integers(size, size=(2, 7)) for i, size in enumerate(SIZES)], -1)
    log_prob = dist_utils.compute_log_probability(distribution, tf.constant(action), 2).numpy()
    entropy, _ = dist_utils.compute_entropy(distribution, 2)
    for t, b in np.ndindex(2, 7):
        expected_log_prob = expected_entropy = 0.0
        for i, size in enumerate(SIZES):
            p = np.exp(scores[t, b, i, :size].astype(np.float64))
            p /= p.sum()
            expected_log_prob += np.log(p[action[t, b, i]])
            expected_entropy -= (p * np.log(p)).sum()
        assert log_prob[t, b] == pytest.approx(expected_log_prob, abs=1e-5)
        assert entropy.numpy()[t, b] == pytest.approx(expected_entropy, abs=1e-5)


def test_what_a_component_does_not_have_is_never_drawn_and_gets_no_gradient() -> None:
    network, inputs = projection()
    with tf.GradientTape() as tape:
        distribution, _ = network(inputs, outer_rank=2)
        action = tf.zeros([2, 7, 4], tf.int64)
        entropy, _ = dist_utils.compute_entropy(distribution, 2)
        loss = tf.reduce_sum(dist_utils.compute_log_probability(distribution, action, 2) + 0.1 * entropy)
    gradient = tape.gradient(loss, network.trainable_weights)[0].numpy().reshape(-1, 4, 5)
    there = np.arange(5) < np.array(SIZES)[:, np.newaxis]
    assert np.isfinite(gradient).all()
    assert (gradient[:, ~there] == 0).all()
    assert (np.abs(gradient[:, there]).max(0) > 0).tolist() == [size > 1 for size in SIZES for _ in range(size)]
    drawn = distribution.sample(500, seed=1).numpy().reshape(-1, 4)
    assert [set(column) for column in drawn.T] == [set(range(size)) for size in SIZES]
    assert (distribution.mode().numpy() < SIZES).all()


@pytest.mark.parametrize(
    "spec",
    [
        BoundedTensorSpec([2], tf.float32, 0, 1),
        BoundedTensorSpec([2], tf.int64, 1, [3, 2]),
        BoundedTensorSpec([2], tf.int64, 0, [3, -1]),
    ],
)
def test_other_actions_are_refused(spec: BoundedTensorSpec) -> None:
    with pytest.raises(ValueError, match="needs discrete choices that are numbered from 0 on; got"):
        MultiCategoricalProjectionNetwork(spec)


def test_random_actions_where_nothing_is_allowed_are_those_of_the_spec() -> None:
    with rng.scope(tf.constant([1, 2])):
        drawn = random_actions(ACTION, tf.constant([400]), tf.ones([400, 4, 5], tf.bool)).numpy()
    assert [set(column) for column in drawn.T] == [set(range(size)) for size in SIZES]


def test_the_step_of_trac_is_bounded_by_all_choices() -> None:
    assert max_distance(ACTION, 0.01) == pytest.approx((0.01 * sum(SIZES)) ** 0.5)


def algorithm_of(name: str, masked: bool) -> Any:
    obs, act = specs_of(environment(masked, 1, 0))
    split = {"observation_and_action_constraint_splitter": split_mask} if masked else {}
    seen = obs["offers"] if masked else obs
    actor, value = feed_forward(seen, act, projection={"discrete_projection_net": MultiCategoricalProjectionNetwork})
    arguments = {"gamma": 0.2, "entropy_regularization": 0.005}
    if name == "ppo":
        loss = PPOLoss(act, **arguments)
        return PPOAlgorithm(obs, act, actor, value, loss=loss, optimizer=adam(1e-2), **split)
    loss = ActorCriticLoss(act, use_vtrace=True, **arguments)
    return ActorCriticAlgorithm(obs, act, actor, value, loss=loss, optimizer=adam(1e-2), **split)


def test_trac_with_several_choices() -> None:
    obs, act = specs_of(environment(True, 1, 0))
    algorithm = TracAlgorithm(obs, act, ac_algorithm_cls=lambda **_: algorithm_of("vtrace", True))
    driver = SyncOffPolicyDriver(environment(True, 4, 0), algorithm, 10, random_seed=1)
    try:
        driver.gather(at_random=True)
        driver.run()
        algorithm.train(num_updates=1)
    finally:
        driver.stop()
    assert np.isfinite(float(algorithm.last_train_metrics["loss"]))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["ppo", "vtrace"])
def test_the_best_of_each_choice_is_learned(name: str, masked: bool) -> None:
    tf.keras.utils.set_random_seed(5)
    algorithm = algorithm_of(name, masked)
    envs = [environment(masked, 16, i) for i in range(2)]
    driver = AsyncOffPolicyDriver(envs, algorithm, num_actor_queues=0, unroll_length=16, mode="lockstep", random_seed=1)
    judge = PolicyDriver(environment(masked, 16, 99), algorithm, epsilon_greedy=0.0, random_seed=2)
    good, mean = 0.95 * best_return(masked), 0.0
    driver.start()
    try:
        for i in range(300):
            driver.run_async()
            algorithm.train(num_updates=4 if name == "ppo" else 1, mini_batch_length=16)
            if i % 20 == 19:
                judge.run_episodes(64)
                mean = float(judge.get_metrics()[2].result())
                if mean > good:
                    break
    finally:
        driver.stop()
    assert mean > good, (name, masked, mean, good)


def test_the_usual_projection_names_this_one(tmp_path: Any) -> None:
    gin.bind_parameter("create_environment.env_name", Choices)
    config = TrainerConfig(str(tmp_path), trainer=SyncOffPolicyTrainer, algorithm_ctor=make_algorithm)
    with pytest.raises(ValueError, match=r"different numbers of values.*discrete_projection_net = @Multi"):
        config.create_trainer().initialize()
