"""Nothing is lost, doubled, reordered or misaligned, in any mode and for any sizes."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.data_structures import StepType
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.on_policy_driver import OnPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.environments.testing import FaultyEnvironment
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import make
from tests.drivers.counting import CountingAlgorithm, check_batches, make_envs


@st.composite
def sizes(draw: st.DrawFn) -> dict:
    num_envs = draw(st.integers(1, 4))
    mode = draw(st.sampled_from(["async", "async", "lockstep", "sync"]))
    learn_queue_cap = draw(st.integers(1, 5))
    actors = draw(st.integers(0, num_envs))
    cap = draw(st.integers(1, num_envs // actors)) if actors else 1
    if mode != "async" and actors:
        actors = draw(st.sampled_from([k for k in range(1, num_envs + 1) if num_envs % k == 0]))
        cap, learn_queue_cap = num_envs // actors, num_envs * draw(st.integers(1, 2))
    return {
        "num_envs": num_envs,
        "batch_size": draw(st.integers(1, 3)),
        "unroll_length": draw(st.integers(1, 9)),
        "learn_queue_cap": learn_queue_cap,
        "num_actor_queues": actors,
        "actor_queue_cap": cap,
        "mode": mode,
        "stepping": draw(st.sampled_from(["auto", "graph", "host"])),
        "recurrent": draw(st.booleans()),
    }


def run_driver(
    s: dict, batches: int = 6, train_every: int = 1, **kwargs
) -> tuple[CountingAlgorithm, AsyncOffPolicyDriver]:
    envs = make_envs(s["num_envs"], s["batch_size"])
    algorithm = CountingAlgorithm(envs[0], s["recurrent"])
    driver = AsyncOffPolicyDriver(
        envs,
        algorithm,
        num_actor_queues=s["num_actor_queues"],
        unroll_length=s["unroll_length"],
        learn_queue_cap=s["learn_queue_cap"],
        actor_queue_cap=s["actor_queue_cap"],
        mode=s["mode"],
        stepping=s["stepping"],
        random_seed=7,
        **kwargs,
    )
    driver.start()
    try:
        for i in range(batches):
            steps = driver.run_async()
            assert steps == s["learn_queue_cap"] * s["unroll_length"] * s["batch_size"]
            if i % train_every == 0:
                algorithm.train()
    finally:
        driver.stop()
    return algorithm, driver


@settings(max_examples=8, deadline=None)
@given(sizes())
def test_async_driver_delivers_every_step_once_in_order(s: dict) -> None:
    algorithm, driver = run_driver(s)
    steps = check_batches(algorithm.batches, s["recurrent"])
    assert sum(steps.values()) == 6 * s["learn_queue_cap"] * s["unroll_length"] * s["batch_size"]
    shape = (s["learn_queue_cap"], s["unroll_length"], s["batch_size"])
    assert all(tuple(b.step_type.shape) == shape for b in algorithm.batches)
    # After stop() the metrics have seen every step that the learner took, and no other.
    transitions = sum(int(np.sum(b.step_type.numpy() != 2)) for b in algorithm.batches)
    assert int(driver.get_step_metrics()[1].result()) == transitions


@pytest.mark.parametrize(("mode", "lag"), [("sync", 0), ("lockstep", 1)])
@pytest.mark.parametrize("actors", [0, 1])
def test_paced_modes_have_their_lag_in_every_step_and_a_fixed_order(mode: str, lag: int, actors: int) -> None:
    s = {
        "num_envs": 3,
        "batch_size": 2,
        "unroll_length": 4,
        "learn_queue_cap": 3 if actors else 2,
        "num_actor_queues": actors,
        "actor_queue_cap": 3 if actors else 1,
        "mode": mode,
        "stepping": "graph",
        "recurrent": False,
    }
    algorithm, driver = run_driver(s, batches=7)
    for k, batch in enumerate(algorithm.batches):
        assert set(batch.policy_version.numpy().ravel()) == {max(0, k - lag)}
        q = s["learn_queue_cap"]
        threads = [int(i) // 2 for i in batch.env_id.numpy()[:, 0, 0]]
        assert threads == [(k * q + j) % 3 for j in range(q)]
    assert driver.stats()["lag_max"] == lag


@pytest.mark.parametrize("mode", ["sync", "lockstep"])
def test_paced_modes_do_not_depend_on_train_being_called(mode: str) -> None:
    s = {
        "num_envs": 2,
        "batch_size": 1,
        "unroll_length": 3,
        "learn_queue_cap": 1,
        "num_actor_queues": 0,
        "actor_queue_cap": 1,
        "mode": mode,
        "stepping": "graph",
        "recurrent": True,
    }
    algorithm, _ = run_driver(s, batches=8, train_every=3)
    check_batches(algorithm.batches, True)


@pytest.mark.parametrize("stepping", ["graph", "host"])
def test_every_driver_gives_the_same_streams(stepping: str) -> None:
    """Sync, lockstep, async and the synchronous driver: the same steps and the same actions for each stream."""

    def rows(algorithm: CountingAlgorithm) -> dict[int, list[tuple]]:
        streams: dict[int, list[tuple]] = collections.defaultdict(list)
        for batch in algorithm.batches:
            for q in range(batch.step_type.shape[0]):
                for b in range(batch.step_type.shape[2]):
                    for t in range(batch.step_type.shape[1]):
                        streams[int(batch.env_id[q, t, b])].append(tuple(batch.observation[q, t, b].numpy()))
        return streams

    results = {}
    for mode in ("async", "lockstep", "sync"):
        s = {
            "num_envs": 1,
            "batch_size": 2,
            "unroll_length": 5,
            "learn_queue_cap": 1,
            "num_actor_queues": 0,
            "actor_queue_cap": 1,
            "mode": mode,
            "stepping": stepping,
            "recurrent": True,
        }
        results[mode] = rows(run_driver(s)[0])
    envs = make_envs(1, 2)
    algorithm = CountingAlgorithm(envs[0])
    driver = SyncOffPolicyDriver(envs[0], algorithm, unroll_length=5, random_seed=7, stepping=stepping)
    driver.run(max_num_steps=6 * 10)
    driver.stop()
    check_batches(algorithm.batches, True)
    results["driver"] = rows(algorithm)
    assert results["async"] == results["lockstep"] == results["sync"] == results["driver"]


def test_segment_length_does_not_change_a_stream() -> None:
    """T = 1, T on an episode's border, and T longer than every episode: the same concatenated steps, no empty segment."""
    for length in (1, 4, 12):
        env = make_envs(1, 2)[0]
        algorithm = CountingAlgorithm(env)
        driver = SyncOffPolicyDriver(env, algorithm, unroll_length=length, random_seed=1)
        driver.run(max_num_steps=48)
        driver.stop()
        assert sum(check_batches(algorithm.batches, True).values()) == 48
        assert [b.step_type.shape.as_list() for b in algorithm.batches] == [[24 // length, length, 2]]


def test_segments_before_one_that_fails_are_observed() -> None:
    env = FaultyEnvironment(make_envs(1, 2)[0], raise_at=[13])
    algorithm = CountingAlgorithm(env)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=5, random_seed=1)
    with pytest.raises(RuntimeError, match="fault injected"):
        driver.run(max_num_steps=50)
    driver.stop()
    assert sum(check_batches(algorithm.batches, True).values()) == 20
    acted = sum(np.count_nonzero(b.step_type != StepType.LAST) for b in algorithm.batches)
    assert int(driver.get_metrics()[1].result()) == acted
    with pytest.raises(RuntimeError, match="The driver was stopped, and its environment is closed: make another one"):
        driver.run()


def test_a_driver_that_is_taught_goes_on_counting_too() -> None:
    def driver() -> SyncOffPolicyDriver:
        env = make_envs(1, 2)[0]
        return SyncOffPolicyDriver(env, CountingAlgorithm(env), unroll_length=5, teacher=lambda _, action: action)

    first, second = driver(), driver()
    first.run()
    first.stop()
    second.adopt(first)
    second.run()
    second.stop()
    assert second.stats()["env_steps"] == 20


def test_on_policy_driver_trains_every_interval_on_what_it_acted() -> None:
    env = make_envs(1, 2)[0]
    algorithm = CountingAlgorithm(env)
    driver = OnPolicyDriver(env, algorithm, train_interval=5, random_seed=1)
    time_step, state, steps = driver.run(max_num_steps=25)
    driver.stop()
    assert steps == 30
    assert int(algorithm.iterations) == 3
    check_batches(algorithm.batches, True)
    assert [set(b.policy_version.numpy().ravel()) for b in algorithm.batches] == [{0}, {1}, {2}]
    with pytest.raises(ValueError, match=r"goes on where .* pass the time_step that"):
        driver.run(5, time_step._replace(), state)
    with pytest.raises(
        ValueError, match=r"goes on where .* pass the policy_state that the last run\(\) returned, or None"
    ):
        driver.run(5, time_step, state + 1.0)


def test_a_policy_state_is_that_of_the_last_call_or_none() -> None:
    env = make_envs(1, 2)[0]
    driver = SyncOffPolicyDriver(env, CountingAlgorithm(env), unroll_length=5, random_seed=1)
    with pytest.raises(ValueError, match=r"goes on where .* pass the policy_state that"):
        driver.run(policy_state=tf.zeros([2]))
    driver.run(5, *driver.run(5))
    driver.stop()
    stateless = SyncOffPolicyDriver(make_envs(1, 2)[0], CountingAlgorithm(env, recurrent=False), unroll_length=5)
    stateless.run(policy_state=())
    stateless.stop()


def test_on_policy_driver_may_only_play() -> None:
    env = make_envs(1, 2)[0]
    algorithm = CountingAlgorithm(env, recurrent=False)
    trained = SyncOffPolicyDriver(env, algorithm, unroll_length=5, exp_replayer="uniform", random_seed=1)
    trained.run(10)
    seen: list[Any] = []
    memory, batches = algorithm.exp_replayer, len(algorithm.batches)
    driver = OnPolicyDriver(
        make_envs(1, 2)[0], algorithm, [seen.append], training=False, train_interval=5, random_seed=1
    )
    assert driver.run(max_num_steps=20)[2] == 20
    driver.gather()
    driver.stop()
    assert len(seen) == 3
    # What another driver trains from stands as it was.
    assert algorithm.exp_replayer is memory
    assert not algorithm.use_rollout_state
    assert len(algorithm.batches) == batches
    assert int(algorithm.iterations) == 0
    trained.run(10)
    trained.stop()
    check_batches(algorithm.batches, False)


def test_on_policy_driver_refuses_segments_shorter_than_its_targets_look_ahead() -> None:
    env = PolicyUnittestEnv(4, 5, seed=0)
    algorithm = make("dqn", *specs_of(env), critic_loss=OneStepTDLoss(0.9, n_step=5))
    with pytest.raises(
        ValueError, match=r"^DqnAlgorithm looks 5 steps ahead.* train_interval=4 .*set it to at least 5"
    ):
        OnPolicyDriver(env, algorithm, train_interval=4)
    driver = OnPolicyDriver(env, algorithm, train_interval=5, random_seed=1)
    driver.run(max_num_steps=20)
    driver.stop()
    assert int(algorithm.iterations) == 1


def test_max_policy_lag_drops_and_counts_and_zero_does_not_dead_lock() -> None:
    envs = make_envs(3, 2)
    algorithm = CountingAlgorithm(envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 4, 1, max_policy_lag=0, random_seed=1)
    driver.start()
    try:
        for _ in range(20):
            driver.run_async()
            algorithm.train()
    finally:
        driver.stop()
    for k, batch in enumerate(algorithm.batches):
        assert set(batch.policy_version.numpy().ravel()) == {k}
    assert driver.stats()["dropped_steps"] > 0
    histogram = driver.lag_histogram()
    assert histogram[1:].sum() * 2 == driver.stats()["dropped_steps"]
    # Dropped segments still count as environment steps: metrics follow the streams without a gap.
    assert int(driver.get_step_metrics()[1].result()) > 0
