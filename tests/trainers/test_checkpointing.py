"""Checkpoints: kept, damaged, of another kind."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from alf.metrics.metrics import standard_metrics
from alf.trainers.checkpointing import Checkpointer, CheckpointError, Counters, MetricsState


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


def test_missing_state_file_does_not_matter(tmp_path):
    _save(tmp_path, [1, 2])
    os.remove(tmp_path / "checkpoint")
    assert _checkpointer(tmp_path, _Net()).restore().endswith("ckpt-2")


def test_all_damaged_is_an_error(tmp_path):
    _save(tmp_path, [1])
    _truncate(tmp_path / "ckpt-1.index")
    with pytest.raises(CheckpointError, match="can be read"):
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
