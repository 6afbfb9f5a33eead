"""Drivers that act here in environments of workers: the segments of local environments, and runs that outlive workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import Experience
from alf.distributed import environment_keeper, environment_worker, in_process_engine, keeper, member
from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.in_process_engine import InProcessEngine
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.coordinator import Coordinator
from alf.drivers.threads import EnvThread
from alf.environments import BatchedEnvironment
from tests.algorithms import networks
from tests.distributed import environment_makers as makers
from tests.distributed.environment_makers import LIFE_STREAMS, MODULE, SCRIPTS, Boom, Script
from tests.distributed.scripted import LossyEngine
from tests.drivers.counting import CountingAlgorithm, check_batches

PATIENCE_SECS = 60.0
W, N, B, T = 2, 2, 3, 5


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pauses and ends that tests need not sit through."""
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    monkeypatch.setattr(keeper, "_BEAT_SECS", 0.02)
    monkeypatch.setattr(environment_keeper, "_WAIT_SECS", 0.02)
    monkeypatch.setattr(environment_worker, "_END_SECS", 0.2)
    monkeypatch.setattr(in_process_engine, "_STOP_TIMEOUT_SECS", 0.5)
    if "ray_session" not in request.fixturenames:
        request.getfixturevalue("no_leaked_threads")


@pytest.fixture
def script() -> Iterator[Script]:
    SCRIPTS.append(Script())
    yield SCRIPTS[-1]
    SCRIPTS.pop().let_go.set()


Stop = Callable[[], None]


@pytest.fixture
def make_driver() -> Iterator[Callable[..., tuple[AsyncOffPolicyDriver, EnvironmentPool | None]]]:
    """Drivers of the same environments, of this process or of workers."""
    stops: list[Stop] = []

    def make(kind: str, engine: Any = None, **kwargs: Any) -> tuple[AsyncOffPolicyDriver, EnvironmentPool | None]:
        pool = None
        if engine is None:
            envs: list[Any] = [env for w in range(W) for env in getattr(makers, kind)(w, 0, N, B)]
        else:
            pool = EnvironmentPool(engine, W, N, f"{MODULE}:{kind}", {"num_envs": N, "batch_size": B})
            stops.append(pool.stop)
            envs = [*pool.start()]
        tf.keras.utils.set_random_seed(3)
        algorithm = networks.ppo(envs[0]) if kind == "cart_pole" else CountingAlgorithm(envs[0])
        settings = {"unroll_length": T, "learn_queue_cap": W * N, "num_actor_queues": 0, "random_seed": 11, **kwargs}
        driver = AsyncOffPolicyDriver(envs, algorithm, host=pool, **settings)
        stops.insert(0, driver.stop)
        return driver, pool

    yield make
    for stop in stops:
        stop()


def learn(driver: AsyncOffPolicyDriver, batches: int) -> list[Experience]:
    found: list[Experience] = []
    algorithm = driver.algorithm
    for _ in range(batches):
        exp, _ = driver.get_training_exps()
        found.append(exp)
        algorithm.observe(exp)
        algorithm.train(mini_batch_size=None if isinstance(algorithm, CountingAlgorithm) else 6)
    return found


def assert_same(mine: list[Experience], theirs: list[Experience]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
            np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["counting", "cart_pole"])
