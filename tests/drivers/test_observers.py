"""What observers, metrics and the learner are told."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.environments.testing import CountingEnvironment
from alf.metrics.metrics import NumberOfEpisodes
from tests.algorithms.networks import ppo
from tests.drivers.counting import CountingAlgorithm, make_envs


def _run(driver: AsyncOffPolicyDriver, batches: int = 6) -> None:
    driver.start()
    try:
        for _ in range(batches):
            driver.run_async()
            driver.algorithm.train()
    finally:
        driver.stop()


def test_observers_get_every_step_of_every_environment_in_order_with_its_id() -> None:
    seen: dict[int, list[Any]] = {}
    algorithm = CountingAlgorithm(make_envs(1, 2)[0])
    driver = AsyncOffPolicyDriver(
        make_envs(3, 2), algorithm, 0, 5, 2, observers=[lambda t, i: seen.setdefault(i, []).append(t)], random_seed=1
    )
    _run(driver)
    taken: dict[int, list[np.ndarray]] = {}
    for batch in algorithm.batches:
        for q in range(2):
            taken.setdefault(int(batch.env_id[q, 0, 0]) // 2, []).append(batch.observation[q].numpy())
    assert set(seen) == set(taken)
    for thread, trajectories in seen.items():
        observation = np.concatenate([t.observation.numpy() for t in trajectories])
        np.testing.assert_array_equal(observation, np.concatenate(taken[thread]))
        step_type = np.concatenate([t.step_type for t in trajectories])
        following = np.concatenate([t.next_step_type for t in trajectories])
        np.testing.assert_array_equal(step_type[1:], following[:-1])
        action = np.concatenate([t.action.numpy() for t in trajectories])
        reward = np.concatenate([t.reward for t in trajectories])
        position = observation[..., 2]
        expected = np.where(step_type == 2, 0.0, position + 1 + action / 64)
        np.testing.assert_array_equal(reward, expected.astype(np.float32))
        discount = np.concatenate([t.discount for t in trajectories])
        arrived = np.concatenate(
            [b.discount[q].numpy() for b in algorithm.batches for q in range(2) if _of(b, q, thread)]
        )
        np.testing.assert_array_equal(discount[:-1], arrived[1:])


def _of(batch: Any, q: int, thread: int) -> bool:
    return int(batch.env_id[q, 0, 0]) // 2 == thread


def test_metrics_see_raw_rewards_and_the_learner_the_shaped_ones() -> None:
    env = CountingEnvironment(1, episode_lengths=[3])
    algorithm = CountingAlgorithm(env)
    algorithm._reward_shaping_fn = lambda r: r * 100.0
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8)
    driver.run(16)
    driver.stop()
    assert int(driver.get_metrics()[0].result()) == 4
    assert float(driver.get_metrics()[3].result()) == 3
    shaped = np.concatenate([b.reward.numpy().ravel() for b in algorithm.batches])
    assert shaped.max() > 300
    assert float(driver.get_metrics()[2].result()) == pytest.approx(shaped.sum() / 100 / 4)


def test_an_observation_is_transformed_once_and_the_learner_gets_what_the_actor_saw() -> None:
    env = make_envs(1, 2)[0]
    algorithm = CountingAlgorithm(env)
    algorithm._observation_transformers = [lambda o: o + 1000.0]
    acted: list[np.ndarray] = []
    rollout = algorithm.rollout

    def watched(time_step: Any, state: Any, mode: int) -> Any:
        if mode == 2:
            watch = tf.numpy_function(lambda o: acted.append(o) or o, [time_step.observation], tf.float32)
            watch.set_shape(time_step.observation.shape)
            time_step = time_step._replace(observation=watch)
        return rollout(time_step, state, mode)

    algorithm.rollout = watched  # type: ignore[method-assign]
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=6)
    driver.run(12)
    driver.stop()
    learned = algorithm.batches[0].observation[0].numpy()
    np.testing.assert_array_equal(learned, np.stack(acted))
    assert learned.min() >= 1000
    assert learned.max() < 2000


def test_a_slow_observer_blocks_by_choice_is_counted_and_misses_nothing() -> None:
    count: list[int] = []

    def slow(trajectory: Any, thread: int) -> None:
        # The first call lasts until no more segments fit between learner and observer, and the learner has met that.
        deadline = time.monotonic() + 60
        while not count and driver.stats()["log_queue_fill"] < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05 if count else 1.0)
        count.append(trajectory.step_type.size)

    driver = AsyncOffPolicyDriver(
        make_envs(2, 1), CountingAlgorithm(make_envs(1, 1)[0]), 0, 4, 1, observers=[slow], random_seed=1
    )
    _run(driver, 20)
    assert sum(count) == 20 * 4
    assert driver.stats()["log_queue_wait_secs"] > 0


def test_environment_i_asks_actor_i_mod_k_and_a_forward_has_a_times_b_rows() -> None:
    rows: set[int] = set()

    class Watched(CountingAlgorithm):
        def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
            if not tf.executing_eagerly():
                rows.add(time_step.reward.shape[0])
            return super().rollout(time_step, state, mode)

    envs = make_envs(6, 3)
    algorithm = Watched(envs[0])
    algorithm.acting_variables()
    rows.clear()
    driver = AsyncOffPolicyDriver(envs, algorithm, 2, 4, 2, 3, random_seed=1)
    handles = [c._handles[0] for c in driver._collection.collectors]
    assert all(handles[i] is driver._queues.actor_queues[i % 2].handle for i in range(6))
    _run(driver)
    assert rows == {9}


def test_settings_of_the_device_hold_in_every_thread() -> None:
    devices: set[str] = set()
    with tf.device("/CPU:0"):
        driver = AsyncOffPolicyDriver(
            make_envs(1, 1),
            CountingAlgorithm(make_envs(1, 1)[0]),
            0,
            4,
            1,
            observers=[lambda t, i: devices.add((threading.current_thread().name, context.context().device_name))],
        )
        expected = context.context().device_name
        _run(driver, 2)
    assert devices == {("alf-log", expected)}


def test_policy_driver_plays_greedily_counts_episodes_and_trains_nothing() -> None:
    env = PolicyUnittestEnv(3, 5, seed=1)
    algorithm = ppo(env)
    before = [v.numpy() for v in algorithm.variables]
    user = NumberOfEpisodes()
    driver = PolicyDriver(env, algorithm, metrics=[user], epsilon_greedy=0.0, random_seed=1)
    driver.run_episodes(6)
    assert int(driver.get_metrics()[0].result()) == 6 == int(user.result())
    assert float(driver.get_metrics()[3].result()) == 4
    assert float(driver.get_metrics()[2].result()) <= 4
    time_step, state = driver.run(9)
    driver.run(3, time_step, state)
    for old, variable in zip(before, algorithm.variables, strict=True):
        np.testing.assert_array_equal(old, variable)
    with pytest.raises(ValueError, match=r"epsilon_greedy is a chance"):
        PolicyDriver(env, algorithm, epsilon_greedy=2.0)
    with pytest.raises(ValueError, match="mode=9"):
        PolicyDriver(env, algorithm, mode=9)
    with pytest.raises(ValueError, match="not a batched environment"):
        PolicyDriver(object(), algorithm)


@pytest.mark.parametrize("what", ["observers", "metrics"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (print, r"must be a list of what is called with trajectories, or None; got <built-in function print>\."),
        (3, r"must be a list of what is called with trajectories, or None; got 3\."),
        ([print, None], r"\[1\] is called with trajectories, and None cannot be\."),
        (
            [NumberOfEpisodes],
            r"of a driver has the class NumberOfEpisodes: an? (metric|observer) is an object .*, in gin made by @name\(\)",
        ),
    ],
    ids=["a function", "a number", "None in it", "a class"],
)
def test_what_cannot_be_called_is_told_before_anything_starts(what: str, given: Any, told: str) -> None:
    env = CountingEnvironment(1)
    with pytest.raises(ValueError, match=f"^{what} ?{told}"):
        SyncOffPolicyDriver(env, CountingAlgorithm(env), unroll_length=2, **{what: given})
    env.close()
