"""What is exported: functions over named tensors, and the specs of those tensors.

Outside of `alf` nobody knows its nests, so every observation, action and state leaf has a name of its own, made of the
path to it: the observation `{"camera": ..., "goal": ...}` becomes `observation_camera` and `observation_goal`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import Nest
from alf.utils import nest_utils

Tensors = dict[str, tf.Tensor]

# Beyond it a bound says that the environment has none, as the 3.4e38 of CartPole's velocities.
_NO_BOUND = 1e6

# From it on a bound of floats stands for infinity, of which TF-Agents' specs make the largest number of their dtype.
_AS_INFINITE = 1e38


class ExportError(RuntimeError):
    """A policy could not be exported; no file is left of the attempt."""


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """One named tensor of a policy.

    Attributes:
      name: lower-case letters, digits and `_`, as signatures of TensorFlow want it.
      shape: without the batch axis.
      dtype: of its elements.
      minimum: smallest values, broadcastable to `shape`; None where there is no bound.
      maximum: likewise.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    minimum: np.ndarray | None = None
    maximum: np.ndarray | None = None

    @classmethod
    def of(cls, name: str, spec: Any) -> Leaf:
        """The leaf of a tensor spec (no batch axis), bounded or not."""
        bounds = (getattr(spec, side, None) for side in ("minimum", "maximum"))
        low, high = (None if b is None else np.asarray(b) for b in bounds)
        return cls(name, tuple(spec.shape.as_list()), tf.as_dtype(spec.dtype), low, high)

    def tensor_spec(self) -> tf.TensorSpec:
        """Its spec with an open batch axis in front."""
        return tf.TensorSpec([None, *self.shape], self.dtype, self.name)

    def zeros(self, batch_size: int | tf.Tensor) -> tf.Tensor:
        """Zeros [B, ...]."""
        return tf.zeros(tf.stack([batch_size, *self.shape]), self.dtype)

    def describe(self) -> dict[str, Any]:
        """The leaf for a JSON file; bounds that are infinite, or stand for that, are None."""
        described = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name}
        if self.minimum is not None and self.maximum is not None:
            described |= {"minimum": _plain(self.minimum), "maximum": _plain(self.maximum)}
        return described

    def draw(self, rng: np.random.Generator, batch_size: int, largest: float = math.inf) -> tf.Tensor:
        """Random values [B, ...] within the bounds, moderate ones where a bound is missing.

        None is more than `largest` away from the allowed value that is next to 0.
        """
        shape = (batch_size, *self.shape)
        if self.dtype == tf.bool:
            return tf.constant(rng.random(shape) < 0.5)
        low, high = self._range(largest)
        if self.dtype.is_integer:
            return tf.constant(
                rng.integers(low.astype(np.int64), high.astype(np.int64), shape, endpoint=True), self.dtype
            )
        return tf.constant(rng.uniform(low, high, shape), self.dtype)

    def _range(self, largest: float) -> tuple[np.ndarray, np.ndarray]:
        """Finite bounds, float64 of `shape`, at most 2 apart where one was missing."""
        low, high = (
            np.broadcast_to(np.asarray(fallback if bound is None else bound, np.float64), self.shape)
            for bound, fallback in ((self.minimum, -math.inf), (self.maximum, math.inf))
        )
        open_below, open_above = low < -_NO_BOUND, high > _NO_BOUND
        if self.dtype.is_unsigned:
            low, open_below = np.maximum(low, 0.0), np.zeros_like(open_below)
        new_low = np.where(open_below, np.where(open_above, -1.0, high - 2.0), low)
        new_high = np.where(open_above, new_low + 2.0, high)
        smallest = np.clip(0.0, new_low, new_high)
        return np.maximum(new_low, smallest - largest), np.minimum(new_high, smallest + largest)


def _plain(bound: np.ndarray) -> Any:
    """A bound as JSON: one number where all are equal, None for infinity."""
    values = np.unique(bound)
    if values.size == 1:
        return _number(values[0])
    return _nested(bound.tolist())


def _nested(values: Any) -> Any:
    return [_nested(v) for v in values] if isinstance(values, list) else _number(values)


def _number(value: Any) -> float | int | None:
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, int) or abs(value) < _AS_INFINITE else None


def leaves_of(prefix: str, spec: Nest) -> list[Leaf]:
    """The named leaves of a nest of specs, in the order of `tf.nest.flatten`; names begin with `prefix`."""
    return [Leaf.of(name, leaf) for name, leaf in named(prefix, spec)]


def named(prefix: str, nest: Nest) -> list[tuple[str, Any]]:
    """(name, leaf) of a nest, in the order of `tf.nest.flatten`; names are the paths, made fit for signatures."""
    pairs = [("_".join([prefix, *path]) if prefix else "_".join(path), leaf) for path, leaf in nest_utils.paths(nest)]
    names = _distinct(re.sub(r"[^a-z0-9_]", "_", name.lower()) for name, _ in pairs)
    return [(name, leaf) for name, (_, leaf) in zip(names, pairs, strict=True)]


def _distinct(names: Iterable[str]) -> list[str]:
    """Different names: what is there twice gets a number."""
    result: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in result:
            candidate, number = f"{name}_{number}", number + 1
        result.append(candidate)
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class ExportablePolicy:
    """A policy as functions over named tensors [B, ...].

    Attributes:
      inputs: everything that a function may be given.
      always: names of inputs that an exported model takes even where its outputs do not depend on them; others are
        inputs only where they do.
      state: names of the inputs that are recurrent state; each function that advances one returns it under its name.
      functions: by the name of the signature; each maps all inputs to named outputs, and reads live variables.
      nearly_best: whether actions (as `functions["action"]` names them) are, a row, as probable as the best to within
        rounding: `(all inputs, actions) -> bool [B]`. It decides about discrete actions that differ.
      description: more about the policy for `metadata.json`.
    """

    inputs: tuple[Leaf, ...]
    always: frozenset[str]
    state: tuple[str, ...]
    functions: Mapping[str, Callable[[Tensors], Tensors]]
    nearly_best: Callable[[Tensors, Tensors], np.ndarray]
    description: Mapping[str, Any]

    def leaf(self, name: str) -> Leaf:
        """The input called `name`."""
        return next(leaf for leaf in self.inputs if leaf.name == name)
