"""Every fault and signal at every moment of a training run: how it ends, how fast, and the checkpoint that is due."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import gin
import pytest
import tensorflow as tf

from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer
from tests.awake import awake_secs
from tests.drivers import staging
from tests.drivers.staging import FIRST, FULL, MOMENTS, SIGNALS, STOP, TRAIN, Boom, Stage

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAULTS = ("environment raises", "environment hangs", "rollout raises", TRAIN, "metric raises")
CELLS = [
    (part, moment)
    for part in (*FAULTS, "worker process killed", *SIGNALS)
    for moment in MOMENTS
    # The trainer stops its driver after the last training, so that no training fails during stop.
    if (part, moment) != (TRAIN, STOP) and (part != "worker process killed" or moment == FULL)
]


class StagedTrainer(AsyncOffPolicyTrainer):
    """A trainer whose environments, observers and metrics are those of a stage."""

    def __init__(self, config: Any, stage: Stage) -> None:
        super().__init__(config)
        self._stage = stage

    def _create_environment(self, *args: Any, **kwargs: Any) -> Any:
        self._made = getattr(self, "_made", -1) + 1
        return self._stage.environment(self._made)

    def _init_driver(self, *args: Any, **kwargs: Any) -> Any:
        driver = super()._init_driver(*args, **kwargs)
        driver._observers += self._stage.observers()
        driver._metrics += self._stage.metrics()
        return driver


def _checkpoints(root: pathlib.Path) -> list[str]:
    return sorted(p.stem for p in (root / "train" / "algorithm").glob("ckpt-*.index"))


@pytest.mark.parametrize(("part", "moment"), CELLS)
def test_every_fault_at_every_moment(part: str, moment: str, small_config: Any, tmp_path: pathlib.Path) -> None:
    gin.bind_parameter("AsyncOffPolicyDriver.stop_timeout_secs", staging.STOP_SECS)
    stage = Stage(part, moment)
    config = small_config(
        AsyncOffPolicyTrainer,
        algorithm_ctor=stage.algorithm,
        num_iterations=1 if moment == STOP else 10**6,
        num_updates_per_train_step=1,
        mini_batch_length=None,
        mini_batch_size=None,
    )
    trainer = StagedTrainer(config, stage)
    handlers = [signal.getsignal(getattr(signal, name)) for name in SIGNALS]
    stage.direct(lambda: trainer._driver)
    error: Exception | None = None
    try:
        trainer.train()
    except Exception as e:
        error = e
    finally:
        ended = awake_secs()
        stage.release()
    assert stage.happened.is_set(), "the fault did not happen"
    assert ended - stage.at < staging.LIMIT_SECS + (staging.STALL_SECS if part in staging.HANGS else 0)
    assert handlers == [signal.getsignal(getattr(signal, name)) for name in SIGNALS]
    _check(stage, error)
    iterations = trainer.counters.iterations
    if part not in staging.HANGS:  # Until it is noticed, others go on.
        assert iterations == {FIRST: 0, STOP: 1}.get(moment, iterations)
    assert iterations > 0 or moment == FIRST
    # A run that was asked to end before it began leaves a checkpoint too, so that it can be resumed and played.
    due = iterations > 0 or part in SIGNALS
    assert _checkpoints(tmp_path / "run") == ([f"ckpt-{iterations}"] if due else [])


def _check(stage: Stage, error: Exception | None) -> None:
    part = stage.part
    if part in SIGNALS or (stage.moment == STOP and part != "metric raises"):
        assert error is None
    elif part in staging.HANGS:
        assert isinstance(error, TimeoutError)
    elif part == "worker process killed":
        assert isinstance(error, ChildProcessError)
    elif part == "rollout raises":
        assert isinstance(error, tf.errors.OpError)
        assert str(stage.boom) in str(error)
    else:
        assert isinstance(error, Boom)
        assert error is stage.boom
