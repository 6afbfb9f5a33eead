"""A worker that steps environments, by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from alf.distributed import environment_worker
from alf.distributed.environment_worker import EnvironmentWorker
from tests.distributed.environment_makers import MODULE, SCRIPTS, Script

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

PATIENCE_SECS = 60.0
N, B = 2, 3


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_worker, "_END_SECS", 0.2)


@pytest.fixture
def script() -> Iterator[Script]:
    SCRIPTS.append(Script())
    yield SCRIPTS[-1]
    SCRIPTS.pop().let_go.set()


def test_workers_number_their_rows_as_the_driver_does() -> None:
    worker = EnvironmentWorker(3, 0, f"{MODULE}:counting", {"num_envs": N, "batch_size": B})
    worker.begin()
    assert [env.first_env_id for env in worker._envs] == [(3 * N + i) * B for i in range(N)]
    worker.end()
    with pytest.raises(RuntimeError, match=r"Worker 3 \(life 0\) was ended"):
        worker.reset(0)


@pytest.mark.parametrize("writeable", [False, True])
def test_an_environment_may_write_to_its_actions(writeable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over Ray they come in arrays that nobody may write to, in one process in those of the learner."""
    worker = EnvironmentWorker(0, 0, f"{MODULE}:counting", {"num_envs": 1, "batch_size": B})
    worker.begin()
    worker.reset(0)
    env, step = worker._envs[0], worker._envs[0].step

    def spoiling(action: np.ndarray) -> Any:
        time_step = step(action)
        action -= 100
        return time_step

    monkeypatch.setattr(env, "step", spoiling)
    action = np.ones(B, np.int64)
    action.flags.writeable = writeable
    (step_type, *_), _, _ = worker.step(0, [action])
    assert step_type.shape == (B,)
    np.testing.assert_array_equal(action, 1)
    worker.end()


def test_an_environment_in_a_long_step_waits_for_nobody(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(environment_worker.time, "monotonic", lambda: now[0])
    script.hang_at.add((0, 0, 0, 0))
    worker = EnvironmentWorker(0, 0, f"{MODULE}:scripted", {"num_envs": 2, "batch_size": B})
    now[0] += 7  # until they are made nobody waits
    worker.begin()
    now[0] += 5
    worker.reset(0)
    stepping = threading.Thread(target=lambda: worker.step(0, [np.ones(B, np.int64)]))
    stepping.start()
    assert script.hanging.wait(PATIENCE_SECS)
    now[0] += 60
    times = [worker.beat()["timings"]]
    script.let_go.set()
    stepping.join(PATIENCE_SECS)
    times.append(worker.beat()["timings"])
    assert [(t["environment"], t["waiting_for_learner"]) for t in times] == [(60.0, 2 * 5.0)] * 2
    worker.end()


def test_an_environment_that_does_not_close_keeps_no_other_open(
    script: Script, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = EnvironmentWorker(0, 0, f"{MODULE}:scripted", {"num_envs": 2, "batch_size": B})
    worker.begin()

    monkeypatch.setattr(worker._envs[0], "close", lambda: {}["stuck"])
    worker.end()
    assert script.told[-1] == (0, 0, 1, "close")
    assert any("did not close: KeyError: 'stuck'" in line for line in logged)


def test_a_worker_that_hangs_is_left_behind_with_its_environments(script: Script, logged: list[str]) -> None:
    """They are closed when they come back."""
    script.hang_at.add((0, 0, 0, 0))
    worker = EnvironmentWorker(0, 0, f"{MODULE}:scripted", {"num_envs": 1, "batch_size": B})
    worker.begin()
    worker.reset(0)
    stepping = threading.Thread(target=lambda: worker.step(0, [np.ones(B, np.int64)]))
    stepping.start()
    assert script.hanging.wait(PATIENCE_SECS)
    worker.end()
    assert any("leaves its environments" in line for line in logged)
    assert (0, 0, 0, "close") not in script.told
    script.let_go.set()
    stepping.join(PATIENCE_SECS)
    assert script.told[-1] == (0, 0, 0, "close")


def test_a_maker_that_makes_none_is_told_in_a_sentence() -> None:
    worker = EnvironmentWorker(0, 0, f"{MODULE}:counting", {"num_envs": 0, "batch_size": B})
    with pytest.raises(
        ValueError, match=r":counting has made no environments: it must return a list of at least one\."
    ):
        worker.begin()
    worker.end()
