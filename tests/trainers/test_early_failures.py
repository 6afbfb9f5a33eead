"""Runs that fail before their first iteration has ended: what their index says, and what is kept."""

from __future__ import annotations

import gin
import pytest

from alf.trainers.counts import EnvironmentSteps
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.run_index import RunIndex
from alf.trainers.saving import NonFiniteError
from alf.trainers.schedule import Schedule
from tests.replay.q_learning import TinyQ

pytestmark = pytest.mark.slow

TRAINERS = pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])


def _fail(*args, **kwargs):
    raise MemoryError("on purpose")


@TRAINERS
def test_a_run_that_fails_at_once_is_noted_as_failed(trainer_class, small_config, tmp_path):
    trainer = small_config(trainer_class).create_trainer()
    trainer.initialize()
    trainer._train_iter = _fail
    with pytest.raises(MemoryError, match="on purpose"):
        trainer.train()
    index = RunIndex.load(str(tmp_path / "run"))
    assert (index.run["status"], index.run["why"]) == ("failed", "MemoryError: on purpose")
    assert not index.records(), "nothing was collected"


def test_a_resumed_run_that_fails_at_once_is_noted_and_leaves_the_checkpoint_as_it_is(small_config, tmp_path):
    small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer().train()
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=2).create_trainer()
    trainer.initialize()
    trainer._train_iter = _fail
    before = RunIndex.load(str(tmp_path / "run")).records()
    with pytest.raises(MemoryError):
        trainer.train()
    index = RunIndex.load(str(tmp_path / "run"))
    assert index.run["status"] == "failed"
    assert index.records() == before


def test_a_heatup_outlives_the_failure_of_the_first_iteration(small_config, tmp_path):
    schedule = Schedule("96 env_steps", improve_steps="1 training_steps")
    settings = {"schedule": schedule, "mini_batch_length": 2, "checkpoint_replay": True}
    settings["whole_replay_buffer_training"] = False
    failed = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    failed.initialize()
    failed._train_iter = _fail
    with pytest.raises(MemoryError):
        failed.train()
    assert RunIndex.load(str(tmp_path / "run")).run["status"] == "failed"
    with small_config(SyncOffPolicyTrainer, **settings).create_trainer() as resumed:
        resumed.initialize()
        done = resumed.counters[Phase.HEATUP].of(EnvironmentSteps).value
        assert resumed.algorithm.exp_replayer.total_steps == done >= 96


class _WithoutPriority(TinyQ):
    def calc_loss(self, training_info):
        return super().calc_loss(training_info)._replace(priority=())


@TRAINERS
@pytest.mark.parametrize("schedule", [None, Schedule("20_000 env_steps", improve_steps="1 training_steps")])
def test_what_a_loss_lacks_is_told_before_anything_is_collected(trainer_class, schedule, small_config):
    for driver in ("Sync", "Async"):
        gin.bind_parameter(f"{driver}OffPolicyDriver.exp_replayer", "prioritized")
    settings = {"whole_replay_buffer_training": False, "mini_batch_length": 2, "mini_batch_size": 8}
    config = small_config(
        trainer_class, algorithm_ctor=_WithoutPriority, initial_collect_steps=20_000, schedule=schedule, **settings
    )
    trainer = config.create_trainer()
    with pytest.raises(ValueError, match=r"needs LossInfo\.priority"):
        trainer.train()
    assert trainer.algorithm.exp_replayer.total_steps == 0


class _Spoilt(TinyQ):
    """Takes a signed error for the priority, or has no finite loss."""

    by = -1.0

    def calc_loss(self, training_info):
        loss_info = super().calc_loss(training_info)
        return loss_info._replace(loss=loss_info.loss * abs(self.by), priority=(loss_info.priority + 0.1) * self.by)


class _NotFinite(_Spoilt):
    by = float("nan")


@TRAINERS
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        (_Spoilt, ValueError, r"LossInfo\.priority has -\d.*: give the absolute error"),
        (_NotFinite, NonFiniteError, "the loss is nan"),
    ],
)
def test_what_is_no_priority_ends_a_run_but_not_before_a_loss_that_is_not_finite(
    trainer_class, algorithm, error, message, iterations, small_config
):
    for driver in ("Sync", "Async"):
        gin.bind_parameter(f"{driver}OffPolicyDriver.exp_replayer", "prioritized")
    settings = {"whole_replay_buffer_training": False, "mini_batch_length": 2, "mini_batch_size": 8}
    settings |= {"initial_collect_steps": 40, "num_iterations": iterations}
    config = small_config(trainer_class, algorithm_ctor=algorithm, **settings)
    with pytest.raises(error, match=message):
        config.create_trainer().train()
