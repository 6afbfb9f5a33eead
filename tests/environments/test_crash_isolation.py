"""Environments that raise, hang, die or give NaN: rebuilt within limits, every stream still whole."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.trajectories import time_step as ts

from alf.environments import (
    BatchedEnvironment,
    RestartingEnvironment,
    create_environment,
    process_environment,
    suite_gym,
)
from alf.environments.seeding import Seed
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter
from tests.awake import awake_secs
from tests.environments.toy_environments import FailingEnv, ToyEnv

_FIRST, _MID, _LAST = 0, 1, 2


def _factory(size: int = 4, counter: StepCounter | None = None, **faults: Any) -> Any:
    """Counting environments that share one count of steps, so that each fault happens once; build k starts at 100 k."""
    counter = counter or StepCounter()
    builds: list[Seed] = []

    def make(seed: Seed) -> BatchedEnvironment:
        builds.append(seed)
        env = CountingEnvironment(size, first_stream_id=100 * (len(builds) - 1))
        return FaultyEnvironment(env, counter=counter, **faults)

    make.builds = builds  # type: ignore[attr-defined]
    return make


def _play(env: BatchedEnvironment, steps: int) -> list[ts.TimeStep]:
    played = [env.reset()]
    for t in range(steps):
        played.append(env.step(np.full(env.batch_size, t % 5)))
    return played


def _assert_whole(steps: list[ts.TimeStep]) -> None:
    """Every stream is FIRST MID* LAST, FIRST MID* LAST, ...; what a real step gave is what CountingEnvironment says."""
    for row in range(len(steps[0].step_type)):
        assert steps[0].step_type[row] == _FIRST
        for t, (before, after) in enumerate(itertools.pairwise(steps)):
            assert (after.step_type[row] == _FIRST) == (before.step_type[row] == _LAST)
            stream, episode, position = after.observation[row]
            if after.step_type[row] == _FIRST:
                assert (after.reward[row], after.discount[row], position) == (0, 1, 0)
            elif np.array_equal(after.observation[row], before.observation[row]):  # Made up by the restart.
                assert (after.reward[row], after.discount[row]) == (0, 1)
            else:
                assert (stream, episode, position) == (*before.observation[row][:2], before.observation[row][2] + 1)
                assert after.reward[row] == CountingEnvironment.expected_reward(position, t % 5)


@given(
    fault=st.integers(0, 12),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    size=st.integers(1, 4),
    times=st.integers(1, 2),
)
def test_a_failure_truncates_and_every_stream_stays_whole(
    fault: int, lengths: list[int], size: int, times: int
) -> None:
    counter, builds = StepCounter(), []

    def make(seed: Seed) -> BatchedEnvironment:
        builds.append(seed)
        inner = CountingEnvironment(size, 100 * (len(builds) - 1), lengths)
        return FaultyEnvironment(inner, raise_at=range(fault, fault + times), counter=counter)

    env = RestartingEnvironment(make, seed=1)
    played = _play(env, 24)
    assert env.restarts == times
    assert len(builds) == times + 1
    _assert_whole(played)
    assert (played[-1].observation[:, 0] == 100 * times + np.arange(size)).all()
    env.close()


def test_open_rows_end_as_the_text_says() -> None:
    env = RestartingEnvironment(_factory(raise_at=[2]), seed=1)  # Lengths 3, 5, 1, 4.
    played = _play(env, 6)
    types = np.stack([step.step_type for step in played], axis=1).tolist()
    # Row 2 is LAST at 1 and FIRST at 2, so no row is LAST when call 2 fails: all end at 3 and start at 4.
    assert types[0] == [_FIRST, _MID, _MID, _LAST, _FIRST, _MID, _MID]
    assert types[2] == [_FIRST, _LAST, _FIRST, _LAST, _FIRST, _LAST, _FIRST]
    assert (played[3].reward == 0).all()
    assert (played[3].discount == 1).all()
    assert np.array_equal(played[3].observation, played[2].observation)
    env = RestartingEnvironment(_factory(raise_at=[1]), seed=1)
    types = np.stack([step.step_type for step in _play(env, 5)], axis=1).tolist()
    # Row 2 is LAST at 1, when call 1 fails.
    assert types[0] == [_FIRST, _MID, _MID, _LAST, _FIRST, _MID]
    assert types[2] == [_FIRST, _LAST, _FIRST, _LAST, _FIRST, _LAST]


def test_what_was_handed_out_is_not_shared() -> None:
    env = RestartingEnvironment(_factory(raise_at=[1]), seed=1)
    played = [env.reset()]
    for _ in range(5):
        played.append(env.step(np.zeros(4, np.int64)))
        copies = [step.observation.copy() for step in played]
        played[-1].reward.fill(-7)
    arrays = [array for step in played for array in (step.observation, step.reward, step.discount)]
    for i, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[i + 1 :])
    assert all(np.array_equal(step.observation, copy) for step, copy in zip(played, copies, strict=True))


def test_the_lifetime_limit_raises_the_original_exception() -> None:
    error = KeyError("mine")
    make = _factory(raise_at=range(3, 99), error=error)
    env = RestartingEnvironment(make, seed=5, max_restarts=2, max_restarts_per_window=99)
    with pytest.raises(KeyError) as caught:
        _play(env, 30)
    assert caught.value is error
    assert "streams 0 to 3 failed after 2 restarts" in caught.value.__notes__[-1]
    assert "max_restarts=2" in caught.value.__notes__[-1]
    assert "alf.bin.doctor" in caught.value.__notes__[-1]
    assert env.restarts == 2
    env.close()


def test_the_rate_limit() -> None:
    def run(window_secs: float) -> int:
        make = _factory(raise_at=[2, 5, 8], sleep_per_step=0.01)
        env = RestartingEnvironment(make, seed=5, max_restarts_per_window=2, window_secs=window_secs)
        _play(env, 20)
        return env.restarts

    with pytest.raises(RuntimeError, match="fault injected") as caught:
        run(60.0)
    assert "2 of them in the last 60 s" in caught.value.__notes__[-1]
    assert run(0.01) == 3


def test_no_restart_is_allowed_with_limit_0() -> None:
    env = RestartingEnvironment(_factory(raise_at=[1]), max_restarts=0)
    with pytest.raises(RuntimeError, match="fault injected"):
        _play(env, 5)


def test_a_factory_that_fails_at_first_raises_at_once(no_leaked_threads: None) -> None:
    calls = []

    def make(seed: Seed) -> BatchedEnvironment:
        calls.append(seed)
        raise OSError("no licence")

    for step_timeout in (None, 5.0):
        with pytest.raises(OSError, match="no licence"):
            RestartingEnvironment(make, step_timeout_secs=step_timeout)
    assert len(calls) == 2


def test_a_factory_that_fails_later_counts_against_the_limits() -> None:
    good = _factory(raise_at=[2])
    calls: list[Seed] = []
    closed: list[BatchedEnvironment] = []

    def make(seed: Seed) -> BatchedEnvironment:
        calls.append(seed)
        if len(calls) % 3 == 2:
            raise OSError("for a moment")
        env = good(seed)
        env.close = functools.partial(closed.append, env)
        return env

    for step_timeout in (None, 5.0):
        env = RestartingEnvironment(make, seed=1, step_timeout_secs=step_timeout)
        _assert_whole(_play(env, 20))
        assert env.restarts == (2 if step_timeout is None else 0)
        env.close()
    assert len(closed) == len({id(env) for env in closed}) == 3


def test_each_build_has_a_seed_of_its_own() -> None:
    def seeds(seed: Seed) -> list[Any]:
        make = _factory(raise_at=[2, 5])
        _play(RestartingEnvironment(make, seed=seed), 12)
        return [s if isinstance(s, int) else s.generate_state(2).tolist() for s in make.builds]

    first = seeds(7)
    assert first[0] == 7
    assert first[1] != first[2]
    assert first == seeds(7)
    assert seeds(None)[0] != seeds(None)[0]


def test_the_callers_mistake_is_not_the_environments() -> None:
    env = create_environment(ToyEnv, num_parallel_environments=3, vectorization="sync")
    env.reset()
    with pytest.raises(ValueError, match=r"takes actions of shape \(3,\) \(action\); got \(2,\)"):
        env.step(np.full(2, 2))
    assert env.restarts == 0


@pytest.mark.parametrize("steps", [0, 3])
def test_an_action_outside_of_the_spec_is_told(steps: int) -> None:
    """At the first step and later; the environment numbers its actions from 2 on, alf from 0."""
    env = create_environment(ToyEnv, num_parallel_environments=2, vectorization="sync", seed=0)
    env.reset()
    for _ in range(steps):
        env.step(np.full(2, 3))
    with pytest.raises(ValueError) as told:
        env.step(np.array([3, 4]))
    assert str(told.value) == (
        "The environment failed on action = 4 in row 1, which is outside of its spec, 0 to 3: correct the algorithm that "
        "chose it, and look whether its loss is finite."
    )
    assert env.restarts == 0
    env.close()


@pytest.mark.parametrize("secs", [0, -1.0, float("nan")])
def test_a_time_limit_is_above_zero(secs) -> None:
    with pytest.raises(ValueError, match=rf"create_environment.step_timeout_secs={secs} must be above 0 seconds"):
        create_environment(ToyEnv, step_timeout_secs=secs)


def test_an_action_that_is_not_looked_at_is_not_blamed() -> None:
    env = RestartingEnvironment(_factory(raise_at=[1]), seed=1)
    env.reset()
    assert env.step(np.zeros(4, np.int64)).step_type.tolist() == [_MID, _MID, _LAST, _MID]
    env.step(np.array([0, 0, -7, 0]))
    assert env.restarts == 1


def test_an_action_that_is_no_number_is_told() -> None:
    class Refuses(ToyEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    env = create_environment(Refuses, num_parallel_environments=1)
    env.reset()
    with pytest.raises(
        ValueError, match=r"action = \[ 0. nan\] in row 0, which is outside of its spec, \[-1. -1.\] to"
    ):
        env.step(np.array([[0.0, np.nan]], np.float32))


@pytest.mark.parametrize("nonfinite", ["error", "truncate"])
def test_what_is_not_finite_because_of_the_action_is_the_callers_mistake(nonfinite: str) -> None:
    class Passes(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return action, 0.0, False, False, {}

    env = create_environment(Passes, num_parallel_environments=2, nonfinite=nonfinite)
    env.reset()
    env.step(np.zeros([2, 2], np.float32))
    with pytest.raises(
        ValueError, match=r"row 1, which is .*: correct the algorithm that chose it, and look whether its loss"
    ):
        env.step(np.array([[0.0, 0.0], [0.0, np.nan]], np.float32))
    assert env.nonfinite_truncations == 0
    env.close()


def test_a_hang_in_this_process_is_left_behind() -> None:
    env = RestartingEnvironment(_factory(hang_at=[3], hang_secs=60.0), seed=1, step_timeout_secs=0.5)
    before = awake_secs()
    played = _play(env, 12)
    assert awake_secs() - before < 30
    assert env.restarts == 1
    _assert_whole(played)
    env.close()


def test_the_thread_that_times_steps_owns_its_environment() -> None:
    threads: dict[str, set[str]] = {}

    class Watched(CountingEnvironment):
        def _note(self, what: str) -> None:
            threads.setdefault(what, set()).add(str(threading.get_ident()))

        def _reset(self) -> ts.TimeStep:
            self._note("reset")
            return super()._reset()

        def _step(self, action: Any) -> ts.TimeStep:
            self._note("step")
            return super()._step(action)

        def close(self) -> None:
            self._note("close")

    def make(seed: Seed) -> BatchedEnvironment:
        threads.setdefault("build", set()).add(str(threading.get_ident()))
        return Watched(2)

    env = RestartingEnvironment(make, step_timeout_secs=5.0)
    _play(env, 3)
    env.close()
    assert len({frozenset(ids) for ids in threads.values()}) == 1
    assert set(threads) == {"build", "reset", "step", "close"}
    assert str(threading.get_ident()) not in threads["step"]


@pytest.mark.parametrize("step_timeout", [None, 5.0])
def test_close_is_bounded_final_and_restarts_nothing(step_timeout: float | None) -> None:
    class Stuck(CountingEnvironment):
        def close(self) -> None:
            time.sleep(60)

    builds = []

    def make(seed: Seed) -> BatchedEnvironment:
        builds.append(seed)
        return Stuck(2)

    env = RestartingEnvironment(make, step_timeout_secs=step_timeout)
    env.reset()
    before = awake_secs()
    env.close()
    env.close()
    assert awake_secs() - before < 30
    with pytest.raises(RuntimeError, match="closed"):
        env.step(np.zeros(2, np.int64))
    assert len(builds) == 1


@pytest.mark.parametrize("how", ["raise", "raise_custom", "hang", "kill"])
def test_worker_processes(how: str, tmp_path: pathlib.Path) -> None:
    flag = tmp_path / "flag"
    env = create_environment(
        functools.partial(FailingEnv, how, str(flag)),
        num_parallel_environments=2,
        seed=1,
        vectorization="async",
        step_timeout_secs=1.0 if how == "hang" else 60.0,
        max_restarts=1,
    )
    old = env.env.worker_pids
    played = [env.reset()]
    for t in range(9):
        if t == 4:
            flag.touch()
        played.append(env.step(np.full(2, 2)))
    assert env.restarts == 1
    for before, after in itertools.pairwise(played):
        assert ((after.step_type == _FIRST) == (before.step_type == _LAST)).all()
    assert not any(_alive(pid) for pid in old)
    flag.touch()
    expected: tuple[type[Exception], str] = {
        "raise": (ValueError, "toy failure"),
        "raise_custom": (RuntimeError, "CustomError: 7: odd failure"),
        "hang": (TimeoutError, r"no answer within 1\.0 s"),
        "kill": (ChildProcessError, "with exit code -9"),
    }[how]
    with pytest.raises(expected[0], match=expected[1]) as caught:
        for _ in range(3):
            env.step(np.full(2, 2))
    assert any("max_restarts=1" in note for note in caught.value.__notes__)
    if how.startswith("raise"):
        assert any("in step" in note for note in caught.value.__notes__)
    new = env.env.worker_pids
    before = awake_secs()
    env.close()
    assert awake_secs() - before < 30
    assert not any(_alive(pid) for pid in new)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_that_never_come_out_of_building_are_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, hung = os.getpid(), tmp_path / "pid"

    def build() -> ToyEnv:
        if os.getpid() != main:
            hung.write_text(str(os.getpid()))
            time.sleep(60)
        return ToyEnv()

    monkeypatch.setattr(process_environment, "_START_TIMEOUT_SECS", 0.5)
    with pytest.raises(TimeoutError, match=r"did not build their 1 environments within 0\.5 s"):
        process_environment.make_process_environment(build, 1)
    assert not _alive(int(hung.read_text()))


def test_a_worker_killed_from_outside(tmp_path: pathlib.Path) -> None:
    counter = StepCounter()

    def faulty(env: BatchedEnvironment) -> BatchedEnvironment:
        return FaultyEnvironment(env, kill_at=[3], counter=counter)

    load = functools.partial(suite_gym.load, env_wrappers=(faulty,))
    env = create_environment("CartPole-v1", load, num_parallel_environments=3, vectorization="async")
    for before, after in zip(steps := _play_cart_pole(env, 12), steps[1:], strict=False):
        assert ((after.step_type == _FIRST) == (before.step_type == _LAST)).all()
    assert env.restarts == 1
    env.close()


def _play_cart_pole(env: BatchedEnvironment, steps: int) -> list[ts.TimeStep]:
    return [env.reset(), *(env.step(np.zeros(env.batch_size, np.int64)) for _ in range(steps))]


def test_workers_leave_signals_to_the_main_process() -> None:
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    env = create_environment(ToyEnv, num_parallel_environments=2, vectorization="async")
    try:
        env.reset()
        for pid in env.env.worker_pids:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGHUP)
        assert env.step(np.full(2, 2)).step_type.tolist() == [_LAST, _LAST]
        assert env.restarts == 0
        os.kill(env.env.worker_pids[0], signal.SIGTERM)
        env.step(np.full(2, 2))
        assert env.restarts == 1
    finally:
        signal.signal(signal.SIGTERM, previous)
        env.close()


class _Poisoned(CountingEnvironment):
    """Gives a value that is not finite in row 1, in the chosen call."""

    def __init__(self, at: int, where: str, value: float) -> None:
        super().__init__(3, episode_lengths=[9])
        self.at, self.where, self.value, self.calls = at, where, value, 0

    def _step(self, action: Any) -> ts.TimeStep:
        step = super()._step(action)
        self.calls += 1
        if self.calls == self.at:
            (step.reward if self.where == "reward" else step.observation[:, 2])[1] = self.value
        return step


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["reward", "observation"])
def test_nan_is_an_error_with_stream_and_step(where: str, value: float) -> None:
    env = RestartingEnvironment(lambda seed: _Poisoned(4, where, value))
    env.first_env_id = 40
    with pytest.raises(FloatingPointError, match=rf"Stream 41 \(row 1 of 3\) gave {where} = .* at its step 4"):
        _play(env, 9)
    assert env.restarts == 0


def test_nan_can_truncate() -> None:
    env = RestartingEnvironment(lambda seed: _Poisoned(4, "observation", np.nan), nonfinite="truncate")
    played = _play(env, 9)
    _assert_whole(played)
    assert (env.nonfinite_truncations, env.restarts, env.cuts) == (1, 0, 1)
    assert played[4].step_type.tolist() == [_LAST] * 3
    assert np.array_equal(played[4].observation, played[3].observation)
    assert played[5].observation[:, 1].tolist() == [1, 1, 1]


def test_large_finite_values_pass() -> None:
    env = RestartingEnvironment(lambda seed: _Poisoned(4, "reward", 3e38))
    assert _play(env, 9)[4].reward[1] == np.float32(3e38)


def test_nan_in_a_first_observation_is_an_error() -> None:
    class Bad(CountingEnvironment):
        def _reset(self) -> ts.TimeStep:
            step = super()._reset()
            step.observation[0, 0] = np.nan
            return step

    env = RestartingEnvironment(lambda seed: Bad(2), nonfinite="truncate")
    with pytest.raises(FloatingPointError, match=r"Stream 0 .* at its step 0, .* the environment's reset\.$"):
        env.reset()
