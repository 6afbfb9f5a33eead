"""Networks are in training mode where they learn, and only there."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class _Mode(threading.local):
    """Whether the code that one thread runs or traces learns."""

    def __init__(self) -> None:
        self.learning = False


_mode = _Mode()


@contextlib.contextmanager
def learning(flag: bool = True) -> Iterator[None]:
    """Code of this thread learns until the block ends, or does not with `flag` False, such as what only judges."""
    before, _mode.learning = _mode.learning, flag
    try:
        yield
    finally:
        _mode.learning = before


def call_network(network: Any, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Calls a TF-Agents network in training mode inside of `learning`, else as it is by itself: not so.

    Args:
      network: it gets `training=True` where its `call` takes that.
      inputs: its inputs.
      **kwargs: passed on, such as step_type and network_state.

    Returns:
      its output and state.
    """
    if _mode.learning and isinstance(network, tf.keras.layers.Layer) and _takes_training(network):
        kwargs["training"] = True
    return network(inputs, **kwargs)


def _takes_training(network: Any) -> bool:
    parameters = inspect.signature(network.call).parameters.values()
    return any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
