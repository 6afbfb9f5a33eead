"""Environments in processes whose building, drawing or wrappers fail: bounded, translated, and nobody stays behind."""

from __future__ import annotations

import functools
import os
import pathlib
import time
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from alf.environments import process_environment
from alf.environments.call_thread import bounded_call
from alf.environments.process_environment import make_process_environment
from alf.environments.utils import create_environment
from tests.environments.toy_environments import ToyEnv


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
