"""Traced functions that are called without checks."""

from __future__ import annotations

import collections
import logging

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.normalization import ObservationNormalizer
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.suite_unittest import ValueUnittestEnv
from alf.export.graphs import Weights
from alf.replay.prioritized_replay import _Priorities
from alf.replay.stream_index import StreamIndex
from alf.utils.tracing import Concrete, Traced
from tests.algorithms.networks import ppo

Pair = collections.namedtuple("Pair", ["left", "right"])


def _pair(rows: int, dtype: tf.DType = tf.float32) -> Pair:
    return Pair(tf.ones([rows, 2], dtype), {"b": tf.zeros([rows], dtype), "a": tf.fill([rows], tf.cast(3, dtype))})


def test_structures_go_in_and_come_out() -> None:
    traced = Traced(lambda pair, factor: Pair(pair.left * factor, (pair.right["a"], pair.right["b"] + 1.0)))
    out = traced(_pair(3), tf.constant(5.0))
    assert out.left.numpy().tolist() == [[5.0, 5.0]] * 3
    assert [x.numpy().tolist() for x in out.right] == [[3.0] * 3, [1.0] * 3]


def test_it_traces_once_for_each_shape_and_type() -> None:
    tracings = []

    def total(pair: Pair) -> tf.Tensor:
        tracings.append(pair.left.shape[0])
        return tf.reduce_sum(pair.left)

    traced = Traced(total)
    found = [float(traced(_pair(rows))) for rows in (2, 3, 2, 3)]
    assert found == [4.0, 6.0, 4.0, 6.0]
    assert tracings == [2, 3]
    assert int(traced(_pair(2, tf.int32))) == 4
    assert tracings == [2, 3, 2]


def test_variables_are_those_of_the_present() -> None:
    weight = tf.Variable(2.0)
    traced = Traced(lambda x: x * weight)
    assert float(traced(tf.constant(3.0))) == 6.0
    weight.assign(5.0)
    assert float(traced(tf.constant(3.0))) == 15.0


def test_eager_mode_traces_nothing() -> None:
    seen = []
    traced = Traced(lambda x: seen.append(tf.executing_eagerly()) or x)
    tf.config.run_functions_eagerly(True)
    try:
        traced(tf.constant(1.0))
    finally:
        tf.config.run_functions_eagerly(False)
    traced(tf.constant(1.0))
    assert seen == [True, False]


def test_what_fails_inside_says_so() -> None:
    def checked(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_positive(x, "x must be positive")]):
            return tf.identity(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="x must be positive"):
        Concrete(checked, tf.TensorSpec([], tf.float32))(tf.constant(-1.0))


def _play() -> None:
    env = ValueUnittestEnv(2, 3)
    PolicyDriver(env, ppo(env, layers=(2,))).predict(100)


def _read_weights() -> None:
    Weights([tf.Variable(1.0)]).read()


def _normalize() -> None:
    normalizer = ObservationNormalizer(tf.TensorSpec([1], tf.float32))
    normalizer.publish()


def _prioritize() -> None:
    index = StreamIndex(1, 4)
    index.append(np.array([0]), 3, np.array([True]))
    _Priorities(1, 4).follow(index, 2)


@pytest.mark.parametrize("use", [_play, _read_weights, _normalize, _prioritize])
def test_many_runs_in_a_process_are_not_warned_of_tracing(use, caplog: pytest.LogCaptureFixture) -> None:
    """TensorFlow warns from the fifth tracing of the same code on."""
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        for _ in range(6):
            use()
    assert "retracing" not in caplog.text
