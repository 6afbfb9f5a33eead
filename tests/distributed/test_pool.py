"""The pool over the in-process engine, with scripted drivers: order, losses, failures, limits and ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gin
import numpy as np
import pytest

from alf.distributed import in_process_engine, keeper, member, rollout_keeper
from alf.distributed.pool import WorkerPool
from alf.drivers.pumping import WireSegment
from alf.drivers.queues import QueueClosed, QueueEmpty, SegmentQueue
from tests.distributed.scripted import (
    MAKER,
    PATIENCE_SECS,
    B,
    Boom,
    LossyEngine,
    N,
    Stage,
    T,
    check_prefixes,
    told,
)

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

SETTLED_SECS = 0.05


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and ends that tests need not sit through."""
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    monkeypatch.setattr(rollout_keeper, "_TAKE_SECS", 0.05)
    monkeypatch.setattr(keeper, "_BEAT_SECS", 0.02)
    monkeypatch.setattr(in_process_engine, "_STOP_TIMEOUT_SECS", 0.5)


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(**kwargs: Any) -> Stage:
        stages.append(Stage(**kwargs))
        return stages[-1]

    yield make
    for made in stages:
        made.close()


# ---- segments ----


@pytest.mark.parametrize(("workers", "in_flight"), [(1, 1), (2, 2), (3, 4)])
def test_every_segment_comes_once_and_in_order(stage: Any, workers: int, in_flight: int) -> None:
    s = stage(workers=workers, requests_in_flight=in_flight)
    s.start()
    s.fetch_until(lambda: s.pool.facts()[-1]["segments"] >= 20)
    counts = check_prefixes(s.segments, N)
    assert sorted(counts) == [(w, 0) for w in range(workers)]
    for w, driver in ((w, s.run.drivers[w, 0]) for w in range(workers)):
        # The worker is ahead by no more than its requests bring.
        assert counts[w, 0] <= driver.taken <= counts[w, 0] + in_flight * N
    assert s.pool.stats()["lost_requests"] == 0
    assert s.pool.threads == workers * N


def test_a_learner_that_does_not_fetch_holds_workers_up(stage: Any) -> None:
    s = stage(workers=1, requests_in_flight=3)
    s.start()
    s.until(lambda: (0, 0) in s.run.drivers and s.run.drivers[0, 0].taken == 3 * N)
    for fetched in range(1, 30):
        s.fetch(1)
        assert s.run.drivers[0, 0].taken <= fetched + 3 * N
    s.until(lambda: s.fact(0, "policy_version") == 0 and s.fact(0, "steps") > 0)


@pytest.mark.parametrize("sync", [False, True])
def test_answers_that_get_lost_are_asked_for_again(stage: Any, sync: bool) -> None:
    """A third of all answers, of loads too, is forgotten on its way: nothing is lost, nothing doubled."""
    s = stage(workers=2, share=0.3, seed=3, requests_in_flight=3, sync=sync)
    s.start()
    for version in range(1, 12):
        if sync:
            s.pool.request_batch(2 * N)
        s.fetch(2 * N)
        s.pool.publish(version, [np.zeros(1)], False)
    check_prefixes(s.segments, N)
    assert s.engine.forgotten > 0
    assert s.pool.stats()["lost_requests"] == s.pool.stats()["worker_restarts"] == 0


def test_a_killed_worker_comes_back_and_the_loss_is_counted(stage: Any) -> None:
    s = stage(workers=2, requests_in_flight=2)
    s.run.scripts = {(1, life): {"hang_at": 6} for life in range(3)}
    s.start()
    for life in range(3):
        s.fetch_until(lambda life=life: s.fact(1, "segments") == 6 * (life + 1))
        # Three answers of two segments each, and the two requests that no answer comes to.
        s.until(lambda life=life: s.engine.sent[f"worker 1 (life {life})", "take"] == 5)
        s.engine.kill(s.engine.newest(1))
        assert check_prefixes(s.segments, N)[1, life] == 6
    s.fetch_until(lambda: s.segments and told(s.segments[-1])["life"] == 3)
    assert [life for worker, life in check_prefixes(s.segments, N) if worker == 1] == [0, 1, 2, 3]
    stats = s.pool.stats()
    assert stats["worker_restarts"] == s.fact(1, "restarts") == 3
    assert stats["lost_requests"] == s.fact(1, "lost_requests") == 3 * 2
    assert stats["workers_alive"] == 2
    assert "killed" in s.fact(1, "last_error")


