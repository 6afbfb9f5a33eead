"""What drivers put into a replay memory, held against everything that they delivered."""

from __future__ import annotations

import itertools
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import StepType
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from tests.drivers.counting import LENGTHS, CountingAlgorithm, make_envs

CAPACITY = 11
LAST = np.int32(StepType.LAST).tobytes()


@pytest.fixture(autouse=True)
def _small_memory(_clean_gin: None) -> None:
    gin.bind_parameter("ReplayBuffer.max_length", CAPACITY)


def _place(observation: Any) -> tuple[int, int]:
    """The stream, and how many steps it has made, from what a counting environment shows."""
    stream, episode, step = (int(x) for x in observation)
    return stream, sum(LENGTHS[(stream + e) % len(LENGTHS)] + 1 for e in range(episode)) + step


def _step(exp: Any, at: tuple[int, ...]) -> tuple[Any, ...]:
    """All fields of one step, as plain values."""
    flat = tf.nest.flatten(exp._replace(bootstrap=()))
    return (_place(exp.observation[at]), *(np.asarray(x)[at].tobytes() for x in flat))


def _delivered(algorithm: CountingAlgorithm) -> dict[int, list[tuple[Any, ...]]]:
    """The steps of each stream in the order in which they were delivered."""
    streams: dict[int, list[tuple[Any, ...]]] = {}
    for batch in algorithm.batches:
        exp = tf.nest.map_structure(np.asarray, batch)
        queue, time, size = exp.step_type.shape
        for q in range(queue):
            for b in range(size):
                for t in range(time):
                    streams.setdefault(int(exp.env_id[q, t, b]), []).append(_step(exp, (q, t, b)))
    return streams


def _ended(steps: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those from which the end of their episode is reached without a gap."""
    found: list[tuple[Any, ...]] = []
    open_: list[tuple[Any, ...]] = []
    for step in steps:
        if open_ and step[0][1] != open_[-1][0][1] + 1:
            open_ = []
        open_.append(step)
        if step[1] == LAST:
            found, open_ = found + open_, []
    return found


def _check(algorithm: CountingAlgorithm, length: int, until_ends: bool = False) -> int:
    """Draws many sequences and finds each in what was delivered last; returns how many gaps are in there."""
    kept = {stream: steps[-CAPACITY:] for stream, steps in _delivered(algorithm).items()}
    if until_ends:
        kept = {stream: _ended(steps) for stream, steps in kept.items()}
    windows, gaps = set(), 0
    for steps in kept.values():
        gaps += sum(b[0][1] != a[0][1] + 1 for a, b in itertools.pairwise(steps))
        for i in range(len(steps) - length + 1):
            window = steps[i : i + length]
            if [s[0][1] for s in window] == list(range(window[0][0][1], window[0][0][1] + length)):
                windows.add(tuple(window))
    replayer: Any = algorithm.exp_replayer
    assert replayer.num_sequences(length) == len(windows)
    sampled = tf.nest.map_structure(
        np.asarray, replayer.sample(replayer.view(length), 600, length, tf.constant([1, 2])).experience
    )
    drawn = {tuple(_step(sampled, (i, t)) for t in range(length)) for i in range(600)}
    assert drawn <= windows
    assert len(drawn) > 0.9 * len(windows), "with so many draws nearly every sequence comes"
    return gaps


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
@pytest.mark.parametrize(("batch", "time", "length"), [(1, 1, 2), (3, 4, 3), (2, 15, 5)])
def test_sync_driver(name: str, batch: int, time: int, length: int) -> None:
    (env,) = make_envs(1, batch)
    algorithm = CountingAlgorithm(env)
    driver = SyncOffPolicyDriver(env, algorithm, time, name, random_seed=1)
    for _ in range(-(-30 // time)):
        driver.run()
    assert _check(algorithm, length) == 0
    driver.stop()


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
@pytest.mark.parametrize(("lag", "until_ends"), [(None, False), (0, False), (None, True), (0, True)])
def test_async_driver_with_segments_in_any_order_and_some_dropped(name: str, lag: int | None, until_ends: bool) -> None:
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", until_ends)
    envs = make_envs(3, 2)
    algorithm = CountingAlgorithm(envs[0])
    driver = AsyncOffPolicyDriver(
        envs, algorithm, 0, 3, 2, exp_replayer=name, max_policy_lag=lag, random_seed=1, stepping="graph"
    )
    driver.start()
    gaps = 0
    try:
        for i in range(14):
            driver.run_async()
            if i % 3 == 2:
                algorithm._iterations.assign_add(1)
                for hook in algorithm._volatile.hooks:
                    hook()
            if i > 3:
                gaps += _check(algorithm, 2, until_ends)
    finally:
        driver.stop()
    assert until_ends or (gaps > 0) == (lag == 0), "the lag makes gaps, which no sequence crosses"


def test_a_new_driver_goes_on_with_the_memory_and_joins_nothing() -> None:
    (env,) = make_envs(1, 2)
    algorithm = CountingAlgorithm(env)
    driver = SyncOffPolicyDriver(env, algorithm, 4, "uniform", random_seed=1)
    driver.run()
    driver.stop()
    replayer: Any = algorithm.exp_replayer
    other = SyncOffPolicyDriver(make_envs(1, 2)[0], algorithm, 4, "uniform", random_seed=1)
    other.run()
    assert algorithm.exp_replayer is replayer
    assert replayer.total_steps == 16
    assert replayer.num_sequences(2) == 12
    other.stop()


class Transforming(CountingAlgorithm):
    """Sees observations and rewards through functions."""

    def __init__(self, env: Any, observation: Any, reward: Any) -> None:
        self._functions = observation, reward
        super().__init__(env)

    def transform_timestep(self, time_step: Any) -> Any:
        observation, reward = self._functions
        return time_step._replace(
            observation=observation(time_step.observation * 0.7371 + 0.1), reward=reward(time_step.reward + 0.3)
        )


_TRANSFORMS = {
    "divided": (lambda o: o / 255.0, lambda r: r),
    "standardised": (lambda o: (o - 0.3) / 1.7, lambda r: r),
    "by its own deviation": (
        lambda o: (o - tf.reduce_mean(o, -1, keepdims=True)) / (tf.math.reduce_std(o, -1, keepdims=True) + 1e-3),
        lambda r: r,
    ),
    "softmax": (tf.nn.softmax, lambda r: r),
    "by numpy": (lambda o: tf.numpy_function(lambda x: (x / 255).astype("f"), [o], tf.float32), lambda r: r),
    "reward": (lambda o: o, lambda r: (r + 8.1) / 8.1),
}


@pytest.mark.parametrize("stepping", ["graph", "host"])
@pytest.mark.parametrize("name", _TRANSFORMS)
def test_a_segment_goes_on_from_the_one_before_whatever_transforms_its_steps(name: str, stepping: str) -> None:
    """TensorFlow may round the same operation otherwise in another place."""
    envs = make_envs(1, 8)
    algorithm = Transforming(envs[0], *_TRANSFORMS[name])
    driver = AsyncOffPolicyDriver(
        envs, algorithm, 0, 1, 1, exp_replayer="uniform", random_seed=1, stepping=stepping, mode="sync"
    )
    driver.start()
    try:
        for _ in range(CAPACITY):
            driver.run_async()
            algorithm._iterations.assign_add(1)
            for hook in algorithm._volatile.hooks:
                hook()
    finally:
        driver.stop()
    replayer: Any = algorithm.exp_replayer
    assert replayer.num_sequences(CAPACITY) == 8
