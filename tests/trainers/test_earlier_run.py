"""A run that was moved, copied or is in the way of a new one."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from alf.trainers import earlier_run
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.trainers.run_lock import LOCK_FILE, RunLock, RunLockedError

pytestmark = pytest.mark.slow


def _train(small_config, root_dir, iterations, **kwargs):
    settings = {"num_updates_per_train_step": 1, "checkpoint_interval": 1, **kwargs}
    trainer = small_config(
        SyncOffPolicyTrainer, root_dir=str(root_dir), num_iterations=iterations, **settings
    ).create_trainer()
    trainer.train()
    return trainer


def test_a_moved_and_a_copied_run_go_on(small_config, tmp_path):
    """Both in places that did not exist, several folders deep."""
    exact = {"exact_resume": True}
    first = tmp_path / "not" / "there" / "yet"
    _train(small_config, first, 2, **exact)
    copied, moved = tmp_path / "a" / "copy", tmp_path / "another" / "deep" / "place"
    shutil.copytree(first, copied)
    moved.parent.mkdir(parents=True)
    shutil.move(first, moved)
    assert not first.exists()
    runs = [_train(small_config, place, 4, **exact) for place in (moved, copied)]
    assert not first.exists(), "nothing is written to where it was"
    for run, place in zip(runs, (moved, copied), strict=True):
        assert run.counters.iterations == 4
        assert run.counters.env_steps == 4 * 16
        index = RunIndex.load(str(place))
        assert [r.step for r in index.records()] == [0, 1, 2, 3, 4]
        assert all((place / file).exists() for record in index.records() for file in record.files)
    for a, b in zip(*(run.algorithm.variables for run in runs), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def _used(path):
    (path / "train" / "algorithm").mkdir(parents=True)
    (path / "configured.gin").write_text("of the run")
    (path / "mine.gin").write_text("of the user")
    RunIndex(str(path)).save()


def test_a_run_is_set_aside_under_the_next_number(tmp_path, logged):
    root = tmp_path / "run"
    for number in (1, 2):
        if not root.exists():
            root.mkdir()
        shutil.rmtree(root)
        _used(root)
        before = sorted(os.listdir(root))
        assert earlier_run.set_aside(f"{root}{os.sep}") == f"{root}-{number}"
        assert sorted(os.listdir(f"{root}-{number}")) == before
        assert os.listdir(root) == ["mine.gin"]
        assert logged[-1] == f"The run that was in {root} is in {root}-{number} now."


def test_a_link_stays_and_the_run_that_it_leads_to_is_set_aside(tmp_path):
    run, link = tmp_path / "disk" / "run", tmp_path / "link"
    _used(run)
    link.symlink_to(run)
    assert earlier_run.set_aside(str(link)) == f"{run}-1"
    assert os.listdir(link) == ["mine.gin"]
    assert sorted(os.listdir(tmp_path)) == ["disk", "link"]
    assert os.path.samefile(link, run)


def test_where_there_is_no_run_nothing_is_done(tmp_path, logged):
    assert earlier_run.set_aside(str(tmp_path / "none")) is None
    (tmp_path / "mine.gin").write_text("")
    assert earlier_run.set_aside(str(tmp_path)) is None
    assert os.listdir(tmp_path) == ["mine.gin"]
    assert not logged


def test_a_live_run_stays(tmp_path):
    _used(tmp_path / "run")
    with RunLock(str(tmp_path / "run")):
        with pytest.raises(RunLockedError):
            earlier_run.set_aside(str(tmp_path / "run"))
        assert (tmp_path / "run" / LOCK_FILE).exists()
    assert os.listdir(tmp_path) == ["run"]


def test_what_can_be_resumed(small_config, tmp_path):
    assert not earlier_run.can_be_resumed(str(tmp_path / "run"))
    _used(tmp_path / "run")
    assert not earlier_run.can_be_resumed(str(tmp_path / "run"))
    _train(small_config, tmp_path / "run", 1)
    assert earlier_run.can_be_resumed(str(tmp_path / "run"))