def test_workers_killed_at_any_time_leave_whole_beginnings(stage: Any) -> None:
    s = stage(workers=3, requests_in_flight=3)
    s.start()
    for kill in range(12):
        worker = kill % 3
        life = s.fact(worker, "life")
        s.fetch(1 + 5 * kill % 7)
        s.engine.kill(s.engine.newest(worker))
        s.fetch_until(lambda worker=worker, life=life: s.fact(worker, "life") > life)
    counts = check_prefixes(s.segments, N)
    stats = s.pool.stats()
    assert stats["worker_restarts"] == 12
    missing = sum(driver.taken - counts.get(life, 0) for life, driver in s.run.drivers.items() if life[1] < 3)
    # An answer has two segments at most; those of three requests to each worker may have arrived and wait.
    assert missing <= (stats["lost_requests"] + 3 * 3) * N


def test_purging_leaves_gaps_of_exactly_what_was_counted(stage: Any) -> None:
    s = stage(workers=1, requests_in_flight=3)
    s.start()
    s.fetch(5)
    before = 5
    for _ in range(3):
        s.until(lambda before=before: s.run.drivers[0, 0].taken > before)
        dropped_before = s.pool.stats()["purged_segments"]
        now = s.pool.purge()
        (segment,) = s.fetch(1)
        said = told(segment)
        at = said["serial"] * N + said["thread"]
        dropped = s.pool.stats()["purged_segments"] - dropped_before
        assert at - before == dropped >= now
        before = at + 1
    assert s.pool.stats()["purged_segments"] > 0


def test_subscribers_get_what_the_learner_gets(stage: Any) -> None:
    s = stage()
    queues = [SegmentQueue(50, name) for name in ("first", "second")]
    for queue in queues:
        s.pool.subscribe(queue)
    s.start()
    fetched = s.fetch(20)
    for queue in queues:
        assert [x is y for x, y in zip(queue.dequeue_many(20, 0), fetched, strict=True)] == [True] * 20


# ---- weights ----


def test_weights_reach_all_workers_and_the_newest_wins(stage: Any) -> None:
    s = stage(workers=2)
    s.start()
    for version in range(1, 30):
        s.pool.publish(version, [np.full(1, version)], version % 2 == 1)
    s.fetch_until(lambda: all(d.loaded[-1] == (29, True) for d in s.run.drivers.values()) and len(s.run.drivers) == 2)
    for driver in s.run.drivers.values():
        versions = [version for version, _ in driver.loaded]
        assert versions == sorted(versions)
        assert driver.weights[0] == 29
    with pytest.raises(ValueError, match="versions only grow"):
        s.pool.publish(28, [np.zeros(1)], False)


def test_weights_whose_arrival_is_not_known_are_sent_again(stage: Any) -> None:
    s = stage(workers=1, share=1.0)
    s.engine.methods = ("load",)
    s.start()
    s.fetch(1)
    s.pool.publish(1, [np.zeros(1)], False)
    s.until(lambda: s.engine.forgotten >= 3)
    s.engine.forgets = 0.0
    s.pool.publish(2, [np.full(1, 2)], False)
    s.until(lambda: s.run.drivers[0, 0].loaded[-1] == (2, False))
    assert s.fact(0, "restarts") == 0


def test_a_worker_that_comes_back_begins_with_the_newest_weights(stage: Any) -> None:
    s = stage(workers=1)
    s.start()
    s.fetch(1)
    s.pool.publish(8, [np.full(1, 8)], True)
    s.engine.kill(s.engine.newest(0))
    s.fetch_until(lambda: s.segments and told(s.segments[-1])["life"] == 1)
    assert s.run.drivers[0, 1].loaded[0] == (8, True)


