"""Calls of Python from a traced function: what comes back is what was given, whatever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.drivers.host_calls import host_call

SHAPES: list[tuple[int, ...]] = [(), (1,), (3, 5), (0, 4), (7,)]
DTYPES = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64, np.uint16, np.bool_]


def _bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Any bits, so infinities and numbers that are none as well."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


def test_every_kind_of_array_comes_back_as_it_was() -> None:
    rng = np.random.default_rng(0)
    arrays = [_bits(rng, shape, dtype) for dtype in DTYPES for shape in SHAPES]
    arrays[4:4] = [np.asarray([b"a", b"longer"], object), rng.normal(size=(3, 40_000)).astype(np.float32)]
    # Neither in the order of C nor in one piece.
    arrays.append(np.asarray(rng.normal(size=(6, 4)), np.float32).T[::2])
    specs = [tf.TensorSpec(x.shape, tf.string if x.dtype == object else x.dtype) for x in arrays]
    given = tf.function(lambda: host_call(lambda: arrays, [], specs), autograph=False)()
    for array, tensor, spec in zip(arrays, given, specs, strict=True):
        assert tensor.dtype == spec.dtype
        assert tensor.shape == array.shape
        assert tensor.numpy().tobytes() == np.ascontiguousarray(array).tobytes() or tensor.dtype == tf.string
    assert given[4].numpy().tolist() == [b"a", b"longer"]


def test_what_came_back_stays_when_the_arrays_are_used_again() -> None:
    array = np.zeros((4, 3), np.float32)
    spec = tf.TensorSpec(array.shape, tf.float32)

    def count(_: np.ndarray) -> list[np.ndarray]:
        array[:] += 1
        return [array]

    def loop() -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, 5, element_shape=array.shape)
        for t in range(5):
            rows = rows.write(t, host_call(count, [tf.constant(t)], [spec])[0])
        return rows.stack()

    found = tf.function(loop, autograph=False)().numpy()
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(1, 6)[:, None, None], (5, 4, 3)))


@pytest.mark.parametrize("wrong", [np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(3, np.float32)])
def test_an_array_that_is_not_like_its_spec_is_named(wrong: np.ndarray) -> None:
    spec = tf.TensorSpec([2], tf.float32, "speed")
    with pytest.raises(tf.errors.InvalidArgumentError, match="speed is float"):
        tf.function(lambda: host_call(lambda: [wrong], [], [spec]), autograph=False)()


def test_arguments_arrive() -> None:
    spec = tf.TensorSpec([2], tf.int32)
    given = tf.function(
        lambda x, y: host_call(lambda x, y: [x * 2, y], [x, y], [spec, tf.TensorSpec([], tf.float32)]), autograph=False
    )(tf.constant([1, 2]), tf.constant(0.5))
    assert given[0].numpy().tolist() == [2, 4]
    assert given[1].numpy() == 0.5


def test_a_single_array_comes_back_in_eager_runs_too() -> None:
    spec = tf.TensorSpec([2], tf.int32)
    given = host_call(lambda x: [x * 2], [tf.constant([1, 2])], [spec])
    assert given[0].numpy().tolist() == [2, 4]
