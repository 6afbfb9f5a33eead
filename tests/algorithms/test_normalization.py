"""Normalisation inside the agent: counted once, in the learner, and of one version with the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.algorithms.normalization import ObservationNormalizer, RewardNormalizer
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.data_structures import Experience, StepType
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv, UnittestEnv
from tests.algorithms import networks

BATCH, EPISODE, LENGTH = 4, 5, 8


class ShiftedEnv(PolicyUnittestEnv):
    """Observations far from 0, of very different size."""

    def _observe(self) -> np.ndarray:
        bits = super()._observe()
        noise = self._rng.normal(size=(self._batch_size, 1))
        return np.concatenate([bits[:, :1] * 4.0 + 100.0, 1e-3 * noise], 1).astype(np.float32)

    def observation_spec(self) -> Any:
        return UnittestEnv.observation_spec(self).replace(shape=(2,))


def make(env: Any, normalize: bool = True, lr: float = 1e-2) -> Agent:
    obs, act = networks.specs_of(env)

    def make_ppo(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> PPOAlgorithm:
        nets = networks.feed_forward(observation_spec, action_spec, (16,))
        return PPOAlgorithm(observation_spec, action_spec, *nets, loss=PPOLoss(action_spec, gamma=0.9))

    parts: dict[str, Any] = {}
    if normalize:
        parts = {"observation_normalizer": ObservationNormalizer(obs), "reward_normalizer": RewardNormalizer(gamma=0.9)}
    return Agent(obs, act, make_ppo, optimizer=tf.keras.optimizers.legacy.Adam(lr), **parts)


def run(agent: Agent, iterations: int, mode: str = "sync", **train: Any) -> tuple[list[Experience], list[Any]]:
    """What the learner got, and what each iteration reported."""
    got: list[Experience] = []
    agent.add_experience_observer(got.append)
    envs = [ShiftedEnv(BATCH, EPISODE, seed=i) for i in range(2)]
    driver = AsyncOffPolicyDriver(envs, agent, 0, LENGTH, 2, mode=mode, random_seed=3)
    driver.start()
    metrics = []
    try:
        for _ in range(iterations):
            driver.run_async()
            agent.train(**train)
            metrics.append({k: float(v) for k, v in agent.last_train_metrics.items()})
    finally:
        driver.stop()
    return got, metrics


def test_statistics_count_every_observed_step_once_however_often_it_is_trained_on() -> None:
    tf.random.set_seed(0)
    agent = make(ShiftedEnv(BATCH, EPISODE))
    got, _ = run(agent, 3, num_updates=4, mini_batch_size=16, mini_batch_length=1)
    rows = np.concatenate([e.observation.numpy().reshape(-1, 2) for e in got]).astype(np.float64)
    count, mean, variance = agent._observation_normalizer._normalizer.moments()
    assert float(count) == len(rows) == 3 * 2 * LENGTH * BATCH
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(variance, rows.var(0), rtol=1e-6)


def test_the_running_return_of_each_environment_scales_its_rewards() -> None:
    tf.random.set_seed(0)
    agent = make(ShiftedEnv(BATCH, EPISODE))
    got, _ = run(agent, 3)
    returns: dict[int, float] = {}
    seen = []
    for exp in got:
        step_type, reward, env_id = (x.numpy() for x in (exp.step_type, exp.reward, exp.env_id))
        for q in range(step_type.shape[0]):
            for t in range(step_type.shape[1]):
                for b in range(step_type.shape[2]):
                    i = int(env_id[q, t, b])
                    if step_type[q, t, b] == StepType.FIRST:
                        returns[i] = 0.0
                        continue
                    returns[i] = 0.9 * returns.get(i, 0.0) + float(reward[q, t, b])
                    seen.append(returns[i])
    count, _, variance = agent._reward_normalizer._normalizer.moments()
    assert float(count) == len(seen)
    assert float(variance) == pytest.approx(np.var(seen), rel=1e-5)
    scaled = agent._reward_normalizer.normalize(tf.constant([1.0, -2.0, 1e6]))
    np.testing.assert_allclose(scaled, [1 / np.std(seen), -2 / np.std(seen), 10.0], rtol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_returns_go_on_from_call_to_call(rank: int) -> None:
    outer = {1: [3], 2: [1, 3], 3: [1, 1, 3]}[rank]
    normalizer, returns, seen = RewardNormalizer(gamma=0.5), np.zeros(3), []
    rs = np.random.RandomState(0)
    for t in range(6):
        step_type = np.array([StepType.FIRST if (t + i) % 4 == 0 else StepType.MID for i in range(3)], np.int32)
        reward = rs.rand(3).astype(np.float32)
        exp = Experience(step_type=step_type, reward=reward, env_id=np.array([4, 0, 2], np.int32))
        exp = exp._replace(**{k: tf.reshape(v, outer) for k, v in exp._asdict().items() if not isinstance(v, tuple)})
        normalizer.observe(exp)
        returns = np.where(step_type == StepType.FIRST, 0.0, 0.5 * returns + reward)
        seen += list(returns[step_type != StepType.FIRST])
    normalizer.publish()
    assert float(normalizer._normalizer.moments().variance) == pytest.approx(np.var(seen), rel=1e-5)


def test_acting_and_learning_see_one_version_of_the_statistics() -> None:
    """Otherwise the ratio would not be 1 although nothing was learned yet."""
    tf.random.set_seed(0)
    agent = make(ShiftedEnv(BATCH, EPISODE))
    _, metrics = run(agent, 5)
    for m in metrics:
        assert m["approx_kl"] == pytest.approx(0.0, abs=1e-7)
        assert m["clip_fraction"] == 0.0


def test_the_oracle_above_fails_when_statistics_change_between_acting_and_learning() -> None:
    tf.random.set_seed(0)
    agent = make(ShiftedEnv(BATCH, EPISODE))
    agent.add_experience_observer(lambda exp: agent._observation_normalizer.publish())
    _, metrics = run(agent, 5)
    assert max(m["approx_kl"] for m in metrics) > 1e-5


def test_statistics_belong_to_a_policy_version_and_stand_still_in_acting_and_evaluation() -> None:
    agent = make(ShiftedEnv(BATCH, EPISODE))
    statistics = agent._observation_normalizer._normalizer
    acting = {v.ref() for v in agent.acting_variables()}
    assert {statistics._moments._mean.ref(), statistics._moments._variance.ref()} <= acting
    assert not {v.ref() for v in agent._observation_normalizer._pending.variables} & acting
    run(agent, 2)
    before = [x.numpy() for x in tf.nest.flatten(tuple(statistics.moments()))]
    evaluation = PolicyDriver(ShiftedEnv(BATCH, EPISODE, seed=9), agent)
    evaluation.freeze()
    evaluation.run_episodes(8)
    after = [x.numpy() for x in tf.nest.flatten(tuple(statistics.moments()))]
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x, y)


def test_statistics_are_saved_with_the_weights(tmp_path: Any) -> None:
    tf.random.set_seed(0)
    agent, other = make(ShiftedEnv(BATCH, EPISODE)), make(ShiftedEnv(BATCH, EPISODE))
    run(agent, 2)
    for a in (agent, other):
        a.acting_variables()
        a.build_optimizers()
    path = tf.train.Checkpoint(algorithm=agent).write(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(algorithm=other).read(path).assert_existing_objects_matched()
    x = tf.constant([[101.0, 1e-3]])
    np.testing.assert_array_equal(
        agent._observation_normalizer.normalize(x), other._observation_normalizer.normalize(x)
    )
    assert (other._observation_normalizer.normalize(x).numpy() != x.numpy()).all()
    np.testing.assert_array_equal(agent._reward_normalizer.normalize(x), other._reward_normalizer.normalize(x))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_observations_far_from_zero_are_learned_from(mode: str, seed: int) -> None:
    tf.random.set_seed(seed)
    agent = make(ShiftedEnv(BATCH, EPISODE))
    envs = [ShiftedEnv(16, EPISODE, seed=10 * seed + i) for i in range(2)]
    driver = AsyncOffPolicyDriver(envs, agent, 0, 16, 2, mode=mode, random_seed=seed)
    average_return = driver.get_metrics()[2]
    driver.start()
    try:
        for _ in range(60):
            driver.run_async()
            agent.train(num_updates=4, mini_batch_size=128, mini_batch_length=1)
            if average_return.result() > 3.7:
                break
    finally:
        driver.stop()
    assert average_return.result() > 3.7


def test_a_normaliser_of_other_observations_than_the_agent_transforms_to_is_refused_at_once() -> None:
    env = ShiftedEnv(BATCH, EPISODE)
    obs, act = networks.specs_of(env)

    def make_ppo(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> PPOAlgorithm:
        nets = networks.feed_forward(observation_spec, action_spec, (4,))
        return PPOAlgorithm(observation_spec, action_spec, *nets, loss=PPOLoss(action_spec))

    def made(spec: Any, **transforms: Any) -> Agent:
        return Agent(obs, act, make_ppo, observation_normalizer=ObservationNormalizer(spec), **transforms)

    stacked = tf.TensorSpec([2, 2], tf.float32)
    with pytest.raises(ValueError, match=r"made for observations of shape \(2, 2\), the transformed ones have \(2,\)"):
        made(stacked)
    with pytest.raises(ValueError, match=r"of shape \(2,\), the transformed ones have \(3,\)"):
        made(obs, observation_transformer=lambda o: tf.concat([o, o[..., :1]], -1))
    with pytest.raises(ValueError, match=r"set ObservationNormalizer\.observation_spec"):
        made({"obs": obs})
    with pytest.raises(
        ValueError, match=r"floats, and the transformed observations are int64: .* end with cast_transformer"
    ):
        made(obs, observation_transformer=lambda o: tf.cast(o, tf.int64))
    made(obs, observation_transformer=lambda o: tf.cast(o, tf.float64))
    made(obs, observation_transformer=lambda o: o * 2.0)


def test_returns_of_segments_of_one_stream_in_one_batch() -> None:
    """Agents that decide often bring several segments of a stream at once: each goes on where the one before has ended."""
    normalizer, rs = RewardNormalizer(gamma=0.5), np.random.RandomState(1)
    returns: dict[int, float] = {}
    seen = []
    for env_id in ([4, 0, 4, 4, 2], [0, 2, 0, 4, 2]):
        step_type = np.where(rs.rand(1, 3, 5) < 0.2, StepType.FIRST, StepType.MID).astype(np.int32)
        reward = rs.rand(1, 3, 5).astype(np.float32)
        ids = np.broadcast_to(np.array(env_id, np.int32), step_type.shape)
        exp = Experience(step_type=step_type, reward=reward, env_id=ids)
        normalizer.observe(
            exp._replace(**{k: tf.constant(v) for k, v in exp._asdict().items() if not isinstance(v, tuple)})
        )
        for column, i in enumerate(env_id):
            for t in range(3):
                if step_type[0, t, column] == StepType.FIRST:
                    returns[i] = 0.0
                    continue
                returns[i] = 0.5 * returns.get(i, 0.0) + float(reward[0, t, column])
                seen.append(returns[i])
    normalizer.publish()
    assert float(normalizer._normalizer.moments().count) == len(seen)
    assert float(normalizer._normalizer.moments().variance) == pytest.approx(np.var(seen), rel=1e-5)
    np.testing.assert_allclose(
        normalizer._returns.variable.numpy()[[0, 2, 4]], [returns[i] for i in (0, 2, 4)], rtol=1e-5
    )