# ---- batches ----


def test_batches_are_shared_in_rounds_by_the_newest_weights(stage: Any) -> None:
    s = stage(workers=3, sync=True)
    s.start()
    for version in range(4):
        s.pool.publish(version, [np.zeros(1)], False)
        s.pool.request_batch(12)
        batch = s.fetch(12)
        assert [x.thread for x in batch] == [0, 1, 2, 3, 4, 5] * 2
        assert {told(x)["version"] for x in batch} == {version}
    check_prefixes(s.segments, N)
    assert [d.asked for d in s.run.drivers.values()] == [[4] * 4] * 3
    with pytest.raises(QueueEmpty):
        s.pool.fetch(SETTLED_SECS)
    assert s.pool.purge() == 0
    with pytest.raises(ValueError, match=r"A batch of 8 segments .* 3 workers of 2 environment threads"):
        s.pool.request_batch(8)


def test_a_batch_whose_worker_is_lost_is_completed_by_the_next_life(stage: Any) -> None:
    s = stage(workers=2, sync=True)
    s.run.scripts[1, 0] = {"hang_at": 2}
    s.start()
    s.pool.request_batch(4)
    s.fetch(4)
    s.pool.request_batch(4)
    s.until(lambda: s.run.drivers[1, 0].asked == [2, 2] and s.run.drivers[0, 0].taken == 4)
    s.engine.kill(s.engine.newest(1))
    batch = s.fetch(4)
    assert [(x.thread, told(x)["life"]) for x in batch] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert s.run.drivers[0, 0].taken == 4, "only the lost part is collected anew"
    assert s.pool.stats()["lost_requests"] == 1


def test_only_workers_in_mode_sync_are_asked_for_batches(stage: Any) -> None:
    with pytest.raises(RuntimeError, match="Only workers in mode 'sync'"):
        stage().pool.request_batch(4)


# ---- failures ----


def test_a_maker_that_always_fails_ends_the_run_with_its_error(stage: Any) -> None:
    s = stage(workers=2, max_failures=3)
    s.run.scripts = {0: {"maker": "fails"}, 1: {"maker": "fails"}}
    s.start()
    error = s.error()
    assert isinstance(error, Boom)
    assert "no environment at" in str(error)
    assert 3 <= len(s.engine.started) <= 6
    s.pool.stop()
    assert {f["state"] for f in s.pool.facts()} <= {"stopped", "waiting to restart"}


def test_an_environment_that_always_raises_ends_the_run_with_its_error(stage: Any) -> None:
    s = stage(workers=2, max_failures=2)
    s.run.scripts[1] = {"fail_at": 6}
    s.start()
    error = s.error()
    assert isinstance(error, Boom)
    assert "boom after 6" in str(error)
    counts = check_prefixes(s.segments, N)
    # Segments of the answer in which it raised are lost with it.
    assert counts.get((1, 0), 0) <= 6
    assert (1, 2) not in s.run.drivers


def test_an_environment_that_raises_now_and_then_does_not(stage: Any) -> None:
    s = stage(workers=1, max_failures=2)
    s.run.scripts = {(0, 0): {"fail_at": 4}, (0, 1): {"fail_at": 2, "error": "another"}, (0, 2): {"maker": "fails"}}
    s.start()
    s.fetch_until(lambda: s.segments and told(s.segments[-1])["life"] == 3)
    check_prefixes(s.segments, N)
    assert s.fact(0, "restarts") == 3
    assert "Boom: no environment" in s.fact(0, "last_error")


def test_a_worker_that_gives_no_sign_of_life_is_replaced(stage: Any) -> None:
    s = stage(workers=2, heartbeat_timeout_secs=0.5)
    s.run.scripts[1, 0] = {"mute": True}
    s.start()
    s.fetch_until(lambda: s.segments and told(s.segments[-1])["worker"] == 1 and told(s.segments[-1])["life"] > 0)
    assert "no sign of life" in s.fact(1, "last_error")
    check_prefixes(s.segments, N)


