"""The counting environment through workers: nothing is lost, doubled or reordered but what is counted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from alf.distributed import member
from alf.distributed.engine import Engine
from alf.distributed.in_process_engine import InProcessEngine
from alf.distributed.pool import WorkerPool
from alf.drivers.pumping import Unpacker, WireSegment
from tests.distributed.counting_worker import LIFE_STREAMS, MAKER, check_lives, learn, make_driver, make_learner
from tests.distributed.scripted import LossyEngine

PATIENCE_SECS = 100.0


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> None:
    """Ray keeps processes of its own between tests."""
    if "ray_session" not in request.fixturenames:
        request.getfixturevalue("no_leaked_threads")


def make_pool(engine: Engine, workers: int, sizes: dict[str, int], mode: str = "async", **kwargs: Any) -> WorkerPool:
    settings: dict[str, Any] = {**sizes, "mode": mode}
    if "share" in kwargs:
        settings["learn_queue_cap"] = kwargs.pop("share")
    return WorkerPool(engine, workers, sizes["num_envs"], MAKER, settings, sync=mode == "sync", **kwargs)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("workers", "in_flight", "queue", "sizes"),
    [
        (1, 1, 1, {"num_envs": 1, "batch_size": 1, "unroll_length": 5}),
        (3, 2, 4, {"num_envs": 2, "batch_size": 2, "unroll_length": 3}),
        (2, 3, 3, {"num_envs": 1, "batch_size": 3, "unroll_length": 8}),
    ],
)
def test_the_learner_gets_every_step_once_in_order(
    workers: int, in_flight: int, queue: int, sizes: dict[str, int]
) -> None:
    pool = make_pool(InProcessEngine(), workers, sizes, requests_in_flight=in_flight)
    driver = make_learner(pool, sizes["batch_size"], sizes["unroll_length"], queue)
    threads = workers * sizes["num_envs"]
    try:
        driver.start()
        # Every thread is heard of, however late its worker comes up.
        batches = learn(driver, 6)
        while len({int(e) for b in batches for e in b.env_id.numpy().ravel()}) < threads * sizes["batch_size"]:
            batches = learn(driver, 1)
    finally:
        driver.stop()
    steps = check_lives(batches)
    assert sorted(steps) == [(i, 0) for i in range(threads * sizes["batch_size"])]
    assert sum(steps.values()) == len(batches) * queue * sizes["unroll_length"] * sizes["batch_size"]
    transitions = sum(int(np.sum(b.step_type.numpy() != 2)) for b in batches)
    assert int(driver.get_step_metrics()[1].result()) == transitions
    stats = driver.stats()
    assert stats["lost_requests"] == stats["purged_segments"] == stats["cut_segments"] == 0


def test_an_environment_that_cannot_be_closed_keeps_nobody_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_envs": 1, "batch_size": 1, "unroll_length": 4}
    driver = make_learner(make_pool(InProcessEngine(), 1, sizes), 1, 4, 1)

    def close() -> None:
        raise OSError("no end of it")

    try:
        driver.start()
        learn(driver, 1)
        monkeypatch.setattr(driver._envs[0], "close", close)
    finally:
        driver.stop()
    assert driver._state == "stopped"


def test_a_slow_learner_holds_environments_up() -> None:
    """A worker is ahead by its requests, its learn queue, and the segments its threads hold; the learner by its queue."""
    sizes = {"num_envs": 2, "batch_size": 1, "unroll_length": 4}
    drivers: list[Any] = []

    class Watched(InProcessEngine):
        def start(self, *args: Any) -> Any:
            drivers.append(super().start(*args))
            return drivers[-1]

    pool = make_pool(Watched(), 1, sizes, requests_in_flight=2)
    driver = make_learner(pool, 1, 4, 2)
    try:
        driver.start()
        learn(driver, 1)
        # What the learner took, its queue, a segment in its pump's hand, and two answers of two.
        bound = 2 + 2 + 1 + 2 * 2
        for batch in range(2, 12):
            until(lambda: pool.facts()[0]["segments"] > 0)
            worker = drivers[0]._object
            assert worker._segments <= bound
            # Beside these: its learn queue of two, and one in the hand of each thread.
            collected = sum(c._steps for c in worker._driver._collection.collectors) / 4
            assert collected <= bound + 2 + 2 + 1
            learn(driver, 1)
            bound = 2 * batch + 2 + 1 + 2 * 2
    finally:
        driver.stop()


def test_after_kills_the_learner_has_whole_beginnings_of_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    sizes = {"num_envs": 2, "batch_size": 2, "unroll_length": 3}
    engine = LossyEngine(share=0.1, seed=5)
    pool = make_pool(engine, 2, sizes)
    driver = make_learner(pool, 2, 3, 2)
    try:
        driver.start()
        for kill in range(2):
            learn(driver, 6)
            engine.kill(engine.newest(kill))
            while pool.facts()[kill]["life"] == 0 or pool.facts()[kill]["state"] != "running":
                learn(driver, 1)
        batches = learn(driver, 1)
        while max(int(b.observation.numpy()[..., 0].max()) for b in batches) < 1000:
            batches = learn(driver, 1)
    finally:
        driver.stop()
    steps = check_lives(batches)
    assert {life for _, life in steps} == {0, 1}
    stats = driver.stats()
    assert stats["worker_restarts"] == 2
    assert sum(steps.values()) == len(batches) * 2 * 3 * 2
    # Both rows of a thread are in the same segments; a stream that was cut began anew at FIRST.
    for (env_id, life), count in steps.items():
        assert steps[env_id ^ 1, life] == count


# ---- batches on request ----

SIZES = {"num_envs": 2, "batch_size": 2, "unroll_length": 3}


def remote_batches(workers: int, rounds: int, batches: int, in_flight: int = 2) -> tuple[list[Any], dict[str, float]]:
    share = rounds * SIZES["num_envs"]
    pool = make_pool(InProcessEngine(), workers, SIZES, "sync", share=share, requests_in_flight=in_flight)
    driver = make_learner(pool, 2, 3, workers * share, mode="sync")
    try:
        driver.start()
        found = learn(driver, batches)
    finally:
        driver.stop()
    return found, driver.stats()


def local_batches(workers: int, rounds: int, batches: int) -> list[list[Any]]:
    """What drivers of the same maker collect in this process, put together in the documented order by plain loops."""
    n = SIZES["num_envs"]
    drivers = [make_driver(w, 0, **SIZES, mode="sync", learn_queue_cap=rounds * n) for w in range(workers)]
    found = []
    try:
        for version in range(batches):
            parts = []
            for driver in drivers:
                driver.load(version, [np.float32(version)])
                if version == 0:
                    driver.start()
                driver.ask(rounds * n)
                parts.append([driver.next_segment(PATIENCE_SECS) for _ in range(rounds * n)])
            unpack = Unpacker(drivers[0].algorithm, 2, 3)
            batch = []
            for r in range(rounds):
                for w in range(workers):
                    for i in range(n):
                        wire: WireSegment = parts[w][r * n + i]
                        assert wire.thread == i
                        batch.append(unpack(wire._replace(thread=w * n + i)).segment.experience)
            found.append(batch)
    finally:
        for driver in drivers:
            driver.stop()
    return found


def test_batches_on_request_are_reproducible_and_those_of_local_drivers() -> None:
    workers, rounds = 2, 2
    first, stats = remote_batches(workers, rounds, 5)
    again, _ = remote_batches(workers, rounds, 5)
    local = local_batches(workers, rounds, 5)
    assert stats["lag_max"] == 0
    check_lives(first)
    for k, (a, b) in enumerate(zip(first, again, strict=True)):
        assert set(a.policy_version.numpy().ravel()) == {k}
        for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
            np.testing.assert_array_equal(x, y)
        for q, segment in enumerate(local[k]):
            for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(segment), strict=True):
                np.testing.assert_array_equal(x[q], y)


def test_one_worker_on_request_is_the_local_driver() -> None:
    remote, _ = remote_batches(1, 2, 4)
    driver = make_driver(0, 0, **SIZES, mode="sync", learn_queue_cap=4)
    driver.start()
    try:
        local = learn(driver, 4)
    finally:
        driver.stop()
    for a, b in zip(remote, local, strict=True):
        for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
            np.testing.assert_array_equal(x, y)


def test_workers_and_their_lives_draw_different_numbers() -> None:
    actions = {}
    for number, life in ((0, 0), (1, 0), (0, 1), (0, 0)):
        driver = make_driver(number, life, num_envs=1, batch_size=4, unroll_length=16, mode="sync")
        driver.start()
        try:
            (batch,) = learn(driver, 1)
        finally:
            driver.stop()
        seen = batch.action.numpy().tobytes()
        assert actions.setdefault((number, life), seen) == seen, "the same life draws the same"
    assert len(set(actions.values())) == 3


# ---- other processes ----


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_over_ray_a_killed_process_costs_only_what_is_counted(ray_session: None) -> None:
    """And so does one that is stopped: it is silent, as one behind a network that is down."""
    from alf.distributed.ray_engine import RayEngine

    pool = make_pool(RayEngine(), 2, SIZES, heartbeat_timeout_secs=10.0)
    driver = make_learner(pool, 2, 3, 2)
    try:
        driver.start()
        # Both workers are up before one is killed.
        until(lambda: all(f["state"] == "running" for f in pool.facts()))
        learn(driver, 4)
        assert len({os.getpid(), *(f["pid"] for f in pool.facts())}) == 3
        for worker, how in ((1, signal.SIGKILL), (0, signal.SIGSTOP)):
            pid = pool.facts()[worker]["pid"]
            os.kill(pid, how)
            begun: set[int] = set()
            while len(begun) < 4:
                newest = learn(driver, 1)[-1]
                life = newest.observation.numpy()[..., 0] // LIFE_STREAMS
                of_worker = newest.env_id.numpy() // 4 == worker
                begun |= set(newest.env_id.numpy()[of_worker & (life == 1)].tolist())
                # The other one works on, and all that it sends is looked at in the end.
                time.sleep(0.05)
            assert pool.facts()[worker]["pid"] not in (None, pid)
            until(lambda pid=pid: not psutil.pid_exists(pid))
        batches = learn(driver, 4)
    finally:
        driver.stop()
    assert "no sign of life" in pool.facts()[0]["last_error"]
    # What a stream was to send of its first life may have been lost.
    assert (
        {(env_id, 1) for env_id in range(8)}
        < set(check_lives(batches))
        <= {(i, life) for i in range(8) for life in (0, 1)}
    )
    stats = driver.stats()
    assert stats["worker_restarts"] == 2
    assert stats["lost_requests"] <= 4
