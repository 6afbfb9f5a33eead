"""Every fault at every moment: the driver ends within seconds, by the exception of the fault, and nothing is left.

Signals, and the checkpoint that is due, are in tests/trainers/test_fault_matrix.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from absl import logging

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from tests.awake import awake_secs
from tests.drivers import staging
from tests.drivers.staging import ENVIRONMENT, FIRST, LISTENERS, MOMENTS, ROLLOUTS, STOP, TRAIN, Stage

pytestmark = pytest.mark.slow

PARTS = (*ENVIRONMENT, *ROLLOUTS, TRAIN, *LISTENERS)
# Actor threads, and how environments are stepped: several ways for what passes through them, one for the rest.
WAYS = {"environment raises": [(0, "graph"), (0, "host"), (2, "graph")], "rollout raises": [(0, "graph"), (2, "host")]}
CELLS = [
    (part, moment, *way)
    for part in PARTS
    for moment in MOMENTS
    for way in WAYS.get(part, [(0, "host")])
    if moment == FIRST or not part.endswith("in reset")
]


def _run(stage: Stage, actors: int, stepping: str) -> BaseException | None:
    """Learns until the fault ends it, or to the end; returns what came out, from run_async, train or stop."""
    algorithm = stage.algorithm()
    driver = AsyncOffPolicyDriver(
        [stage.environment(i) for i in range(2)],
        algorithm,
        actors,
        staging.UNROLL_LENGTH,
        staging.BATCH_SEGMENTS,
        observers=stage.observers(),
        metrics=stage.metrics(),
        random_seed=1,
        stepping=stepping,
        stop_timeout_secs=staging.STOP_SECS,
    )
    caught: list[BaseException] = []
    stage.direct(lambda: driver)
    try:
        driver.start()
        while True:
            driver.run_async()
            algorithm.train()
            if stage.moment == STOP and stage.part != TRAIN:
                break
    except Exception as e:
        caught.append(e)
    try:
        driver.stop()
    except Exception as e:
        caught.append(e)
    assert len(caught) <= 1, f"told twice: {caught}"
    return caught[0] if caught else None


def _check(stage: Stage, error: BaseException | None) -> None:
    told = stage.moment != STOP or stage.part in (TRAIN, "observer raises", "metric raises")
    if not told:
        # Nobody wants the segment any more: that it failed is logged, and ends nothing.
        assert error is None
    elif stage.part in staging.HANGS:
        assert isinstance(error, TimeoutError)
        name = "an observer or metric" if stage.part in LISTENERS else "environment 1"
        assert str(error).startswith(f"{name} has not returned"), error
    elif stage.part == "worker process killed":
        assert isinstance(error, ChildProcessError)
        assert "exit code -9" in str(error)
    elif stage.part in ROLLOUTS:
        # TensorFlow makes an error of its own of what Python raises inside a graph, with the original as text.
        assert isinstance(error, tf.errors.OpError)
        assert str(stage.boom) in str(error)
    else:
        assert error is stage.boom
        frames = []
        traceback = error.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        assert frames[-1] == "strike", "the traceback is not that of the fault"


@pytest.mark.parametrize(("part", "moment", "actors", "stepping"), CELLS)
def test_every_fault_at_every_moment(part: str, moment: str, actors: int, stepping: str) -> None:
    stage = Stage(part, moment)
    try:
        error = _run(stage, actors, stepping)
        ended = awake_secs()
    finally:
        stage.release()
    assert stage.happened.is_set(), "the fault did not happen"
    _check(stage, error)
    assert ended - stage.at < staging.LIMIT_SECS + (staging.STALL_SECS if part in staging.HANGS else 0)


def test_what_fails_during_stop_is_logged(monkeypatch: Any) -> None:
    lines: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: lines.append(text % args))
    stage = Stage("environment raises", STOP)
    try:
        assert _run(stage, 0, "graph") is None
    finally:
        stage.release()
    assert lines == [f"alf-env-1 failed while the driver was stopping: Boom: {stage.boom}"]