@pytest.mark.parametrize(("mode", "actors"), [("sync", 0), ("lockstep", 2)])
def test_segments_are_bit_identical_to_those_of_local_environments(
    make_driver: Any, kind: str, mode: str, actors: int
) -> None:
    settings = {"mode": mode, "num_actor_queues": actors, "actor_queue_cap": W * N // max(1, actors)}
    local, _ = make_driver(kind, **settings)
    local.start()
    wanted = learn(local, 4)
    local.stop()
    remote, pool = make_driver(kind, InProcessEngine(), **settings)
    remote.start()
    found = learn(remote, 4)
    assert_same(found, wanted)
    if kind == "counting":
        assert set(check_batches(found, recurrent=True)) == set(range(W * N * B))
    stats = remote.stats()
    assert (stats["workers_alive"], stats["restarts"], stats["lost_requests"]) == (W, 0, 0)
    assert f"of {pool.describe()}" in remote.describe()
    remote.stop()


def test_a_step_over_the_wire_is_never_taken_inside_the_graph(make_driver: Any) -> None:
    """However fast it is; unless one insists."""
    remote, _ = make_driver("counting", InProcessEngine())
    assert {c.stepping for c in remote._collection.collectors} == {"host"}
    insisting, _ = make_driver("counting", InProcessEngine(), stepping="graph")
    assert {c.stepping for c in insisting._collection.collectors} == {"graph"}
    local, _ = make_driver("counting")
    assert {c.stepping for c in local._collection.collectors} == {"auto"}


def streams_of(batch: Experience, first: int, count: int) -> Experience:
    """The segments of a batch whose rows are among these."""
    rows = np.flatnonzero((batch.env_id.numpy()[:, 0, 0] >= first) & (batch.env_id.numpy()[:, 0, 0] < first + count))
    return tf.nest.map_structure(lambda x: tf.gather(x, rows), batch)


def test_a_run_outlives_its_workers(make_driver: Any) -> None:
    """The streams of the worker that lives are whole; those of the other are cut and go on with its next life's."""
    engine = LossyEngine()
    driver, pool = make_driver("counting", engine)
    driver.start()
    batches = learn(driver, 3)
    for life in range(1, 4):
        engine.kill(engine.newest(1))
        while not any((b.observation.numpy()[..., 0] >= life * LIFE_STREAMS).any() for b in batches[-3:]):
            batches += learn(driver, 1)
    stats = driver.stats()
    driver.stop()
    assert stats["worker_restarts"] == 3
    assert stats["restarts"] >= 3
    check_batches([streams_of(b, 0, N * B) for b in batches], recurrent=True)
    last: dict[int, int] = {}
    lives: dict[int, set[int]] = {}
    for batch in batches:
        rows = streams_of(batch, N * B, N * B)
        for q in range(rows.step_type.shape[0]):
            ids = rows.env_id.numpy()[q, 0]
            for b, env_id in enumerate(ids):
                for t, kind in enumerate(rows.step_type.numpy()[q, :, b]):
                    assert (kind == 0) == (last.get(int(env_id), 2) == 2), "FIRST comes after LAST, and nowhere else"
                    last[int(env_id)] = int(kind)
                    life, stream = divmod(int(rows.observation.numpy()[q, t, b, 0]), LIFE_STREAMS)
                    assert stream == env_id
                    lives.setdefault(int(env_id), set()).add(life)
    assert {life for seen in lives.values() for life in seen} == {0, 1, 2, 3}


def test_an_error_of_an_environment_ends_the_run_with_itself(make_driver: Any, script: Script) -> None:
    script.fail_at.add((1, 0, 1, 7))
    driver, pool = make_driver("scripted", InProcessEngine())
    driver.start()
    with pytest.raises(Boom, match="at "):
        learn(driver, 100)
    driver.stop()


def waits(env: Any) -> bool:
    now = time.monotonic()
    return env.waited_until >= now


def test_a_driver_stops_while_it_waits_for_a_worker(make_driver: Any, script: Script, logged: list[str]) -> None:
    script.hang_making.update({(1, life) for life in range(1, 9)})
    engine = LossyEngine()
    driver, pool = make_driver("scripted", engine)
    driver.start()
    learn(driver, 2)
    engine.kill(engine.newest(1))
    # Both of its environments wait, the others go on.
    deadline = time.monotonic() + PATIENCE_SECS
    while not all(waits(t.collector.env) for t in driver._threads[N:]):
        learn(driver, 1)
        assert time.monotonic() < deadline
    assert script.hanging.wait(PATIENCE_SECS)
    driver.stop()
    assert not any(t.is_alive() for t in driver._threads)
    assert not any("left behind" in line for line in logged)


def test_the_wait_for_a_worker_does_not_count_as_hanging() -> None:
    class Env(makers.NestedEnvironment):
        until = 0.0

        @property
        def waited_until(self) -> float:
            return self.until

    class AtWork:
        thread, busy_since = 0, None
        env: BatchedEnvironment = Env(1, 0)

    thread: Any = EnvThread("alf-env", Coordinator(), AtWork, _Queues, {}, None)  # type: ignore[arg-type]
    assert thread.busy_secs == 0
    now = time.monotonic()
    AtWork.busy_since = now - 1000
    assert thread.busy_secs >= 1000
    AtWork.env.until = now - 500  # type: ignore[attr-defined]
    assert 500 <= thread.busy_secs < 1000
    AtWork.busy_since = now - 100
    assert 100 <= thread.busy_secs < 500


class _Queues:
    learn_queue = None


# ---- other processes ----


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_over_ray_a_killed_process_cuts_its_episodes(make_driver: Any, ray_session: None) -> None:
    """Also: before that, segments are those of local environments."""
    from alf.distributed.ray_engine import RayEngine

    local, _ = make_driver("cart_pole", mode="sync")
    local.start()
    wanted = learn(local, 3)
    local.stop()
    driver, pool = make_driver("cart_pole", RayEngine(), mode="sync")
    driver.start()
    assert_same(learn(driver, 3), wanted)
    pids = [row["pid"] for row in pool.facts()]
    assert len({os.getpid(), *pids}) == W + 1
    os.kill(pids[1], signal.SIGKILL)
    while (row := pool.facts()[1])["life"] == 0 or row["state"] != "running":
        learn(driver, 1)
    batch = learn(driver, 1)[0]
    assert set(batch.env_id.numpy().ravel()) == set(range(W * N * B))
    stats = driver.stats()
    assert row["pid"] not in pids
    assert (stats["worker_restarts"], stats["restarts"]) == (1, N)
    assert 1 <= stats["lost_requests"] <= N
    driver.stop()
