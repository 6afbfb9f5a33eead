"""Environments in processes whose building, drawing or wrappers fail: bounded, translated, and nobody stays behind."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AsyncVectorEnv, VectorEnv, VectorWrapper

from alf.environments import process_environment
from alf.environments.call_thread import bounded_call
from alf.environments.process_environment import ProcessEnvironment, make_process_environment
from alf.environments.utils import create_environment
from tests.environments.toy_environments import FailingEnv, ToyEnv


class _OneFails(ToyEnv):
    """Of all that are made, the first one cannot be; the others write down their process."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        try:
            (folder / "taken").touch(exist_ok=False)
        except FileExistsError:
            (folder / str(os.getpid())).touch()
            return
        time.sleep(0.5)
        raise RuntimeError("the only licence is in use")


def test_of_workers_that_cannot_all_be_built_none_stays(tmp_path: pathlib.Path) -> None:
    build = functools.partial(_OneFails, tmp_path)
    with pytest.raises(ChildProcessError, match="died while it built its environment") as caught:
        make_process_environment(build, 3, probe=ToyEnv())
    others = [int(p.name) for p in tmp_path.iterdir() if p.name != "taken"]
    assert others
    # Though the error, and with it all that was made, is still held.
    assert caught.value is not None
    assert not [pid for pid in others if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def test_a_worker_that_died_before_it_was_asked_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(process_environment.AsyncVectorEnv, "_check_spaces", broken)
    with pytest.raises(ChildProcessError, match="died while it built its environment"):
        make_process_environment(ToyEnv, 2, probe=ToyEnv())


class _CannotDraw(ToyEnv):
    """Raises what cannot be pickled, or never returns."""

    def __init__(self, hang: bool = False) -> None:
        super().__init__(render_mode="rgb_array")
        self.hang = hang

    def render(self) -> np.ndarray:
        class LocalError(Exception):
            pass

        if self.hang:
            time.sleep(60.0)
        raise LocalError("no screen")


@pytest.mark.parametrize(
    ("hang", "kind", "said"),
    [(False, RuntimeError, "no screen"), (True, TimeoutError, "processes gave no answer within 1.0 s")],
)
def test_drawing_that_fails_or_hangs_is_an_error_in_time(hang: bool, kind: type[Exception], said: str) -> None:
    env = create_environment(
        functools.partial(_CannotDraw, hang), num_parallel_environments=2, vectorization="async", step_timeout_secs=1.0
    )
    env.reset()
    with pytest.raises(kind, match=said):
        bounded_call(env.render, 20.0, "drawing")
    env.close()


class _CannotClose(ToyEnv):
    """Raises when it is closed."""

    def close(self) -> None:
        raise RuntimeError("the port is in use")


def test_an_environment_that_cannot_be_closed_can_be_used(logged: list[str]) -> None:
    env = create_environment(_CannotClose, num_parallel_environments=2, vectorization="async")
    env.reset()
    assert env.step(np.zeros(2, np.int64)).reward.tolist() == [12.0, 12.0]
    env.close()
    assert any("did not close: RuntimeError('the port is in use')" in line for line in logged)


_BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
_UNFIT = [
    (gymnasium.spaces.Graph(_BOX, None), "The observation space is a Graph, which alf cannot turn into arrays"),
    (gymnasium.spaces.Dict({"a": gymnasium.spaces.Sequence(_BOX)}), "The observation/a space is a Sequence, which alf"),
    (gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float16), "no memory of float16 to share: .*np.float32"),
    (gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float16)}), "no memory of float16 to share"),
]


