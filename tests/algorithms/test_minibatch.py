"""How minibatches are taken out of sequences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms import minibatch
from alf.data_structures import Experience

# Of one number, of as many bytes as four make up, and of others.
SHAPES = ((), (3,), (4, 4, 1), (2, 2, 3), (5, 3, 3))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.float32, np.bool_])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("known", [True, False])
def test_takes_whole_sequences_of_every_type(dtype, shape, known):
    sequences = np.random.default_rng(0).integers(0, 2 if dtype == np.bool_ else 100, (6, 3, *shape)).astype(dtype)
    indices = tf.TensorSpec([4] if known else [None], tf.int32)
    take = tf.function(minibatch.take, input_signature=[tf.TensorSpec(sequences.shape, dtype), indices])
    taken = take(sequences, tf.constant([5, 0, 3, 3]))
    assert taken.dtype == dtype
    np.testing.assert_array_equal(taken, np.swapaxes(sequences[[5, 0, 3, 3]], 0, 1))
    assert take.get_concrete_function().output_shapes == tf.TensorShape([3, 4 if known else None, *shape])


def test_takes_of_as_many_as_there_are():
    pictures = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4)).astype(np.uint8)
    spec = tf.TensorSpec([None, 3, 4, 4], tf.uint8)
    take = tf.function(minibatch.take, input_signature=[spec, tf.TensorSpec([2], tf.int32)])
    np.testing.assert_array_equal(take(pictures, tf.constant([4, 1])), np.swapaxes(pictures[[4, 1]], 0, 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_cuts_pictures_into_sequences_that_share_a_row(shape):
    pictures = np.random.default_rng(1).integers(0, 256, (2, 4, *shape)).astype(np.uint8)
    last = np.random.default_rng(2).integers(0, 256, (2, *shape)).astype(np.uint8)
    experience = _segments(pictures, last)
    sequences, extended = minibatch.cut(experience, 2)
    assert extended
    rows = np.concatenate([pictures, last[:, None]], 1)
    expected = [rows[b, start : start + 3] for b in range(2) for start in (0, 2)]
    np.testing.assert_array_equal(sequences.observation, expected)


def _segments(pictures: np.ndarray, last: np.ndarray) -> Experience:
    zeros = tf.zeros(pictures.shape[:2])
    step = {"step_type": tf.cast(zeros, tf.int32), "reward": zeros, "discount": zeros}
    step |= {"prev_action": zeros, "env_id": tf.cast(zeros, tf.int32)}
    bootstrap = minibatch.Bootstrap(
        minibatch.ActionTimeStep(**{name: x[:, 0] for name, x in step.items()}, observation=tf.constant(last)), (), ()
    )
    return Experience(
        **step,
        observation=tf.constant(pictures),
        action=zeros,
        rollout_info=(),
        state=(),
        policy_version=tf.zeros(pictures.shape[:2], tf.int64),
        bootstrap=bootstrap,
    )
