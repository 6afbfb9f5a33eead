"""TRAC over algorithms with critics: the actor moves no further than allowed, the critics as without it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms import trac_algorithm
from alf.algorithms.agent import Agent
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import Experience, StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import make
from tests.algorithms.test_trac_algorithm import BATCH, LENGTH, distance, experience

OBS = tf.TensorSpec([3], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
DIMS = {"sac": 2, "ddpg": 2, "td3": 2, "discrete_sac": 3}
CLIP = 1e-3


def agent_of(name: str, clip: float | None) -> Agent:
    """With steps of the actor that go far; TRAC only with a `clip`."""

    def inner(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
        slow, fast = (tf.keras.optimizers.legacy.SGD(rate) for rate in (0.01, 30.0))
        return make(name, observation_spec, action_spec, actor_optimizer=fast, critic_optimizer=slow)

    make_rl: Any = inner
    if clip is not None:
        make_rl = functools.partial(TracAlgorithm, ac_algorithm_cls=inner, action_dist_clip_per_dim=clip)
    tf.keras.utils.set_random_seed(0)
    agent = Agent(OBS, CHOICE if name == "discrete_sac" else BOX, make_rl)
    algorithm = inner_of(agent)
    rs = np.random.RandomState(1)
    for network in (algorithm._actor_network, *algorithm._critic_networks, *algorithm._target_networks):
        for variable in network.trainable_variables:
            variable.assign(rs.normal(scale=0.3, size=variable.shape))
    return agent


def inner_of(agent: Agent) -> Any:
    rl: Any = agent._rl_algorithm
    return rl._ac_algorithm if isinstance(rl, TracAlgorithm) else rl


def policy(agent: Agent, exp: Experience) -> Any:
    """What the actor does at every row, [BATCH * LENGTH]."""
    rows = tf.reshape(exp.observation, [-1, 3])
    return inner_of(agent)._actor_network(rows, step_type=tf.reshape(exp.step_type, [-1]), network_state=())[0]


def moved(one: Any, other: Any, exp: Experience) -> float:
    """The root of the mean squared distance over the rows that count."""
    valid = exp.step_type.numpy().reshape(-1) != StepType.LAST
    if isinstance(one, tf.Tensor):
        return float(np.sqrt(np.square(one - other).sum(-1)[valid].mean()))
    return float(np.sqrt(distance(one, other)[valid].mean()))


@pytest.mark.parametrize("name", DIMS)
def test_the_actor_stays_within_the_limit_and_critics_learn_as_without_it(name: str) -> None:
    limit, shortened = np.sqrt(CLIP * DIMS[name]), 0
    held, free = agent_of(name, CLIP), agent_of(name, None)
    for seed in range(2):
        exp = experience(held, seed)
        before, before_free = policy(held, exp), policy(free, exp)
        for agent in (held, free):
            agent.train_from(exp)
        assert moved(before, policy(held, exp), exp) <= limit * 1.001
        shortened += moved(before, policy(held, exp), exp) > 0.3 * limit
        if seed == 0 and name != "td3":
            assert moved(before_free, policy(free, exp), exp) > 2.0 * limit
        if seed == 0:
            networks = [[*inner_of(a)._critic_networks, *inner_of(a)._target_critics] for a in (held, free)]
            for one, other in zip(*networks, strict=True):
                for v, w in zip(one.variables, other.variables, strict=True):
                    np.testing.assert_allclose(v, w, rtol=1e-5, atol=1e-6)
    assert shortened


def test_the_target_actor_follows_the_shortened_step() -> None:
    agent = agent_of("ddpg", CLIP)
    algorithm = inner_of(agent)
    before = [v.numpy() for v in algorithm._target_actor.variables]
    agent.train_from(experience(agent, 0))
    for old, target, actor in zip(
        before, algorithm._target_actor.variables, algorithm._actor_network.variables, strict=True
    ):
        np.testing.assert_allclose(target, old + 0.05 * (actor - old), rtol=1e-4, atol=1e-6)


def test_distances_of_deterministic_actions_are_those_of_the_definition() -> None:
    rs = np.random.RandomState(0)
    one, other = rs.normal(size=(2, LENGTH, BATCH, 2)).astype(np.float32)
    found = trac_algorithm.squared_distance(tf.constant(one), tf.constant(other), 2)
    for t in range(LENGTH):
        for b in range(BATCH):
            assert float(found[t, b]) == pytest.approx(sum((one[t, b] - other[t, b]) ** 2), rel=1e-5)
    assert trac_algorithm.max_distance(BOX, 0.01) == pytest.approx(np.sqrt(0.02))


def test_the_wrapped_algorithm_shapes_rewards_and_transforms_observations_once() -> None:
    """Metrics show the rewards of the environment."""

    def inner(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        of_steps = {"reward_shaping_fn": lambda r: 100.0 * r, "observation_transformer": lambda o: o + 1000.0}
        return make("ddpg", observation_spec, action_spec, **of_steps)

    env = PolicyUnittestEnv(4, 5, action_type=ActionType.Continuous, seed=0)
    algorithm, seen = TracAlgorithm(*specs_of(env), inner), list[Experience]()
    algorithm.add_experience_observer(seen.append)
    driver = SyncOffPolicyDriver(env, algorithm, 10, exp_replayer="uniform", random_seed=0)
    try:
        driver.run()
        algorithm.train(mini_batch_size=8, mini_batch_length=2, whole_replay_buffer_training=False)
    finally:
        driver.stop()
    (exp,) = seen
    assert exp.observation.numpy().min() >= 900.0
    assert exp.observation.numpy().max() < 1900.0
    episodes, _, average_return, _ = (float(metric.result()) for metric in driver.get_metrics()[:4])
    assert algorithm.shapes_reward
    assert abs(average_return) > 0.0
    assert average_return == pytest.approx(exp.reward.numpy().sum() / 100.0 / episodes, rel=1e-4)


def test_an_algorithm_without_an_actor_is_refused() -> None:
    with pytest.raises(ValueError, match="ac_algorithm_cls makes a DqnAlgorithm, which has no _actor_network"):
        TracAlgorithm(
            OBS, CHOICE, lambda observation_spec, action_spec, **_: make("dqn", observation_spec, action_spec)
        )
