"""Checkpoints: kept, damaged, of another kind."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from alf.metrics.metrics import standard_metrics
from alf.trainers.checkpoint_files import complete_checkpoints
from alf.trainers.checkpointing import Checkpointer, CheckpointError, Counters, MetricsState
from alf.trainers.run_index import RunIndex


class _Net(tf.Module):
    def __init__(self, size=3):
        super().__init__()
        self.weights = tf.Variable(tf.zeros([size]))


def _checkpointer(path, net, **kwargs):
    return Checkpointer(str(path), {"net": net}, **{"max_to_keep": 5, **kwargs})


def _save(path, values, **kwargs):
    net = _Net()
    checkpointer = _checkpointer(path, net, **kwargs)
    for number in values:
        net.weights.assign([float(number)] * 3)
        checkpointer.save(number)
    return checkpointer


def test_nothing_to_save_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"There is nothing to save in .*new: give the checkpointer its objects"):
        Checkpointer(str(tmp_path / "new"), {}).save(1)
    assert not (tmp_path / "new").exists()


def test_directories_are_made_at_the_first_save(tmp_path):
    folder = tmp_path / "a" / "b" / "train" / "algorithm"
    checkpointer = _checkpointer(folder, _Net())
    assert checkpointer.restore() is None
    assert not (tmp_path / "a").exists()
    checkpointer.save(1)
    assert (folder / "ckpt-1.index").exists()
    assert (tmp_path / "a" / "b" / "training_status.json").exists()


def test_newest_by_number_not_by_name(tmp_path):
    _save(tmp_path, [9, 10])
    net = _Net()
    assert _checkpointer(tmp_path, net).restore().endswith("ckpt-10")
    assert net.weights.numpy().tolist() == [10.0] * 3


def test_nothing_there(tmp_path):
    assert _checkpointer(tmp_path / "none", _Net()).restore() is None


def test_keeps_the_newest(tmp_path):
    checkpointer = _save(tmp_path, [1, 2, 3], max_to_keep=2)
    assert [os.path.basename(p) for p in checkpointer.available()] == ["ckpt-2", "ckpt-3"]


def _truncate(path):
    with open(path, "r+b") as f:
        f.truncate(os.path.getsize(path) // 2)


def _flip(path):
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        data[: len(data) // 2] = bytes(255 - b for b in data[: len(data) // 2])
        f.seek(0)
        f.write(data)


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", [_truncate, _flip, lambda p: os.truncate(p, 0)], ids=["half", "flipped", "empty"])
def test_damaged_newest_falls_back(tmp_path, part, damage):
    _save(tmp_path, [1, 2])
    damage(tmp_path / f"ckpt-2.{part}")
    net = _Net()
    assert _checkpointer(tmp_path, net).restore().endswith("ckpt-1")
    assert net.weights.numpy().tolist() == [1.0] * 3


def test_missing_data_file_falls_back(tmp_path):
    _save(tmp_path, [1, 2])
    os.remove(tmp_path / "ckpt-2.data-00000-of-00001")
    assert _checkpointer(tmp_path, _Net()).restore().endswith("ckpt-1")


def test_a_missing_index_is_made_up(tmp_path):
    _save(tmp_path, [1, 2])
    os.remove(tmp_path / "training_status.json")
    assert _checkpointer(tmp_path, _Net()).restore().endswith("ckpt-2")


def test_all_damaged_is_an_error(tmp_path):
    _save(tmp_path, [1])
    _truncate(tmp_path / "ckpt-1.index")
    with pytest.raises(CheckpointError, match="can be read: train with --force to start anew"):
        _checkpointer(tmp_path, _Net()).restore()


def test_another_kind_of_run_is_an_error_not_a_fallback(tmp_path):
    _save(tmp_path, [1, 2])
    with pytest.raises(CheckpointError, match="does not fit this run"):
        _checkpointer(tmp_path, _Net(size=4)).restore()
    more = tf.Module()
    more.weights, more.extra = tf.Variable(tf.zeros([3])), tf.Variable(1.0)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        _checkpointer(tmp_path, more).restore()


def test_by_name(tmp_path):
    _save(tmp_path, [1, 2])
    net = _Net()
    assert _checkpointer(tmp_path, net).restore("ckpt-1").endswith("ckpt-1")
    assert net.weights.numpy()[0] == 1.0
    with pytest.raises(CheckpointError, match=r"no checkpoint 'ckpt-7'.*ckpt-1, ckpt-2"):
        _checkpointer(tmp_path, _Net()).restore("ckpt-7")


def test_counters_and_metrics_come_back(tmp_path):
    counters, state, metrics = Counters(), MetricsState(), standard_metrics(1, 2)
    state.attach(metrics)
    segment = SimpleNamespace(
        step_type=np.array([[0, 0]], np.int32),
        next_step_type=np.array([[2, 1]], np.int32),
        reward=np.array([[3.0, 1.0]], np.float32),
    )
    for metric in metrics:
        metric(segment)
    counters.iteration.assign(4)
    counters.env_step.assign(2**40)
    Checkpointer(str(tmp_path), {"counters": counters, "metrics": state}, 2).save(4)

    counters, state, metrics = Counters(), MetricsState(), standard_metrics(1, 2)
    Checkpointer(str(tmp_path), {"counters": counters, "metrics": state}, 2).restore()
    state.attach(metrics)
    assert (counters.iterations, counters.env_steps) == (4, 2**40)
    assert [m.result() for m in metrics] == [1, 2, 3.0, 1.0]
    assert metrics[2].longest_open() == 1.0


# ---- the run index ----


def _tree(path):
    """Every file below a directory, with its content."""
    return {str(p.relative_to(path)): p.read_bytes() for p in pathlib.Path(path).rglob("*") if p.is_file()}


def _run(path, **kwargs):
    """A checkpointer of a run in `path`, and its weights."""
    net = _Net()
    return Checkpointer(str(path / "train" / "algorithm"), {"net": net}, **kwargs), net


def test_records_tell_all_about_a_checkpoint(tmp_path):
    counters = Counters()
    counters.iteration.assign(3)
    counters.env_step.assign(96)
    checkpointer = Checkpointer(str(tmp_path / "deep" / "train" / "algorithm"), {"counters": counters})
    record = checkpointer.save(12, reward=1.25, reward_episodes=5)
    (loaded,) = RunIndex.load(str(tmp_path / "deep")).records()
    assert loaded == record.with_kinds(add=["best"])
    assert (loaded.name, loaded.step, loaded.env_steps, loaded.iterations) == ("ckpt-12", 12, 96, 3)
    assert (loaded.reward, loaded.reward_episodes, loaded.kinds) == (1.25, 5, ["best", "periodic"])
    assert loaded.files == [f"train/algorithm/ckpt-12.{x}" for x in ("data-00000-of-00001", "index")]
    assert all((tmp_path / "deep" / f).is_file() for f in loaded.files)


def test_a_step_saved_twice_is_one_record_and_one_set_of_files(tmp_path):
    checkpointer, net = _run(tmp_path)
    checkpointer.save(1)
    before = _tree(tmp_path / "train")
    net.weights.assign([9.0] * 3)
    checkpointer.save(1, kinds=("final",), reward=2.0)
    (record,) = RunIndex.load(str(tmp_path)).records()
    assert record.kinds == ["best", "final", "periodic"]
    assert _tree(tmp_path / "train") == before, "what is recorded is not written over"


def test_best_final_latest_and_steps_are_restored_by_name(tmp_path):
    checkpointer, net = _run(tmp_path, max_to_keep=2)
    for step, reward in ((1, 0.0), (2, 9.0), (3, 4.0), (4, None)):
        net.weights.assign([float(step)] * 3)
        checkpointer.save(step, reward=reward, kinds=("final",) if step == 4 else ("periodic",))
    assert complete_checkpoints(str(tmp_path)) == [2, 3, 4]
    for which, step in (("best", 2), ("final", 4), ("latest", 4), ("3", 3), ("ckpt-3", 3)):
        other, weights = _run(tmp_path)
        assert other.restore(which).endswith(f"ckpt-{step}")
        assert weights.weights.numpy()[0] == step
    folder = tmp_path / "train" / "algorithm"
    for path in (tmp_path, folder, folder / "ckpt-4", folder / "ckpt-4.index", folder / "ckpt-4.data-00000-of-00001"):
        other, weights = _run(tmp_path / "elsewhere")
        assert other.restore(str(path)).endswith("ckpt-4")
        assert weights.weights.numpy()[0] == 4


def test_restoring_writes_nothing(tmp_path):
    checkpointer, _ = _run(tmp_path)
    for step in (1, 2):
        checkpointer.save(step)
    _truncate(tmp_path / "train" / "algorithm" / "ckpt-2.index")
    (tmp_path / "training_status.json").write_text("{")
    before = _tree(tmp_path)
    assert _run(tmp_path)[0].restore().endswith("ckpt-1")
    assert _tree(tmp_path) == before


def test_a_judged_checkpoint_becomes_the_best(tmp_path):
    checkpointer, _ = _run(tmp_path)
    for step in (1, 2):
        checkpointer.save(step)
    assert checkpointer.judge(1, 3.0, 7).reward_episodes == 7
    assert checkpointer.judge(5, 9.0, 7) is None
    assert checkpointer.judge(2, float("nan"), 7).reward is None
    assert RunIndex.load(str(tmp_path)).best().step == 1


def test_milestones_are_counted_over_resumed_runs(tmp_path):
    for steps in ((1, 2, 3), (4, 5, 6, 7)):
        checkpointer, _ = _run(tmp_path, max_to_keep=1, milestones=3)
        checkpointer.restore()
        for step in steps:
            checkpointer.save(step)
    assert complete_checkpoints(str(tmp_path)) == [3, 6, 7]
    assert RunIndex.load(str(tmp_path)).records()[0].kinds == ["milestone", "periodic"]


@pytest.mark.parametrize("keep", [None, 0])
def test_none_and_zero_keep_all(tmp_path, keep):
    checkpointer, _ = _run(tmp_path, max_to_keep=keep)
    for step in range(1, 5):
        checkpointer.save(step)
    assert complete_checkpoints(str(tmp_path)) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="must be 0 or more"):
        _run(tmp_path, max_to_keep=-1)


def test_exactly_n_stay_those_of_earlier_runs_counted(tmp_path):
    for steps in ((8, 9, 10), (11, 12)):
        checkpointer, _ = _run(tmp_path, max_to_keep=2)
        for step in steps:
            checkpointer.save(step)
            assert len(complete_checkpoints(str(tmp_path))) <= 2
    assert complete_checkpoints(str(tmp_path)) == [11, 12]


def test_what_crashed_saves_left_is_ignored_and_removed(tmp_path):
    checkpointer, _ = _run(tmp_path)
    checkpointer.save(1)
    index = (tmp_path / "training_status.json").read_bytes()
    checkpointer.save(2)
    (tmp_path / "training_status.json").write_bytes(index)
    (tmp_path / "train" / "algorithm" / "ckpt-3_temp").mkdir()
    other, _ = _run(tmp_path)
    assert other.restore().endswith("ckpt-1")
    other.save(4)
    assert sorted(
        p.name for p in (tmp_path / "train" / "algorithm").iterdir() if p.suffix == ".index" or p.is_dir()
    ) == [
        "ckpt-1.index",
        "ckpt-4.index",
    ]


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path):
    checkpointer, net = _run(tmp_path)
    for step in (1, 2):
        checkpointer.save(step)
    _truncate(tmp_path / "train" / "algorithm" / "ckpt-2.data-00000-of-00001")
    other, net = _run(tmp_path)
    assert other.restore().endswith("ckpt-1")
    net.weights.assign([5.0] * 3)
    other.save(2)
    again, net = _run(tmp_path)
    assert again.restore().endswith("ckpt-2")
    assert net.weights.numpy()[0] == 5.0


# ---- exports ----


def _exporter(fail=False):
    def export(directory):
        os.makedirs(os.path.join(directory, "saved_model"))
        pathlib.Path(directory, "saved_model", "m.pb").write_bytes(b"m")
        if fail:
            raise ArithmeticError("does not fit the policy")
        return ["saved_model/m.pb"]

    return export


def test_exported_models_belong_to_the_checkpoint_and_go_with_it(tmp_path):
    checkpointer, _ = _run(tmp_path, max_to_keep=1, exporter=_exporter())
    checkpointer.save(1)
    model = "train/models/ckpt-1/saved_model/m.pb"
    assert model in RunIndex.load(str(tmp_path)).latest().files
    checkpointer.save(2)
    assert not (tmp_path / "train/models/ckpt-1").exists()
    assert (tmp_path / "train/models/ckpt-2/saved_model/m.pb").is_file()


def test_a_failed_export_leaves_no_file_and_costs_no_checkpoint(tmp_path):
    checkpointer, _ = _run(tmp_path, exporter=_exporter(fail=True))
    record = checkpointer.save(1)
    assert not (tmp_path / "train" / "models" / "ckpt-1").exists()
    assert len(record.files) == 2
    assert _run(tmp_path)[0].restore().endswith("ckpt-1")


def test_an_export_that_does_not_come_to_its_end_costs_no_checkpoint(tmp_path):
    def export(directory):
        os.makedirs(f"{directory}.export-partial")
        raise _Crash

    with pytest.raises(_Crash):
        _run(tmp_path, exporter=export)[0].save(1)
    checkpointer, _ = _run(tmp_path, exporter=_exporter())
    assert checkpointer.restore().endswith("ckpt-1")
    checkpointer.save(2)
    assert os.listdir(tmp_path / "train" / "models") == ["ckpt-2"]
    assert [r.name for r in checkpointer.index.records()] == ["ckpt-1", "ckpt-2"]


# ---- crashes and faults at every instant of saving ----


class _Crash(BaseException):
    """The process ends here: no handler of the code under test may know it."""


_CALLS = (
    ("os", "fsync"),
    ("os", "replace"),
    ("os", "makedirs"),
    ("os", "open"),
    ("os", "remove"),
    ("shutil", "rmtree"),
)


@contextlib.contextmanager
def _fault_at(number, make_error, after):
    """Raises at the `number`-th call of the functions that saving uses, before or after the call does its work."""
    import shutil

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name in _CALLS:
            target = {"os": os, "shutil": shutil}[module]
            original = getattr(target, name)

            def call(*args, _original=original, **kwargs):
                seen.append(1)
                mine = len(seen) == number
                if mine and not after:
                    raise make_error()
                result = _original(*args, **kwargs)
                if mine:
                    raise make_error()
                return result

            patch.setattr(target, name, call)
        write = tf.train.Checkpoint.write

        def torn(self, path, *args, **kwargs):
            seen.append(1)
            mine = len(seen) == number
            if mine and not after:
                pathlib.Path(f"{path}.data-00000-of-00001").write_bytes(b"half of it")
                raise make_error()
            result = write(self, path, *args, **kwargs)
            if mine:
                raise make_error()
            return result

        patch.setattr(tf.train.Checkpoint, "write", torn)
        yield seen


def _two_saves(path):
    checkpointer, net = _run(path, max_to_keep=1, exporter=_exporter())
    checkpointer.restore()
    for step in (1, 2):
        net.weights.assign([float(step)] * 3)
        checkpointer.save(step)
        yield step


def _assert_usable(path, saved):
    """The newest checkpoint is that of the last save that came to its end, or of the one that did not; and it is whole."""
    checkpointer, net = _run(path)
    found = checkpointer.restore()
    if found is None:
        assert saved == 0
        return
    step = int(found.rpartition("-")[2])
    assert step in (saved, saved + 1)
    assert net.weights.numpy().tolist() == [float(step)] * 3
    for record in RunIndex.load(str(path)).records():
        if record.step == step:
            assert all((path / f).is_file() for f in record.files)


def _count_calls(path):
    with _fault_at(-1, _Crash, False) as seen:
        for _ in _two_saves(path):
            pass
    return len(seen)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_instant_leaves_a_usable_run(tmp_path, after):
    calls = _count_calls(tmp_path / "count")
    assert calls > 15
    for number in range(1, calls + 1):
        path = tmp_path / f"{number}"
        saved = 0
        with pytest.raises(_Crash), _fault_at(number, _Crash, after):
            for step in _two_saves(path):
                saved = step
        _assert_usable(path, saved)
        # The run goes on from there, and leaves nothing behind that belongs to no checkpoint.
        checkpointer, _ = _run(path, max_to_keep=1, exporter=_exporter())
        checkpointer.restore()
        checkpointer.save(4)
        assert complete_checkpoints(str(path)) == [4]
        assert os.listdir(path / "train" / "models") == ["ckpt-4"]
        assert len(os.listdir(path / "train" / "algorithm")) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_failing_file_system_is_an_error_and_the_next_save_is_whole(tmp_path, code):
    def error():
        return OSError(code, os.strerror(code))

    calls = _count_calls(tmp_path / "count")
    for number in range(1, calls + 1, 3):
        path = tmp_path / f"{number}"
        checkpointer, net = _run(path, max_to_keep=1, exporter=_exporter())
        with _fault_at(number, error, False):
            for step in (1, 2, 3):
                net.weights.assign([float(step)] * 3)
                with contextlib.suppress(OSError):
                    checkpointer.save(step)
        net.weights.assign([4.0] * 3)
        checkpointer.save(4)
        _assert_usable(path, 4)
        assert complete_checkpoints(str(path)) == [4]


def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path):
    """The operating system itself refuses to let files grow."""
    checkpointer, net = _run(tmp_path)
    checkpointer.save(1)
    net.big = tf.Variable(tf.zeros([100_000]))
    big = Checkpointer(str(tmp_path / "train" / "algorithm"), {"net": net})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(Exception, match=r"(?i)large|limit|fail|write"):
            big.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [r.name for r in RunIndex.load(str(tmp_path)).records()] == ["ckpt-1"]
    assert _run(tmp_path)[0].restore().endswith("ckpt-1")
    big.save(3)
    assert complete_checkpoints(str(tmp_path)) == [1, 3]


def test_a_file_where_a_directory_should_be(tmp_path):
    (tmp_path / "train").write_text("in the way")
    checkpointer, _ = _run(tmp_path)
    assert checkpointer.restore() is None
    with pytest.raises(OSError, match="train"):
        checkpointer.save(1)
    os.remove(tmp_path / "train")
    checkpointer.save(1)
    assert checkpointer.restore().endswith("ckpt-1")
