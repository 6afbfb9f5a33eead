"""Tests of alf.utils.untracked."""

from __future__ import annotations

import alf  # noqa: F401  (sets TensorFlow up)

# isort: split
import tensorflow as tf

from alf.utils.untracked import Untracked


class _Owner(tf.Module):
    def __init__(self, used):
        super().__init__(name="Owner")
        self.own = tf.Variable(1.0)
        self.used = used


def _used():
    return [{"pair": (tf.Variable(2.0), tf.Variable(3.0))}]


def test_what_is_held_is_neither_counted_nor_saved_nor_wrapped(tmp_path):
    used = _used()
    held = _Owner(Untracked(used))
    assert [v.numpy() for v in held.variables] == [1.0]
    assert len(_Owner(_used()).variables) == 3
    assert held.used.value is used
    assert type(held.used.value) is list
    assert type(held.used.value[0]) is dict
    path = tf.train.Checkpoint(owner=held).write(str(tmp_path / "checkpoint"))
    saved = [name for name, _ in tf.train.list_variables(path) if "VARIABLE_VALUE" in name]
    assert saved == ["owner/own/.ATTRIBUTES/VARIABLE_VALUE"]
