"""Drivers that collect for another process's learner, and drivers whose segments others collect."""

from __future__ import annotations

import collections
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_store import PolicyStore
from alf.drivers.pumping import Unpacker, WireSegment
from alf.drivers.queues import QueueClosed, QueueEmpty
from alf.drivers.threads import LogEntry
from alf.environments.testing import CountingEnvironment
from alf.metrics.time_shares import Timings
from tests.drivers.counting import LENGTHS, TERMINATE, CountingAlgorithm, check_batches, make_envs

T, B, N = 3, 2, 2


def make_worker(mode: str = "async", first_stream: int = 0) -> AsyncOffPolicyDriver:
    envs = [CountingEnvironment(B, first_stream + i * B, LENGTHS, TERMINATE) for i in range(N)]
    return AsyncOffPolicyDriver(
        envs,
        CountingAlgorithm(envs[0]),
        num_actor_queues=0,
        unroll_length=T,
        learn_queue_cap=N,
        mode=mode,
        random_seed=7,
    )


def one_segment() -> tuple[AsyncOffPolicyDriver, WireSegment]:
    """A segment, and the stopped driver that it is of."""
    worker = make_worker()
    try:
        worker.start()
        wire = worker.next_segment(30)
    finally:
        worker.stop()
    return worker, wire


