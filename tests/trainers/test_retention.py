"""What stays and what goes."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.trainers import saving
from alf.trainers.checkpoint_files import MODELS_DIR, REPLAY_DIR
from alf.trainers.checkpointing import Checkpointer
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.retention import Retention, delete_files, delete_leftovers
from alf.trainers.run_index import Record, RunIndex


def _record(step, *kinds, files=()):
    return Record(f"ckpt-{step}", step, files=list(files), kinds=list(kinds))


def _gone(records, *args, **kwargs):
    return [r.step for r in Retention(*args, **kwargs).superfluous(records)]


@pytest.mark.parametrize(("keep", "gone"), [(None, []), (0, []), (1, [1, 2, 3]), (3, [1]), (4, []), (9, [])])
def test_the_newest_stay(keep, gone):
    assert _gone([_record(step, "periodic") for step in (1, 2, 3, 4)], keep) == gone


def test_best_final_and_milestones_stay():
    records = [_record(1, "best"), _record(2, "milestone", "periodic"), _record(3), _record(4, "final"), _record(5)]
    assert _gone(records, 1) == [3]


def test_the_newest_periodic_one_stays_where_runs_go_on_from_it():
    records = [_record(1, "periodic"), _record(2, "periodic"), _record(3), _record(4, "final")]
    assert _gone(records, 1) == [1, 2, 3]
    assert _gone(records, 1, keep_periodic=True) == [1, 3]


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])])
def test_milestones(every, expected):
    assert [n for n in range(1, 7) if Retention(1, every).is_milestone(n)] == expected


@pytest.mark.parametrize("name", ["keep", "milestones", "replays"])
def test_negative_numbers_are_errors(name):
    with pytest.raises(ValueError, match=rf"Retention\.{name}=-1 must be 0 or more"):
        Retention(**{name: -1})


@given(st.integers(1, 5), st.lists(st.sets(st.sampled_from(["best", "final", "milestone", "periodic"])), max_size=12))
def test_exactly_the_newest_and_the_protected_stay(keep, kinds):
    records = [_record(i, *sorted(k)) for i, k in enumerate(kinds)]
    gone = set(_gone(records, keep))
    for i, record in enumerate(records):
        newest = i >= len(records) - keep
        protected = bool({"best", "final", "milestone"} & set(record.kinds))
        assert (record.step in gone) == (not newest and not protected)


@given(
    st.sampled_from([None, 0, 1, 2, 3]),
    st.booleans(),
    st.lists(st.tuples(st.sets(st.sampled_from(["best", "periodic"])), st.booleans()), max_size=8),
)
def test_replay_memories_of_the_newest_stay(replays, keep_periodic, made):
    replay = [os.path.join(REPLAY_DIR, f"ckpt-{i}", "state.npz") for i in range(len(made))]
    records = [
        _record(i, *sorted(kinds), files=["shared.bin", *([replay[i]] if holds else [])])
        for i, (kinds, holds) in enumerate(made)
    ]
    stay = [i for i, (_, holds) in enumerate(made) if holds][-replays if replays else 0 :]
    periodic = [i for i, (kinds, _) in enumerate(made) if "periodic" in kinds]
    stay += periodic[-1:] if keep_periodic else []
    thinned = Retention(1, keep_periodic=keep_periodic, replays=replays).without_replays(records)
    assert [r.step for r in thinned] == [i for i, (_, holds) in enumerate(made) if holds and i not in stay]
    assert all(r.files == ["shared.bin"] for r in thinned)


def test_all_files_of_a_record_go_and_shared_ones_stay(tmp_path):
    names = ["train/algorithm/ckpt-1.index", "train/models/ckpt-1/saved_model/variables/variables.index", "shared.bin"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "train/models/ckpt-1/unlisted.txt").write_text("x")
    old = _record(1, files=[*names, "gone/already.bin"])
    delete_files(str(tmp_path), old, [_record(2, files=["shared.bin"])])
    left = [os.path.relpath(os.path.join(d, f), tmp_path) for d, _, files in os.walk(tmp_path) for f in files]
    assert left == ["shared.bin"]
    assert not (tmp_path / "train/models/ckpt-1").exists()


def test_what_cannot_be_removed_is_logged(tmp_path):
    (tmp_path / "a.bin").mkdir()
    delete_files(str(tmp_path), _record(1, files=["a.bin"]), [])
    assert (tmp_path / "a.bin").is_dir()


def test_leftovers_go(tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "x").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    delete_leftovers(str(tmp_path), ["half", "file", "not there"])
    assert list(tmp_path.iterdir()) == []


def _checkpointer(root, **kwargs):
    network = tf.Module()
    network.weight = tf.Variable(1.0)
    return Checkpointer(str(root / "train" / "algorithm"), {"network": network}, **kwargs)


def test_a_checkpoint_that_is_being_judged_stays(tmp_path):
    checkpointer = _checkpointer(tmp_path, max_to_keep=1)
    checkpointer.awaited = 1
    for step in (1, 2, 3):
        checkpointer.save(step)
    assert [r.step for r in checkpointer.index.records()] == [1, 3]
    checkpointer.judge(1, 5.0, 2)
    assert checkpointer.index.best().step == 1
    checkpointer.save(4)
    assert [r.step for r in checkpointer.index.records()] == [1, 4]
    assert checkpointer.judge(3, 6.0, 2) is None
    checkpointer.save(5, reward=9.0, reward_episodes=2)
    assert [r.step for r in checkpointer.index.records()] == [5], "what was judged is awaited no more"


def test_an_index_that_could_not_be_written_counts_and_forgets_nothing(tmp_path, monkeypatch):
    checkpointer = _checkpointer(tmp_path, max_to_keep=1)
    checkpointer.save(1)

    def full(self):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunIndex, "save", full)
        with pytest.raises(OSError, match="No space left"):
            checkpointer.save(2)
    assert [r.step for r in checkpointer.index.records()] == [1]
    assert checkpointer.index.saves() == 1


def test_a_run_that_goes_back_and_comes_to_a_step_again_has_no_end_and_another_checkpoint(tmp_path):
    checkpointer = _checkpointer(tmp_path, milestones=4)
    for step, kinds in ((1, ("periodic",)), (2, ("periodic",)), (3, ("final",))):
        checkpointer.save(step, kinds=kinds)
    again = _checkpointer(tmp_path, milestones=4)
    again.restore("1")
    assert again.save(2).kinds == ["milestone", "periodic"]
    assert again.index.final() is None
    assert again.index.saves() == 4
    again.save(5)
    assert [r.step for r in again.index.records() if "milestone" in r.kinds] == [2]


def test_milestones_count_what_was_removed_before_the_run_was_resumed(tmp_path):
    first = _checkpointer(tmp_path, max_to_keep=1, milestones=4)
    for step in (1, 2, 3):
        first.save(step)
    resumed = _checkpointer(tmp_path, max_to_keep=1, milestones=4)
    resumed.restore()
    for step in (4, 5, 6):
        resumed.save(step)
    assert [r.step for r in resumed.index.records()] == [4, 6]


@pytest.mark.parametrize("place", [MODELS_DIR, REPLAY_DIR])
def test_no_directory_of_a_checkpoint_that_goes_is_left(tmp_path, place):
    file = os.path.join(place, "ckpt-1", "part", "state.npz")
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(b"x")
    delete_files(str(tmp_path), _record(1, files=[file]), [])
    assert os.listdir(tmp_path / place) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"checkpoint_interval": 0}, [1, 2, 3]),
        ({"checkpoint_interval": 0, "checkpoint_save_secs": 0}, [3]),
        ({"checkpoint_interval": 2, "exact_resume": True}, [0, 2, 3]),
    ],
)
def test_a_run_saves_by_the_clock_unless_told_otherwise_or_where_nothing_may_follow_it(
    small_config, tmp_path, monkeypatch, settings, expected
):
    assert saving._SAVE_SECS == 600
    monkeypatch.setattr(saving, "_SAVE_SECS", 1e-6)
    small_config(SyncOffPolicyTrainer, num_iterations=3, **settings).create_trainer().train()
    assert [r.step for r in RunIndex.load(str(tmp_path / "run")).records()] == expected