@pytest.mark.parametrize(("space", "message"), _UNFIT, ids=lambda value: type(value).__name__)
def test_spaces_that_processes_cannot_have_are_told_before_one_starts(space: gymnasium.Space, message: str) -> None:
    class Shown(ToyEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

    with pytest.raises(ValueError, match=message):
        create_environment(Shown, num_parallel_environments=2, vectorization="async")


def test_one_array_of_all_rows_pictures_is_that_of_the_first() -> None:
    class Drawn(gymnasium.Wrapper):
        def render(self) -> Any:
            return np.stack([np.zeros((4, 5, 3), np.uint8), np.ones((4, 5, 3), np.uint8)])

    env = create_environment(lambda: Drawn(ToyEnv(render_mode="rgb_array")), nonparallel=True)
    env.reset()
    picture = env.render()
    assert picture is not None
    assert picture.shape == (4, 5, 3)
    assert not picture.any()


class _Watched(VectorWrapper):
    """Doubles rewards, and writes down when it is closed, which it does not do well."""

    closings = 0

    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, 2 * reward, *rest

    def close(self, **kwargs: Any) -> None:
        super().close(**kwargs)
        _Watched.closings += 1
        raise RuntimeError("the film is torn")


def _rows_and_wrappers(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[], gymnasium.Env], wrappers: int
) -> tuple[Callable[[], VectorEnv], list[int]]:
    """A user's callable, of three processes within wrappers, and the ids of the processes that it has started."""
    monkeypatch.setattr(_Watched, "closings", 0)
    pids: list[int] = []

    def make() -> VectorEnv:
        env: VectorEnv = AsyncVectorEnv([build] * 3)
        pids.extend(process.pid for process in env.processes)  # type: ignore[attr-defined]
        for _ in range(wrappers):
            env = _Watched(env)
        return env

    return make, pids


@pytest.mark.parametrize("wrappers", [0, 1, 2])
def test_workers_in_vector_wrappers_are_ended_with_one_that_is_killed(
    monkeypatch: pytest.MonkeyPatch, wrappers: int
) -> None:
    make, pids = _rows_and_wrappers(monkeypatch, ToyEnv, wrappers)
    env = create_environment(make, num_parallel_environments=3, seed=0)
    env.reset()
    assert env.step(np.zeros(3, np.int64)).reward.tolist() == [12.0 * 2**wrappers] * 3
    old = pids.copy()
    os.kill(old[1], signal.SIGKILL)
    bounded_call(lambda: env.step(np.zeros(3, np.int64)), 60.0, "step")
    assert env.restarts == 1
    assert not any(psutil.pid_exists(pid) for pid in old)
    assert _Watched.closings == (wrappers > 0)
    env.close()
    assert len(pids) == 6
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("wrappers", [0, 1])
def test_a_worker_in_vector_wrappers_that_hangs_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, wrappers: int
) -> None:
    flag = tmp_path / "flag"
    make, pids = _rows_and_wrappers(monkeypatch, functools.partial(FailingEnv, "hang", str(flag)), wrappers)
    env = ProcessEnvironment(make(), step_timeout_secs=1.0)
    env.reset()
    flag.touch()
    with pytest.raises(TimeoutError, match=r"processes gave no answer within 1\.0 s"):
        bounded_call(lambda: env.step(np.zeros(3, np.int64)), 60.0, "step")
    env.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


class _RaisesLocalError(FailingEnv):
    """Raises what cannot be pickled."""

    def step(self, action: Any) -> Any:
        class LocalError(Exception):
            pass

        try:
            return super().step(action)
        except ValueError as error:
            raise LocalError("no scene") from error

    def close(self) -> None:
        time.sleep(0.5)  # Python prints what it cannot send only in a process that does not end yet.
        super().close()


@pytest.mark.parametrize("wrappers", [0, 1])
def test_an_exception_that_never_comes_out_of_a_users_worker_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], wrappers: int
) -> None:
    monkeypatch.setattr(process_environment, "_ERROR_TIMEOUT_SECS", 1.0)
    flag = tmp_path / "flag"
    make, pids = _rows_and_wrappers(monkeypatch, functools.partial(_RaisesLocalError, "raise", str(flag)), wrappers)
    env = create_environment(make, num_parallel_environments=3, seed=0, max_restarts=1)
    env.reset()
    for _ in range(2):  # an episode of one step
        env.step(np.zeros(3, np.int64))
    flag.touch()
    bounded_call(lambda: env.step(np.zeros(3, np.int64)), 20.0, "step")
    assert env.restarts == 1
    flag.touch()
    with pytest.raises(ChildProcessError, match=r"cannot be pickled, .* printed: define its class at the top"):
        bounded_call(lambda: [env.step(np.zeros(3, np.int64)) for _ in range(3)], 20.0, "steps")
    env.close()
    assert "_RaisesLocalError.step.<locals>.LocalError" in capfd.readouterr().err
    assert not any(psutil.pid_exists(pid) for pid in pids)
