"""Where things are computed on a machine with a GPU: learning there, and all that is made of many small parts on the processors.

Stepping environments, acting beside them and drawing from a replay memory are many small operations with Python or the
memory of the processors in between. TensorFlow would put each where it can, and such a loop cannot even run where some of
its operations have no version for a GPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tensorflow as tf

HOST = "/cpu:0"

_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_host() -> contextlib.AbstractContextManager[None]:
    """What is traced or made inside of the block is for the processors; the same as without it where there is no GPU."""
    block: contextlib.AbstractContextManager[None] = tf.device(HOST)
    return block


def for_host(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, with all that it computes for the processors; a block around the tracing of it would not be heeded."""

    @functools.wraps(function)
    def placed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with on_host():
            return function(*args, **kwargs)

    return placed


def has_gpu() -> bool:
    """Whether TensorFlow puts what it can on a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def number_on_host(name: str, dtype: tf.DType = tf.int64) -> tf.Variable:
    """A variable [] that begins at 0 and is not trained, where Python asks for it without waiting for a GPU."""
    with on_host():
        return tf.Variable(0, dtype=dtype, trainable=False, name=name)
