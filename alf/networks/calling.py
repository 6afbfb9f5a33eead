"""Networks are in training mode where they learn, and only there."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tf_agents.networks.network import Network
from tf_agents.utils import nest_utils


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

    Raises:
      ValueError: it takes inputs of another kind.
    """
    if _mode.learning and isinstance(network, tf.keras.layers.Layer) and _takes_training(network):
        kwargs["training"] = True
    try:
        return network(inputs, **kwargs)
    except (TypeError, ValueError) as e:
        if isinstance(network, Network) and not _fits(inputs, network.input_tensor_spec):
            raise ValueError(
                f"{network.name} takes {_kinds(network.input_tensor_spec, 0)} and is given {_kinds(inputs, 1)}: set its "
                "input_tensor_spec to what it sees, behind observation transformers, masks and an encoding_network."
            ) from e
        raise


def _fits(inputs: Any, spec: Any) -> bool:
    """Whether inputs are such as a network takes, which TF-Agents asks before it calls it; further fields are let through."""
    try:
        if spec is not None:
            nest_utils.assert_matching_dtypes_and_inner_shapes(
                inputs, spec, allow_extra_fields=True, caller=call_network, tensors_name="inputs", specs_name="spec"
            )
    except (TypeError, ValueError):
        return False
    return True


def _kinds(nest: Any, outer_rank: int) -> Any:
    """What there is, in words, of a nest of specs or tensors, without the outer axes."""
    return tf.nest.map_structure(lambda x: f"{x.dtype.name} {list(x.shape)[outer_rank:]}", nest)


def _takes_training(network: Any) -> bool:
    parameters = inspect.signature(network.call).parameters.values()
    return any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
