"""Beginning a run with the weights of another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import trackable_object_graph_pb2

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.trainers.checkpointing import Checkpointer, CheckpointError, damage_of, locate

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Names of attributes that hold optimisers and what training counts by.
_NO_WEIGHTS = ("_optimizers", "_iterations", "_seed")
_SHOWN = 10


def load_weights(algorithm: OffPolicyAlgorithm, source: str) -> str:
    """Sets the weights of an algorithm to those of a checkpoint; optimisers and counters stay new.

    Variables are matched by their place in the algorithm, and must agree in shape and dtype. What has no match, on
    either side, is named in the log. The source is only read.

    Args:
      algorithm: whose variables exist.
      source: path of a run, of a checkpoint, or `RUN:which` with "best", "final" or a step.

    Returns:
      the path of the checkpoint, without suffix.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or nothing in it fits.
    """
    path = resolve(source)
    damage = damage_of(path)
    if damage is not None:
        raise CheckpointError(f"initialize_from={source}: {path} cannot be read: {damage}")
    reader = tf.train.load_checkpoint(path)
    objects = _Source(reader)
    left = objects.variables(objects.child(0, "algorithm"))
    matched, unmatched = [], []
    for place, variable, key in _weights(algorithm, objects):
        left.pop(key or "", None)
        value = None if key is None else reader.get_tensor(key)
        if value is None:
            unmatched.append(f"{place} is not in it")
        elif tuple(variable.shape) != value.shape or variable.dtype.as_numpy_dtype != value.dtype:
            unmatched.append(f"{place} is {value.dtype}{list(value.shape)} there")
        else:
            matched.append((variable, value))
    if not matched:
        raise CheckpointError(f"initialize_from={source}: no weight of {path} fits this algorithm.")
    for variable, value in matched:
        variable.assign(value)
    logging.info("Weights from %s: %d variables.", path, len(matched))
    unmatched += [f"{place} is not in this algorithm" for place in left.values()]
    if unmatched:
        more = f", and {len(unmatched) - _SHOWN} more" if len(unmatched) > _SHOWN else ""
        logging.warning("Not taken from %s: %s%s.", path, "; ".join(unmatched[:_SHOWN]), more)
    return path


def resolve(source: str) -> str:
    """The checkpoint that `source` means, as a path without suffix; arguments and errors as in `load_weights`."""
    directory, which = locate(source)
    if directory is None and ":" in source:
        run, _, which = source.rpartition(":")
        directory, _ = locate(run)
    if directory is None:
        raise CheckpointError(f"initialize_from={source}: there is no run and no checkpoint of that name.")
    checkpointer = Checkpointer(directory, {})
    record = checkpointer.index.find(which)
    if record is None:
        there = ", ".join(r.name for r in checkpointer.index.records()) or "none"
        raise CheckpointError(
            f"initialize_from={source}: there is no checkpoint {which!r} in {directory}; there are: {there}."
        )
    return next(p for p in checkpointer.available() if p.endswith(record.name))


class _Source:
    """The objects that a checkpoint was made of, as its own description has them."""

    def __init__(self, reader: Any) -> None:
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
        self._nodes = graph.nodes

    def child(self, node: int | None, name: str) -> int | None:
        """The object that `node` has under a name."""
        return None if node is None else self._children(node).get(name)

    def key(self, node: int | None) -> str | None:
        """Where the value of a variable is; None for other objects."""
        attributes = self._nodes[node].attributes if node is not None else ()
        return next((a.checkpoint_key for a in attributes if a.name == "VARIABLE_VALUE"), None)

    def variables(self, root: int | None) -> dict[str, str]:
        """Key to place of all variables below an object that may be weights."""
        found: dict[str, str] = {}
        seen: set[int] = set()
        open_nodes = [] if root is None else [(root, "")]
        while open_nodes:
            node, place = open_nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            key = self.key(node)
            if key is not None:
                found[key] = place
            open_nodes += [
                (n, _join(place, name)) for name, n in self._children(node).items() if name not in _NO_WEIGHTS
            ]
        return found

    def _children(self, node: int) -> dict[str, int]:
        return {child.local_name: child.node_id for child in self._nodes[node].children}


def _weights(algorithm: OffPolicyAlgorithm, source: _Source) -> Iterator[tuple[str, tf.Variable, str | None]]:
    """Place, variable and key in the checkpoint of everything that acting and learning use."""
    seen = {id(optimizer) for optimizer, _ in algorithm.optimized_variables()}
    open_nodes: list[tuple[Any, int | None, str]] = [(algorithm, source.child(0, "algorithm"), "")]
    while open_nodes:
        target, node, place = open_nodes.pop()
        if id(target) in seen:
            continue
        seen.add(id(target))
        if isinstance(target, tf.Variable):
            yield place, target, source.key(node)
            continue
        for name, child in tf.train.TrackableView.children(target).items():
            if name not in _NO_WEIGHTS:
                open_nodes.append((child, source.child(node, name), _join(place, name)))


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name
