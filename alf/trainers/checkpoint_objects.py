"""The objects that a checkpoint was made of, by its own description of them, beside those of this program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from alf.algorithms.behaviors import Behaviors

_OPTIMIZERS = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)
_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The attribute of `Behaviors` that holds its algorithms.
_BEHAVIORS = "_algorithms"


class StoredObjects:
    """The objects in a checkpoint, as numbered nodes; node 0 is the checkpoint itself."""

    def __init__(self, reader: Any) -> None:
        """Reads the description.

        Args:
          reader: what `tf.train.load_checkpoint` gives.
        """
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
        self._nodes = graph.nodes
        self._shapes = reader.get_variable_to_shape_map()
        self._dtypes = reader.get_variable_to_dtype_map()

    @property
    def algorithm(self) -> int | None:
        """The algorithm of the run; None where there is none."""
        return self.child(0, "algorithm")

    @property
    def behaviors(self) -> dict[str, int]:
        """The algorithms of the behaviors, by name; none where the run had a single agent."""
        inside = self.child(self.algorithm, _BEHAVIORS)
        return {} if inside is None else self._children(inside)

    def child(self, node: int | None, name: str) -> int | None:
        """The object that `node` has under a name."""
        return None if node is None else self._children(node).get(name)

    def key(self, node: int | None) -> str | None:
        """Where the value of a variable is; None for other objects."""
        attributes = self._nodes[node].attributes if node is not None else ()
        return next((a.checkpoint_key for a in attributes if a.name == "VARIABLE_VALUE"), None)

    def fits(self, variable: tf.Variable, key: str | None) -> bool:
        """Whether what is under `key` can be the value of a variable."""
        if key is None:
            return False
        return list(variable.shape) == list(self._shapes[key]) and variable.dtype == self._dtypes[key]

    def variables(self, root: int | None, skip: Collection[str] = ()) -> dict[str, str]:
        """Key to place of all variables below an object, but for what hangs on names in `skip`."""
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
            open_nodes += [(n, _join(place, name)) for name, n in self._children(node).items() if name not in skip]
        return found

    def _children(self, node: int) -> dict[str, int]:
        return {child.local_name: child.node_id for child in self._nodes[node].children}


def variables_below(
    root: Any, objects: StoredObjects, node: int | None, skip: Collection[str] = (), without: Collection[Any] = ()
) -> Iterator[tuple[str, tf.Variable, str | None]]:
    """Place, variable and key in the checkpoint of each variable below an object of this program.

    Args:
      root: the object.
      objects: of the checkpoint.
      node: the one that stands for `root` there.
      skip: names of attributes that are not looked into.
      without: objects that are not.
    """
    seen = {id(thing) for thing in without}
    open_nodes: deque[tuple[Any, int | None, str]] = deque([(root, node, "")])
    while open_nodes:
        target, node, place = open_nodes.pop()
        if id(target) in seen:
            continue
        seen.add(id(target))
        if isinstance(target, tf.Variable):
            yield place, target, objects.key(node)
            continue
        for name, child in tf.train.TrackableView.children(target).items():
            if name not in skip:
                there = objects.child(node, name)
                # What has a counterpart comes first: an object may be reached by several ways, not all of them there.
                enqueue = open_nodes.appendleft if there is None else open_nodes.append
                enqueue((child, there, _join(place, name)))


def left_out(root: Any, path: str, acts_only: bool = False) -> tuple[list[str], list[str]]:
    """Places of a checkpoint's variables that the algorithm does not take: those inside of its layers, and the others.

    Args:
      root: the algorithm of the run.
      path: of a checkpoint that can be read.
      acts_only: without those of optimisers, which have no variables before something is learned.
    """
    objects = StoredObjects(tf.train.load_checkpoint(path))
    top = objects.algorithm
    taken = {key for _, _, key in variables_below(root, objects, top)}
    left = {key: place for key, place in objects.variables(top).items() if key not in taken}
    if acts_only:
        for node in _standing_for(lambda thing: isinstance(thing, _OPTIMIZERS), root, objects, top):
            learning = objects.variables(node)
            left = {key: place for key, place in left.items() if key not in learning}
    inside: set[str] = set()
    if left:
        for node in _standing_for(lambda thing: isinstance(thing, tf.keras.layers.Layer), root, objects, top):
            inside.update(objects.variables(node))
    return sorted(left[k] for k in left if k in inside), sorted(left[k] for k in left if k not in inside)


def lacking(root: Any, path: str) -> list[tf.Variable]:
    """The variables of an algorithm of this program that a checkpoint holds nothing for.

    Args:
      root: the algorithm of the run.
      path: of a checkpoint that can be read.
    """
    objects = StoredObjects(tf.train.load_checkpoint(path))
    return [variable for _, variable, key in variables_below(root, objects, objects.algorithm) if key is None]


def _standing_for(wanted: Callable[[Any], bool], root: Any, objects: StoredObjects, node: int | None) -> Iterator[int]:
    """The nodes of a checkpoint that stand for the `wanted` objects below `root`, for which `node` stands."""
    seen: set[int] = set()
    open_nodes = [(root, node)]
    while open_nodes:
        target, node = open_nodes.pop()
        if id(target) in seen or node is None:
            continue
        seen.add(id(target))
        if wanted(target):
            yield node
        for name, child in tf.train.TrackableView.children(target).items():
            open_nodes.append((child, objects.child(node, name)))


def unfit_behaviors(algorithm: Any, path: str) -> list[str]:
    """The behaviors whose variables a checkpoint lacks, or has in other shapes or dtypes; none for a single agent.

    Args:
      algorithm: of the run.
      path: of a checkpoint that can be read.
    """
    if not isinstance(algorithm, Behaviors):
        return []
    objects = StoredObjects(tf.train.load_checkpoint(path))
    there = objects.behaviors
    unfit = []
    for name, one in algorithm.by_name.items():
        variables = variables_below(one, objects, there.get(name))
        if name not in there or not all(objects.fits(variable, key) for _, variable, key in variables):
            unfit.append(name)
    return unfit


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name
