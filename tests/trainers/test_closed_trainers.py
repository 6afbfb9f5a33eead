"""A trainer that is closed: what is asked of it still, and what that leaves behind."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.trainers.run_lock import holder_of
from alf.trainers.schedule import Schedule
from alf.trainers.stopping import TimeLimit

REFUSED = r"^This trainer is closed, and so are its environments: make another one of the same configuration"


def _interrupt(trainer, at_iteration=2):
    trainer.initialize()
    collected = []

    def observe(exp):
        collected.append(exp)
        if len(collected) == at_iteration:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer.algorithm.add_experience_observer(observe)


def _is_held(root_dir):
    return holder_of(root_dir) is not None or any(t.name == "alf-run-lock" for t in threading.enumerate())


@pytest.fixture(params=["interrupted", "finished", "closed"])
def closed(request, small_config):
    """A trainer that has ended in this way, with 2 iterations."""
    config = small_config(SyncOffPolicyTrainer, num_iterations=2 if request.param == "finished" else 9)
    trainer = config.create_trainer()
    if request.param == "interrupted":
        _interrupt(trainer)
    if request.param == "closed":
        trainer.train_and_act("2 training_steps")
        trainer.save()
        trainer.close()
    else:
        trainer.train()
    assert trainer.counters.iterations == 2
    return trainer


def test_what_it_refuses_leaves_its_run_to_another_trainer(closed, small_config):
    root_dir = closed._root_dir
    before = RunIndex.load(root_dir).run
    for call in (closed.act, closed.heatup, closed.train_and_act):
        for evaluated in (False, True):
            if evaluated:
                closed.evaluate("1 episodes")
                assert _is_held(root_dir)
            with pytest.raises(RuntimeError, match=REFUSED):
                call("8 env_steps")
            assert not _is_held(root_dir)
    assert RunIndex.load(root_dir).run == before
    with small_config(SyncOffPolicyTrainer).create_trainer() as another:
        another.train_and_act("1 training_steps")
        assert another.counters.iterations == 3
    assert not _is_held(root_dir)


@pytest.mark.parametrize("call", ["improve", "train"])
def test_a_run_that_has_not_come_to_its_end_stays_as_it_is(closed, call, small_config):
    closed.set_schedule_params(Schedule(improve_steps="5 training_steps"))
    root_dir = closed._root_dir
    before, records = RunIndex.load(root_dir).run, RunIndex.load(root_dir).records()
    with pytest.raises(RuntimeError, match=REFUSED):
        getattr(closed, call)()
    assert not _is_held(root_dir)
    assert (RunIndex.load(root_dir).run, RunIndex.load(root_dir).records()) == (before, records)
    small_config(SyncOffPolicyTrainer).create_trainer().train()
    assert RunIndex.load(root_dir).run["status"] == "finished"


@pytest.mark.parametrize("call", ["improve", "train"])
def test_more_of_the_same_is_refused(call, small_config):
    schedule = Schedule(improve_steps="1 training_steps", improve_is="additional")
    trainer = small_config(SyncOffPolicyTrainer, schedule=schedule).create_trainer()
    trainer.train()
    before = RunIndex.load(trainer._root_dir).run
    with pytest.raises(RuntimeError, match=REFUSED):
        getattr(trainer, call)()
    assert not _is_held(trainer._root_dir)
    assert RunIndex.load(trainer._root_dir).run == before


@pytest.mark.parametrize("settings", [{}, {"stop_conditions": [TimeLimit(1e-9)], "num_iterations": 9}])
def test_a_finished_run_is_trained_again_in_vain(small_config, settings):
    trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    trainer.train()
    before, iterations = RunIndex.load(trainer._root_dir).run, trainer.counters.iterations
    trainer.train()
    assert not _is_held(trainer._root_dir)
    after = RunIndex.load(trainer._root_dir).run
    assert {**after, "updated": None} == {**before, "updated": None}
    assert trainer.counters.iterations == iterations


def test_an_error_after_the_end_of_a_loop_is_none_of_the_run(small_config):
    trainer = small_config(SyncOffPolicyTrainer).create_trainer()
    with pytest.raises(RuntimeError, match=REFUSED), trainer:
        trainer.train_and_act("1 training_steps")
        trainer.close()
        trainer.train_and_act("1 training_steps")
    assert RunIndex.load(trainer._root_dir).run["status"] == "finished"
    assert not _is_held(trainer._root_dir)
