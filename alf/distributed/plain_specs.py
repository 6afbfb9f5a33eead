"""What environments are like as plain data, so that it crosses without being pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from tf_agents.specs import array_spec

from alf.environments.batched_environment import BatchedEnvironment

Nest = Any
Plain = Any


class Layout(NamedTuple):
    """What the learner has to know of the environments of a worker, which are all of one kind.

    `batch_size`: B; `observation_spec`, `action_spec`: nests of array specs, without batch axis; `frames_per_step`.
    """

    batch_size: int
    observation_spec: Nest
    action_spec: Nest
    frames_per_step: int


def layout_of(env: BatchedEnvironment) -> Plain:
    """What `env` is like, as plain data.

    Raises:
      ValueError: its specs cannot cross.
    """
    return {
        "batch_size": env.batch_size,
        "observation_spec": to_plain(env.observation_spec()),
        "action_spec": to_plain(env.action_spec()),
        "frames_per_step": env.frames_per_step,
    }


def layout_from(plain: Plain) -> Layout:
    """The layout that `layout_of` has told."""
    return Layout(
        plain["batch_size"],
        from_plain(plain["observation_spec"]),
        from_plain(plain["action_spec"]),
        plain["frames_per_step"],
    )


def to_plain(spec: Nest) -> Plain:
    """A nest of array specs as dicts, lists, strings, numbers and arrays.

    Raises:
      ValueError: a part is no array spec, and no dict with names, tuple or list of such.
    """
    if isinstance(spec, Mapping) and all(isinstance(name, str) for name in spec):
        return {"dict": {name: to_plain(part) for name, part in spec.items()}}
    if type(spec) in (tuple, list):
        return {type(spec).__name__: [to_plain(part) for part in spec]}
    if isinstance(spec, array_spec.BoundedArraySpec):
        return {**_to_plain(spec), "bounds": [np.array(spec.minimum), np.array(spec.maximum)]}
    if isinstance(spec, array_spec.ArraySpec):
        return _to_plain(spec)
    raise ValueError(
        f"A part of the environment's specs is a {type(spec).__name__} ({spec}), which cannot be told to another process: use "
        "ArraySpec and BoundedArraySpec, in dicts with names that are strings, tuples and lists."
    )


def _to_plain(spec: array_spec.ArraySpec) -> Plain:
    return {"shape": [int(size) for size in spec.shape], "dtype": np.dtype(spec.dtype).str, "name": spec.name}


def from_plain(plain: Plain) -> Nest:
    """The nest that `to_plain` has told."""
    if "dict" in plain:
        return {name: from_plain(part) for name, part in plain["dict"].items()}
    if "tuple" in plain:
        return tuple(from_plain(part) for part in plain["tuple"])
    if "list" in plain:
        return [from_plain(part) for part in plain["list"]]
    shape, dtype, name = tuple(plain["shape"]), np.dtype(plain["dtype"]), plain["name"]
    if "bounds" in plain:
        # An array that came from elsewhere may lie in memory that it should not hold.
        return array_spec.BoundedArraySpec(shape, dtype, *(np.array(bound) for bound in plain["bounds"]), name=name)
    return array_spec.ArraySpec(shape, dtype, name)
