"""Calls of Python from inside a traced function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Where TensorFlow takes a part of an array without a copy.
_ALIGNMENT = 64
# Bytes; a larger array is not worth a copy.
_SMALL = 1 << 16


def host_call(
    function: Callable[..., Sequence[Any]], inputs: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec]
) -> list[tf.Tensor]:
    """`tf.numpy_function`, but small arrays come back as parts of one.

    TensorFlow takes 10 to 15 us for each array that comes back, most of it to parse the version of numpy.

    Args:
      function: of numpy arrays; gives arrays like `specs`.
      inputs: its arguments.
      specs: of what it gives.

    Raises:
      ValueError: in a call, an array is not like its spec.
    """
    dtypes = [np.dtype(spec.dtype.as_numpy_dtype) for spec in specs]
    sizes = [dtype.itemsize * spec.shape.num_elements() for dtype, spec in zip(dtypes, specs, strict=True)]
    joined = [i for i, dtype in enumerate(dtypes) if not dtype.hasobject and sizes[i] <= _SMALL]
    alone = [i for i in range(len(specs)) if i not in joined]
    ends = np.cumsum([-(-sizes[i] // _ALIGNMENT) * _ALIGNMENT for i in joined], dtype=np.int64).tolist()
    begins = [0, *ends]
    record = np.dtype(
        {
            "names": [str(i) for i in joined],
            "formats": [(dtypes[i], tuple(specs[i].shape)) for i in joined],
            "offsets": begins[:-1],
            "itemsize": max(begins[-1], 1),
        }
    )
    fields = [str(i) if i in joined else None for i in range(len(specs))]
    shapes = [tuple(spec.shape) for spec in specs]

    def call(*args: np.ndarray) -> list[np.ndarray]:
        row, others = np.empty(1, record), []
        for value, field, dtype, shape, spec in zip(function(*args), fields, dtypes, shapes, specs, strict=True):
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(
                    f"{spec.name or 'an array'} is {value.dtype} {list(value.shape)}, not as its spec: {spec}."
                )
            if field:
                row[field] = value
            else:
                others.append(value)
        return [row.view(np.uint8), *others]

    # Called eagerly, it gives a single array without a list.
    given = tf.nest.flatten(tf.numpy_function(call, inputs, [tf.uint8, *(specs[i].dtype for i in alone)]))
    given[0].set_shape([record.itemsize])
    tensors = dict(zip(alone, given[1:], strict=True))
    for i in alone:
        tensors[i].set_shape(specs[i].shape)
    for i, begin in zip(joined, begins, strict=False):
        tensors[i] = _as(given[0][begin : begin + sizes[i]], specs[i])
    return [tensors[i] for i in range(len(specs))]


def _as(data: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Bytes [n] as what `spec` says."""
    if spec.dtype == tf.bool:
        return tf.reshape(tf.cast(data, tf.bool), spec.shape)
    if spec.dtype.size > 1:
        data = tf.reshape(data, [-1, spec.dtype.size])
    return tf.reshape(tf.bitcast(data, spec.dtype), spec.shape)
