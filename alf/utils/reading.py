"""Tracing with tensors in the place of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph


@contextlib.contextmanager
def reading(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> Iterator[None]:
    """While tracing inside this block, reading a variable gives the tensor at its place in `values`.

    It holds in the graph of that tensor and in the loops and branches of it. An inner `tf.function` still meets the variable
    itself: TensorFlow would keep the tensor in it for its next use, in another graph. So does what passes by the
    variable's own reading (`tf.gather` of a variable, an assignment). One thread at a time traces the same variables so;
    others may read them meanwhile.

    Args:
      variables: resource variables, or Keras' wrappers of them.
      values: for each a tensor of its shape and dtype.
    """
    plain = [getattr(v, "_variable", v) for v in variables]
    readers = [_reader(v._read_variable_op, value) for v, value in zip(plain, values, strict=True)]
    for variable, read in zip(plain, readers, strict=True):
        variable._read_variable_op = read
    try:
        yield
    finally:
        for variable in plain:
            # Behind it is the method of the class.
            del variable._read_variable_op


def _reader(read_variable: Callable[..., tf.Tensor], value: tf.Tensor) -> Callable[..., tf.Tensor]:
    def read(*args: bool, **kwargs: bool) -> tf.Tensor:
        return value if _in_reach(value) else read_variable(*args, **kwargs)

    return read


def _in_reach(value: tf.Tensor) -> bool:
    """Whether what is traced now is of the graph of `value`, or a loop or branch in it; in eager code always."""
    if isinstance(value, ops.EagerTensor):
        return True
    graph = ops.get_default_graph()
    while graph is not value.graph and isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph is value.graph