@pytest.mark.parametrize(("asked", "answered"), [("begin", True), ("begin", False), ("beat", True)])
def test_a_learner_that_stood_still_loses_no_worker(
    stage: Any, asked: str, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a Ctrl-Z: what workers have answered meanwhile lies there; or the workers stood still too."""
    s = stage(workers=1)
    stood, wait, clock = threading.Event(), s.engine.wait, time.monotonic

    def wait_and_stand_still(calls: Any, timeout: float) -> Any:
        waited_for = [call for call in calls if s.engine._methods[call] == asked]
        if stood.is_set() or not waited_for:
            return wait(calls, timeout)
        if answered:
            wait(waited_for, PATIENCE_SECS)
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600.0)
        stood.set()
        return []

    monkeypatch.setattr(s.engine, "wait", wait_and_stand_still)
    s.start()
    assert stood.wait(PATIENCE_SECS)
    s.until(lambda: s.pool.stats()["worker_restarts"] or (s.fact(0, "last_heartbeat_secs") or 3600.0) < 1800.0)
    assert (s.fact(0, "state"), s.fact(0, "life"), s.fact(0, "restarts")) == ("running", 0, 0)


def test_a_worker_that_never_begins_is_replaced_when_others_have(stage: Any) -> None:
    s = stage(workers=2, start_timeout_secs=2.0)
    s.run.scripts[1, 0] = {"maker": "hangs"}
    s.start()
    s.fetch_until(lambda: s.segments and told(s.segments[-1])["worker"] == 1)
    assert told(s.segments[-1])["life"] > 0
    assert "has not begun within 2 s" in s.fact(1, "last_error")


def test_when_no_worker_ever_begins_one_sentence_says_so(stage: Any) -> None:
    s = stage(workers=2, start_timeout_secs=0.2, num_cpus=4.0)
    s.run.scripts = {0: {"maker": "hangs"}, 1: {"maker": "hangs"}}
    s.start()
    error = s.error()
    assert isinstance(error, RuntimeError)
    for part in (
        "None of the 2 workers has begun within 0.2 s (WorkerPool.start_timeout_secs), on threads of this process",
        "worker 1",
        "4 free processors for each (WorkerPool.num_cpus)",
    ):
        assert part in str(error)


def test_a_worker_of_another_configuration_ends_the_run(stage: Any) -> None:
    s = stage(workers=1, max_failures=1)
    s.run.threads = 3
    s.start()
    error = s.error()
    assert isinstance(error, ValueError)
    assert "Worker 0 has 3 environment threads and the learner expects 2" in str(error)


def test_time_outs_of_a_worker_are_no_empty_answers(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage(workers=1, max_failures=1)

    def stalled(self: Any, timeout: float) -> WireSegment:
        raise TimeoutError("environment 0 has not returned for 300 s")

    monkeypatch.setattr("tests.distributed.scripted.ScriptedDriver.next_segment", stalled)
    s.start()
    error = s.error()
    assert isinstance(error, RuntimeError), "to the learner's pump a TimeoutError says that nothing is there yet"
    assert "has not returned for 300 s" in str(error)


# ---- telling ----


def test_what_is_told_of_workers(stage: Any) -> None:
    s = stage(workers=2)
    assert {f["state"] for f in s.pool.facts()} == {"waiting to restart"}
    assert s.pool.describe() == (
        "2 workers of 2 environment threads each, segments as they come, on threads of this process"
    )
    s.start()
    s.fetch(8)
    s.until(lambda: all(f["steps"] > 0 for f in s.pool.facts()))
    facts = s.pool.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert [(f["worker"], f["state"], f["life"], f["restarts"]) for f in facts] == [
        (0, "running", 0, 0),
        (1, "running", 0, 0),
    ]
    assert sum(f["segments"] for f in facts) == 8
    stats = s.pool.stats()
    assert stats["workers"] == stats["workers_alive"] == 2
    assert stats["fetched_segments"] == 8
    assert stats["workers_env_steps"] % (T * B) == 0
    assert all(isinstance(value, float) for value in stats.values())
    s.until(lambda: s.pool.timings() == (0.0, 0.0, 2.0, 4.0, 8.0, 2 * N))
    assert "worker 0 is running" in s.pool.who_is_waited_for()


# ---- ends ----


def stop_beside(pool: WorkerPool) -> None:
    threads = [threading.Thread(target=pool.stop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECS)
        assert not thread.is_alive()


def _states() -> dict[str, dict[str, Any]]:
    return {
        "running": {},
        "starting": {"maker": "hangs"},
        "waiting to restart": {"maker": "fails"},
        "in a take that hangs": {"hang_at": 0},
        "mute": {"mute": True},
    }


@pytest.mark.parametrize("state", _states())
def test_a_pool_stops_in_every_state(stage: Any, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_END_SECS", 0.3)
    if state == "waiting to restart":
        monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 3600.0)
    s = stage(workers=2)
    s.run.scripts = {0: _states()[state], 1: _states()[state]}
    s.start()
    wanted = state if state in ("starting", "waiting to restart") else "running"
    s.until(lambda: {f["state"] for f in s.pool.facts()} == {wanted})
    waiting: list[BaseException] = []
    learner = threading.Thread(target=lambda: waiting.append(s.error()))
    learner.start()
    stop_beside(s.pool)
    s.run.let_go.set()
    learner.join(PATIENCE_SECS)
    assert [type(e) for e in waiting] == [QueueClosed]
    s.pool.stop()
    s.until(lambda: all(d.stopped for d in s.run.drivers.values()))
    with pytest.raises(QueueClosed):
        s.pool.fetch(0.0)
    with pytest.raises(RuntimeError, match="started only once"):
        s.start()


def test_a_pool_that_was_not_started_stops(stage: Any) -> None:
    s = stage()
    s.pool.stop()
    s.pool.stop()
    with pytest.raises(RuntimeError, match="started only once"):
        s.start()
    assert s.engine.started == []


def test_a_run_meets_no_marks_of_an_earlier_one(stage: Any) -> None:
    earlier = stage(workers=1)
    earlier.start()
    earlier.fetch(2)
    earlier.close()
    later = stage(workers=1)
    later.start()
    later.fetch(2)
    earlier.pool.stop()
    later.fetch(2)
    assert check_prefixes(later.segments, N)[0, 0] == 4
    with pytest.raises(QueueClosed):
        earlier.pool.fetch(0.0)


def test_a_pool_is_started_once(stage: Any) -> None:
    s = stage()
    s.start()
    with pytest.raises(RuntimeError, match="started only once"):
        s.start()


def test_an_engine_that_breaks_ends_the_run(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage()

    def broken(*args: Any) -> Any:
        raise OSError("the cluster is gone")

    s.start()
    s.fetch(1)
    monkeypatch.setattr(s.engine, "wait", broken)
    error = s.error()
    assert isinstance(error, OSError)
    assert "the cluster is gone" in str(error)


# ---- settings ----


@pytest.mark.parametrize(
    "name",
    ["num_workers", "num_envs", "requests_in_flight", "heartbeat_timeout_secs", "start_timeout_secs", "max_failures"],
)
def test_sizes_and_limits_are_positive(name: str) -> None:
    sizes: dict[str, Any] = {"num_workers": 1, "num_envs": 1, name: 0}
    with pytest.raises(ValueError, match=rf"WorkerPool.{name} must be positive( and whole)?, got 0"):
        WorkerPool(LossyEngine(), maker=MAKER, **sizes)


def test_gin_sets_what_the_learner_does_not() -> None:
    gin.parse_config("WorkerPool.max_failures = -1\nalf.WorkerPool.heartbeat_timeout_secs = 7.0")
    with pytest.raises(ValueError, match=r"WorkerPool.max_failures must be positive and whole, got -1"):
        WorkerPool(LossyEngine(), 1, N, MAKER)
