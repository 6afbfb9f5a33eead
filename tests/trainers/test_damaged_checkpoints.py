"""Checkpoints that are cut off or have flipped bits, wherever: the right weights, or one sentence; never other weights."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.trainers import checkpointing
from alf.trainers.checkpointing import Checkpointer, CheckpointError, damage_of
from alf.trainers.initializing import load_weights
from alf.trainers.run_index import INDEX_FILE, RunIndex
from tests.awake import awake_secs
from tests.damage import damage

_SECONDS = 20.0


class _Objects(tf.Module):
    """A matrix and a text, as the parts of a checkpoint are."""

    def __init__(self, value):
        super().__init__()
        self.matrix = tf.Variable(np.full((7, 5), value, np.float32))
        self.count = tf.Variable(np.int64(value))

    def optimized_variables(self):
        return []


def _directory(root):
    return os.path.join(root, "train", "algorithm")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a run with checkpoints of step 1 and 2, by their names."""
    root = tmp_path_factory.mktemp("whole")
    objects = _Objects(0)
    checkpointer = Checkpointer(_directory(root), {"algorithm": objects})
    for step in (1, 2):
        objects.matrix.assign(tf.fill((7, 5), float(step)))
        objects.count.assign(step)
        checkpointer.save(step)
    # TensorFlow's own list, which alf does not trust.
    (root / "train" / "algorithm" / "checkpoint").write_text('model_checkpoint_path: "ckpt-2"\n')
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _copy(files, root):
    for name, content in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(content)


def _restored(root, which=None):
    """The step whose weights came back; 0 where a sentence did."""
    objects = _Objects(0)
    checkpointer = Checkpointer(_directory(root), {"algorithm": objects})
    began, said = awake_secs(), ""
    try:
        path = checkpointer.restore(which)
    except CheckpointError as e:
        path, said = None, str(e)
    assert awake_secs() - began < _SECONDS
    if path is None:
        assert str(root) in said
        return 0
    step = int(path.rpartition("-")[2])
    np.testing.assert_array_equal(objects.matrix.numpy(), step)
    assert objects.count.numpy() == step
    return step


NAMES = ("ckpt-1.index", "ckpt-2.index", "ckpt-1.data-00000-of-00001", "ckpt-2.data-00000-of-00001", "checkpoint")


@given(st.data())
def test_one_damaged_file_costs_at_most_its_own_checkpoint(tmp_path_factory, whole, data):
    name = data.draw(st.sampled_from(NAMES))
    key = os.path.join("train", "algorithm", name)
    root = tmp_path_factory.mktemp("run")
    _copy({**whole, key: data.draw(damage(whole[key]))}, root)
    found = _restored(root)
    assert found == 2 or (found == 1 and name.startswith("ckpt-2."))
    for step in (1, 2):
        assert _restored(root, str(step)) in ((0, step) if name.startswith(f"ckpt-{step}.") else (step,))


@given(st.data())
def test_all_files_damaged(tmp_path_factory, whole, data):
    root = tmp_path_factory.mktemp("run")
    _copy({name: data.draw(damage(content)) for name, content in whole.items()}, root)
    # What cannot be read at all is a new run, for which nothing is restored.
    if (tmp := Checkpointer(_directory(root), {})).index.records():
        assert _restored(root) in (0, 1, 2)
    else:
        assert tmp.restore() is None
    with contextlib.suppress(CheckpointError):
        load_weights(_Objects(0), str(root))


@given(st.data())
def test_a_damaged_run_index_costs_no_checkpoint(tmp_path_factory, whole, data):
    root = tmp_path_factory.mktemp("run")
    _copy({**whole, INDEX_FILE: data.draw(damage(whole[INDEX_FILE]))}, root)
    assert _restored(root) in (1, 2)


@pytest.mark.slow
def test_every_bit_of_what_no_checksum_covers(tmp_path, whole):
    """The end of an index file says where its parts are and how long, without a checksum."""
    key = os.path.join("train", "algorithm", "ckpt-2.index")
    _copy(whole, tmp_path)
    content = whole[key]
    path = str(tmp_path / "train" / "algorithm" / "ckpt-2")
    for bit in range(8 * (len(content) - 48), 8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / key).write_bytes(flipped)
        damage_of(path)
    for end in range(len(content)):
        (tmp_path / key).write_bytes(content[:end])
        assert damage_of(path) is not None


def _files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in pathlib.Path(root).rglob("*") if p.is_file()}


def test_a_checkpoint_stays_until_the_one_that_replaces_it_is_whole(tmp_path):
    """Saving the same step again, with more in the replay memory, fails half-way: what was there can be gone on from."""
    objects, held = _Objects(1), ["old"]

    def save_replay(directory):
        os.makedirs(directory)
        pathlib.Path(directory, "part").write_text(held[0])

    def fail(path):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    checkpointer = Checkpointer(_directory(tmp_path), {"algorithm": objects}, replay_saver=save_replay)
    checkpointer.save(0)
    before = _files(tmp_path)
    objects.count.assign(2)
    held[0] = "new"
    checkpointer.outdate()
    write = checkpointer._checkpoint.write
    for writer in (fail, lambda path: fail(write(path))):
        checkpointer._checkpoint.write = writer
        with pytest.raises(OSError, match="No space"):
            checkpointer.save(0)
        assert {name: text for name, text in _files(tmp_path).items() if "partial" not in name} == before
        assert Checkpointer(_directory(tmp_path), {"algorithm": _Objects(0)}).restore().endswith("ckpt-0")
    checkpointer._checkpoint.write = write
    record = checkpointer.save(0)
    assert sorted(_files(tmp_path)) == sorted([*record.files, INDEX_FILE]), "nothing else is left"
    again = _Objects(0)
    Checkpointer(_directory(tmp_path), {"algorithm": again}).restore()
    assert int(again.count) == 2
    assert (tmp_path / "train" / "replay" / "ckpt-0" / "part").read_text() == "new"


def test_a_memory_that_its_checkpoint_has_no_more_is_removed(tmp_path):
    """A kill came between the index, without its files, and their removal."""

    def save_replay(directory):
        os.makedirs(directory)
        pathlib.Path(directory, "part").write_text("steps")

    checkpointer = Checkpointer(_directory(tmp_path), {"algorithm": _Objects(1)}, replay_saver=save_replay)
    for step in (1, 2):
        with pytest.MonkeyPatch.context() as killed:
            killed.setattr(checkpointing, "delete_files", lambda *args: None)
            checkpointer.save(step)
    memories = tmp_path / "train" / "replay"
    assert sorted(os.listdir(memories)) == ["ckpt-1", "ckpt-2"]
    Checkpointer(_directory(tmp_path), {"algorithm": _Objects(1)}, replay_saver=save_replay).save(3)
    assert os.listdir(memories) == ["ckpt-3"]
    assert [r.step for r in RunIndex.load(str(tmp_path)).records()] == [1, 2, 3]
