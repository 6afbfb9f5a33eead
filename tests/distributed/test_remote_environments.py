"""Environments on workers: the same steps as here, cut where a worker is lost, ended by errors of their own."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.distributed import environment_keeper, environment_worker, in_process_engine, keeper, member
from alf.distributed.engine import WorkerLost
from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.environment_worker import EnvironmentWorker
from alf.distributed.in_process_engine import InProcessEngine
from alf.drivers.queues import QueueClosed
from alf.environments import BatchedEnvironment
from tests.distributed import environment_makers as makers
from tests.distributed.environment_makers import LIFE_STREAMS, MODULE, SCRIPTS, Boom, Script
from tests.distributed.scripted import LossyEngine

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

PATIENCE_SECS = 60.0
W, N, B = 2, 2, 3
FIRST, MID, LAST = 0, 1, 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and ends that tests need not sit through."""
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    monkeypatch.setattr(keeper, "_BEAT_SECS", 0.02)
    monkeypatch.setattr(environment_keeper, "_WAIT_SECS", 0.02)
    monkeypatch.setattr(environment_worker, "_END_SECS", 0.2)
    monkeypatch.setattr(in_process_engine, "_STOP_TIMEOUT_SECS", 0.5)


@pytest.fixture
def make_pool() -> Iterator[Callable[..., EnvironmentPool]]:
    pools: list[EnvironmentPool] = []

    def make(kind: str = "counting", engine: Any = None, workers: int = W, **kwargs: Any) -> EnvironmentPool:
        settings = {"num_envs": N, "batch_size": B}
        pools.append(EnvironmentPool(engine or InProcessEngine(), workers, N, f"{MODULE}:{kind}", settings, **kwargs))
        return pools[-1]

    yield make
    for pool in pools:
        pool.stop()


@pytest.fixture
def script() -> Iterator[Script]:
    SCRIPTS.append(Script())
    yield SCRIPTS[-1]
    SCRIPTS.pop().let_go.set()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def an_action(env: BatchedEnvironment, rng: np.random.Generator) -> Any:
    """Within the specs, for all rows."""

    def sample(spec: Any) -> np.ndarray:
        shape = (env.batch_size, *spec.shape)
        low, high = np.broadcast_to(spec.minimum, shape), np.broadcast_to(spec.maximum, shape)
        if np.issubdtype(spec.dtype, np.integer):
            return rng.integers(low, high + 1).astype(spec.dtype)
        return rng.uniform(low, high).astype(spec.dtype)

    return tf.nest.map_structure(sample, env.action_spec())


def played(env: BatchedEnvironment, steps: int, seed: int = 0) -> list[Any]:
    """The time steps from a reset on, under actions of a seed."""
    rng = np.random.default_rng(seed)
    return [env.reset(), *(env.step(an_action(env, rng)) for _ in range(steps))]