class Drivers:
    """A source of segments that takes them in turns from drivers of this process."""

    def __init__(self, *drivers: AsyncOffPolicyDriver) -> None:
        self._drivers = drivers
        self._turn = 0
        self.threads = N * len(drivers)
        self.seen: list[tuple[int, bool]] = []
        self.asked: list[int] = []
        self.stopped = 0

    def start(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        self.publish(version, weights, at_random)
        for driver in self._drivers:
            driver.start()

    def publish(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        self.seen.append((version, at_random))
        for driver in self._drivers:
            driver.load(version, weights, at_random)

    def request_batch(self, count: int) -> None:
        self.asked.append(count)
        for driver in self._drivers:
            driver.ask(count // len(self._drivers))

    def fetch(self, timeout: float) -> WireSegment:
        number = self._turn // N % len(self._drivers)
        segment = self._drivers[number].next_segment(timeout)
        self._turn += 1
        return segment._replace(thread=number * N + segment.thread)

    def stop(self) -> None:
        self.stopped += 1
        for driver in self._drivers:
            driver.stop()

    def stats(self) -> dict[str, float]:
        return {"workers": float(len(self._drivers))}

    def timings(self) -> Timings:
        return Timings(environment=1.0, threads=self.threads)

    def describe(self) -> str:
        return "two drivers"

    def who_is_waited_for(self) -> str:
        return "worker 1 has not answered"


def make_learner(source: Any, mode: str = "async", queue: int = 4, **kwargs: Any) -> AsyncOffPolicyDriver:
    envs = make_envs(1, B)
    algorithm = CountingAlgorithm(envs[0])
    return AsyncOffPolicyDriver(
        envs, algorithm, unroll_length=T, learn_queue_cap=queue, mode=mode, workers=source, **kwargs
    )


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_learner_gets_every_step_of_its_workers_once_and_in_order(mode: str) -> None:
    source = Drivers(make_worker(mode), make_worker(mode, first_stream=N * B))
    driver = make_learner(source, mode)
    try:
        driver.start()
        for _ in range(12):
            assert driver.run_async() == 4 * T * B
            driver.algorithm.train()
    finally:
        driver.stop()
    algorithm = driver.algorithm
    assert isinstance(algorithm, CountingAlgorithm)
    steps = check_batches(algorithm.batches, recurrent=True)
    assert sum(steps.values()) == 12 * 4 * T * B
    assert sorted(steps) == list(range(2 * N * B))
    if mode == "sync":
        assert source.asked == [4] * 12
        assert driver.stats()["lag_max"] == 0
    assert source.stopped


def test_weights_travel_and_stamp_the_steps() -> None:
    worker = make_worker("sync")
    try:
        worker.load(5, [np.float32(3.0)])
        worker.start()
        worker.ask(N)
        segments = [worker.next_segment(30) for _ in range(N)]
        with pytest.raises(QueueEmpty):
            worker.next_segment(0.05)
        entries = [Unpacker(worker.algorithm, B, T)(s) for s in segments]
    finally:
        worker.stop()
    assert [s.thread for s in segments] == [0, 1]
    for entry in entries:
        assert entry.segment.versions.numpy().tolist() == [5] * T
        assert (entry.segment.experience.rollout_info.weight.numpy() == 3.0).all()


def test_the_rows_of_a_segment_are_those_of_its_thread_among_all_workers() -> None:
    worker, wire = one_segment()
    entry: LogEntry = Unpacker(worker.algorithm, B, T)(wire._replace(thread=9))
    exp = entry.segment.experience
    assert entry.thread == 9
    assert exp.env_id.numpy().tolist() == [[18, 19]] * T
    assert exp.bootstrap.time_step.env_id.numpy().tolist() == [18, 19]


def test_a_segment_of_another_configuration_is_told() -> None:
    worker, wire = one_segment()
    with pytest.raises(ValueError, match=r"does not fit the learner's algorithm .*same configuration"):
        Unpacker(worker.algorithm, B, T + 1)(wire)
    with pytest.raises(ValueError, match="does not fit the learner's algorithm"):
        Unpacker(worker.algorithm, B, T)(wire._replace(arrays=wire.arrays[:-1]))


def test_weights_of_another_algorithm_are_told() -> None:
    store = PolicyStore([tf.Variable([1.0, 2.0])])
    with pytest.raises(ValueError, match="there are 2 arrays instead of 1"):
        store.load(1, [np.zeros(2, np.float32)] * 2)
    with pytest.raises(ValueError, match=r"array 0 is .*\(3,\).* instead of .*\(2,\)"):
        store.load(1, [np.zeros(3, np.float32)])
    store.load(4, [np.array([5.0, 6.0], np.float32)])
    assert store.latest().weights[0].numpy().tolist() == [5.0, 6.0]
    assert store.version == 4
    with pytest.raises(ValueError, match="Version 3 is older"):
        store.load(3, [np.zeros(2, np.float32)])


def test_random_acting_is_asked_of_the_workers() -> None:
    source = Drivers(make_worker())
    driver = make_learner(source, queue=2)
    try:
        driver.act_at_random()
        driver.start()
        driver.run_async()
        driver.act_at_random(False)
        driver.run_async()
    finally:
        driver.stop()
    assert [at_random for _, at_random in source.seen] == [True, False]


def test_a_failing_worker_ends_the_learner_with_its_error() -> None:
    source = Drivers(make_worker())
    driver = make_learner(source, queue=2)
    driver.start()

    def fetch(timeout: float) -> WireSegment:
        raise LookupError("the map is lost")

    source.fetch = fetch  # type: ignore[method-assign]
    with pytest.raises(LookupError, match="the map is lost"):
        for _ in range(1000):
            driver.run_async()
    driver.stop()
    assert source.stopped


def test_a_learner_that_waits_too_long_says_for_whom() -> None:
    source = Drivers(make_worker("sync"))
    driver = make_learner(source, queue=2, stall_timeout_secs=0.6)

    def fetch(timeout: float) -> WireSegment:
        time.sleep(timeout)
        raise QueueEmpty

    source.fetch = fetch  # type: ignore[method-assign]
    try:
        driver.start()
        with pytest.raises(TimeoutError, match="worker 1 has not answered"):
            driver.run_async()
    finally:
        driver.stop()


def test_modes_and_sizes_that_workers_cannot_have() -> None:
    source = collections.namedtuple("Source", "threads")(3)
    with pytest.raises(ValueError, match=r"lockstep.*with workers use 'async' or 'sync'"):
        make_learner(source, "lockstep")
    with pytest.raises(ValueError, match=r"multiple of their 3 environment threads.*got 4"):
        make_learner(source, "sync", queue=4)


def test_nothing_follows_a_stop() -> None:
    worker = make_worker()
    worker.start()
    worker.stop()
    with pytest.raises(QueueClosed):
        for _ in range(100):
            worker.next_segment(1.0)
    with pytest.raises(ValueError, match="has 2 segments, and 3 were asked for"):
        worker.ask(3)