def assert_same(mine: Any, theirs: Any) -> None:
    tf.nest.assert_same_structure(mine, theirs)
    for a, b in zip(tf.nest.flatten(mine), tf.nest.flatten(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# ---- the same steps ----


@pytest.mark.parametrize("kind", ["counting", "cart_pole", "nested"])
def test_remote_environments_are_the_local_ones(make_pool: Any, kind: str) -> None:
    pool = make_pool(kind)
    remote = pool.start()
    local = [env for w in range(W) for env in getattr(makers, kind)(w, 0, N, B)]
    assert len(remote) == len(local) == W * N
    for i, (mine, theirs) in enumerate(zip(remote, local, strict=True)):
        assert (mine.batch_size, mine.frames_per_step) == (theirs.batch_size, theirs.frames_per_step)
        assert mine.observation_spec() == theirs.observation_spec()
        assert mine.action_spec() == theirs.action_spec()
        assert_same(played(mine, 60, i), played(theirs, 60, i))
        # A reset in the middle, and on.
        assert_same(played(mine, 5, i), played(theirs, 5, i))
        assert mine.restarts == 0
        theirs.close()
    assert pool.stats()["worker_restarts"] == pool.stats()["lost_requests"] == 0


def test_environments_are_told_what_local_ones_are(make_pool: Any, script: Script) -> None:
    """Before anything acts, after all is built and before the first reset, of phases, and at the end."""
    pool = make_pool("scripted")
    env = pool.start()[-1]
    env.before_building()
    env.after_building()
    env.enter_phase("heatup")
    played(env, 3)
    env.enter_phase("train")
    played(env, 3)
    env.close()
    until(lambda: pool.stats()["workers_alive"] == W)
    pool.stop()
    told = [what for worker, life, i, what in script.told if (worker, life, i) == (W - 1, 0, N - 1)]
    assert told == ["before_building", "heatup", "after_building", "reset", "train", "reset", "close"]
    others = [what for worker, life, i, what in script.told if (worker, i) == (0, 0)]
    assert others == ["before_building", "close"]


def test_displays_are_told_of_the_workers(make_pool: Any) -> None:
    pool = make_pool()
    envs = pool.start()
    for env in envs:
        played(env, 9)
    # A reset counts as the step that it is recorded as.
    until(lambda: pool.stats()["workers_env_steps"] == W * N * B * 10)
    stats = pool.stats()
    assert (stats["workers"], stats["workers_alive"]) == (W, W)
    for number, row in enumerate(pool.facts()):
        assert (row["worker"], row["state"], row["life"], row["steps"]) == (number, "running", 0, N * B * 10)
        assert row["pid"] > 0
        assert row["policy_version"] is None
        assert 0 <= row["waits_for_learner"] <= 1
    assert pool.describe() == f"{W} workers that step {N} environments each, on threads of this process"
    assert "worker 1 is running" in pool.who_is_waited_for()
    pool.stop()
    assert {row["state"] for row in pool.facts()} == {"stopped"}
    assert pool.stats()["workers_env_steps"] == W * N * B * 10


# ---- workers that are lost ----


def check_cut(steps: list[Any], lives: list[int], stream: int) -> int:
    """Asserts that each row is FIRST MID* LAST, FIRST ..., and that made-up steps are truncations; returns these."""
    cuts = 0
    for row in range(B):
        seen: list[int] = []
        for before, after in zip([None, *steps[:-1]], steps, strict=True):
            kind, observation = after.step_type[row], after.observation[row]
            life, rest = divmod(int(observation[0]), LIFE_STREAMS)
            assert rest == stream + row
            if before is not None:
                assert (kind == FIRST) == (before.step_type[row] == LAST)
                if kind == LAST and np.array_equal(observation, before.observation[row]):
                    assert (after.reward[row], after.discount[row]) == (0, 1), "what was cut is truncated"
                    cuts += 1
            if kind == FIRST:
                assert (after.reward[row], after.discount[row], observation[2]) == (0, 1, 0)
            if not seen or seen[-1] != life:
                assert kind == FIRST, "a life begins with its episodes"
                seen.append(life)
        assert seen == lives
    return cuts


def test_a_lost_worker_cuts_its_episodes_and_comes_back(make_pool: Any) -> None:
    engine = LossyEngine()
    pool = make_pool(engine=engine)
    envs = pool.start()
    steps = [[env.reset()] for env in envs]

    def step(index: int, times: int) -> None:
        for _ in range(times):
            steps[index].append(envs[index].step(np.ones(B, np.int64)))

    for kill in range(3):
        for index in range(W * N):
            step(index, 5 + kill + index)
        engine.kill(engine.newest(1))
        # The first of its environments is stepped while the others wait, and the other worker goes on.
        for index in (0, 2, 3, 1):
            step(index, 7)
    for index in range(W * N):
        lives = [0] if index < N else [0, 1, 2, 3]
        cuts = check_cut(steps[index], lives, index * B)
        assert cuts == (0 if index < N else 3 * B), "each kill cuts all rows"
        assert envs[index].restarts == (0 if index < N else 3)
    stats = pool.stats()
    assert stats["worker_restarts"] == 3
    assert stats["lost_requests"] == 3 * N
    rows = pool.facts()
    assert [row["restarts"] for row in rows] == [0, 3]
    assert [row["lost_requests"] for row in rows] == [0, stats["lost_requests"]]
    assert "killed" in rows[1]["last_error"]


def test_rows_that_had_ended_are_cut_after_their_first_step(make_pool: Any) -> None:
    """As `RestartingEnvironment` says of a failure: rows start together, so these get an episode of one step."""
    engine = LossyEngine()
    pool = make_pool(engine=engine, workers=1)
    env = pool.start()[0]
    step = env.reset()
    while not (step.step_type == LAST).any() or (step.step_type == LAST).all():
        step = env.step(np.ones(B, np.int64))
    ended = step.step_type == LAST
    engine.kill(engine.newest(0))
    first, second, third = (env.step(np.ones(B, np.int64)) for _ in range(3))
    np.testing.assert_array_equal(first.step_type, np.where(ended, FIRST, MID))
    np.testing.assert_array_equal(second.step_type, np.full(B, LAST))
    np.testing.assert_array_equal(second.discount, np.ones(B))
    np.testing.assert_array_equal(third.step_type, np.full(B, FIRST))
    np.testing.assert_array_equal(third.observation[:, 0], LIFE_STREAMS + np.arange(B))


def test_while_a_worker_is_away_others_go_on_and_nobody_hangs(make_pool: Any, script: Script) -> None:
    script.hang_making.add((1, 1))
    engine = LossyEngine()
    pool = make_pool("scripted", engine)
    envs = pool.start()
    for env in envs:
        env.reset()
    assert envs[N].waited_until <= time.monotonic()
    engine.kill(engine.newest(1))
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(envs[N].step(np.ones(B, np.int64))))
    waiting.start()
    assert script.hanging.wait(PATIENCE_SECS)
    played(envs[0], 20)
    assert found == []
    before = time.monotonic()
    until(lambda: envs[N].waited_until >= before)
    assert envs[0].waited_until < before, "a worker that answers is not waited for"
    assert "worker 1 is starting" in pool.who_is_waited_for()
    script.let_go.set()
    waiting.join(PATIENCE_SECS)
    after = envs[N].waited_until
    assert found[0].step_type.tolist() == [LAST] * B
    assert before <= after == envs[N].waited_until


def test_a_silent_worker_is_lost(make_pool: Any, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.hang_at.add((0, 0, 1, 2))
    beat = EnvironmentWorker.beat

    def silent(self: EnvironmentWorker) -> dict[str, Any]:
        if self._life == 0 and script.hanging.is_set():
            script.let_go.wait(PATIENCE_SECS)
        return beat(self)

    monkeypatch.setattr(EnvironmentWorker, "beat", silent)
    pool = make_pool("scripted", workers=1, heartbeat_timeout_secs=0.2)
    env = pool.start()[1]
    steps = played(env, 5)
    assert [int(step.observation[0, 0]) // LIFE_STREAMS for step in steps] == [0, 0, 0, 0, 1, 1]
    assert steps[3].step_type.tolist() == [LAST] * B
    assert "no sign of life" in pool.facts()[0]["last_error"]


def test_what_the_worker_rebuilds_is_counted_over_its_lives(make_pool: Any, script: Script) -> None:
    engine = LossyEngine()
    pool = make_pool("scripted", engine, workers=1)
    env = pool.start()[0]
    script.restarts, script.nonfinite = 2, 3
    played(env, 1)
    assert (env.restarts, env.cuts) == (2, 2 + 3)
    engine.kill(engine.newest(0))
    script.restarts, script.nonfinite = 1, 5
    played(env, 1)
    assert (env.restarts, env.cuts) == (2 + 1 + 1, 2 + 3 + 1 + 1 + 5)
    lost_at = time.monotonic()
    env._count_restart(WorkerLost("it is gone"))
    assert env.waited_until >= lost_at, "its machine is waited for from then on"


# ---- errors ----


def test_an_error_of_an_environment_is_final_and_has_its_own_traceback(make_pool: Any, script: Script) -> None:
    script.fail_at.add((1, 0, 0, 3))
    pool = make_pool("scripted")
    env = pool.start()[N]
    with pytest.raises(Boom, match=r"at \(1, 0, 0, 3\)") as raised:
        played(env, 9)
    told = "".join(traceback.format_exception(raised.value))
    assert "environment_makers.py" in told
    assert "worker 1 (life 0)" in told
    assert pool.stats()["worker_restarts"] == env.restarts == 0


def test_actions_of_another_shape_are_refused(make_pool: Any) -> None:
    pool = make_pool()
    env = pool.start()[0]
    env.reset()
    with pytest.raises(ValueError, match="actions"):
        env.step(np.zeros(B + 1, np.int64))


def test_environments_that_cannot_be_made_end_the_start(make_pool: Any, script: Script) -> None:
    script.fail_making.update({(0, 0), (1, 0)})
    with pytest.raises(Boom, match="has no environments"):
        make_pool("scripted").start()


def test_a_worker_that_cannot_make_them_again_ends_those_who_wait(make_pool: Any, script: Script) -> None:
    script.fail_making.update({(1, life) for life in range(1, 9)})
    engine = LossyEngine()
    pool = make_pool("scripted", engine, max_failures=2)
    envs = pool.start()
    played(envs[0], 2)
    played(envs[N], 2)
    engine.kill(engine.newest(1))
    with pytest.raises(Boom, match="worker 1 has no environments"):
        envs[N].step(np.ones(B, np.int64))
    assert [life for number, life, _ in engine.started if number == 1] == [0, 1, 2]
    with pytest.raises(Boom):
        played(envs[0], 1)


@pytest.mark.parametrize("what", ["num_envs", "sizes"])
def test_workers_of_another_configuration_are_refused(make_pool: Any, script: Script, what: str) -> None:
    if what == "num_envs":
        script.num_envs = N + 1
        with pytest.raises(ValueError, match=f"has {N + 1} environments and the learner expects {N}"):
            make_pool("scripted").start()
        return
    script.sizes[1, 1] = B + 1
    engine = LossyEngine()
    pool = make_pool("scripted", engine, max_failures=1)
    envs = pool.start()
    envs[N].reset()
    engine.kill(engine.newest(1))
    with pytest.raises(ValueError, match="Worker 1 has environments of another kind than the first one"):
        envs[N].step(np.ones(B, np.int64))


def test_when_no_worker_ever_begins_one_sentence_says_so(make_pool: Any, script: Script) -> None:
    script.hang_making.update({(w, life) for w in range(W) for life in range(9)})
    pool = make_pool("scripted", start_timeout_secs=0.3)
    with pytest.raises(
        RuntimeError, match=r"None of the 2 workers has begun within 0.3 s .*start_timeout_secs.*worker 0"
    ):
        pool.start()


@pytest.mark.parametrize("name", ["heartbeat_timeout_secs", "start_timeout_secs", "max_failures", "workers"])
def test_sizes_and_limits_are_positive(make_pool: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"EnvironmentPool.*{name} must be positive( and whole)?, got 0"):
        make_pool(**{name: 0})


# ---- the end ----


@pytest.mark.parametrize("where", ["making", "step"])
def test_stopping_wakes_those_who_wait(make_pool: Any, script: Script, where: str) -> None:
    if where == "making":
        script.hang_making.update({(1, life) for life in range(9)})
    else:
        script.hang_at.add((1, 0, 0, 0))
    pool = make_pool("scripted")
    envs = pool.start()
    errors: list[Exception] = []

    def play() -> None:
        try:
            played(envs[N], 3)
        except Exception as e:
            errors.append(e)

    waiting = threading.Thread(target=play)
    waiting.start()
    assert script.hanging.wait(PATIENCE_SECS)
    pool.wake()
    waiting.join(PATIENCE_SECS)
    assert [type(e) for e in errors] == [QueueClosed]
    # What hangs is let go; both calls of `stop` return.
    script.let_go.set()
    pool.stop()
    pool.stop()
    with pytest.raises(QueueClosed):
        envs[0].reset()
    envs[0].close()


def test_what_a_worker_fails_with_while_the_run_stops_is_its_stop(
    make_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LossyEngine()
    pool = make_pool(engine=engine, workers=1)
    env = pool.start()[0]
    env.reset()
    result, me = engine.result, threading.current_thread()

    def ended(call: Any) -> Any:
        if threading.current_thread() is not me:
            return result(call)
        pool.wake()
        raise RuntimeError("Worker 0 (life 0) was ended.")

    monkeypatch.setattr(engine, "result", ended)
    with pytest.raises(QueueClosed):
        env.step(np.ones(B, np.int64))


def test_late_news_of_an_earlier_life_do_no_harm(make_pool: Any) -> None:
    engine = LossyEngine()
    pool = make_pool(engine=engine, workers=1)
    env = pool.start()[0]
    env.reset()
    engine.kill(engine.newest(0))
    env.step(np.ones(B, np.int64))
    pool._keeper._lost.append((0, 0, "late news"))
    until(lambda: not pool._keeper._lost)
    pool.stop()
    assert pool.facts()[0]["restarts"] == 1


def test_a_pool_is_started_once(make_pool: Any) -> None:
    pool = make_pool()
    pool.start()
    with pytest.raises(RuntimeError, match="started only once"):
        pool.start()
