"""Gymnasium spaces as TF-Agents specs, and values carried between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, MaxAndSkipObservation
from tf_agents.specs import array_spec

from alf.utils import nest_utils

Nest = Any

# Of a number in TensorFlow.
_WIDEST_BYTES = 8

# Under this name wrappers that skip frames say in an environment's metadata how many frames a step takes.
FRAMES_PER_STEP = "frames_per_step"


def frames_per_step(env: Any) -> int:
    """How many frames a step of a Gymnasium environment, single or vectorised, takes.

    By the metadata of the environment, Gymnasium's own wrappers that skip frames, and an Atari game that skips some
    itself; 1 by default, also for games that skip a random number.
    """
    if isinstance(env, MaxAndSkipObservation):
        return int(env._skip) * frames_per_step(env.env)
    if isinstance(env, AtariPreprocessing):
        return int(env.frame_skip) * frames_per_step(env.env)
    said = env.metadata.get(FRAMES_PER_STEP)
    # A wrapper that says nothing else hands on what it wraps.
    if isinstance(env, gymnasium.Wrapper) and said == env.env.metadata.get(FRAMES_PER_STEP):
        return frames_per_step(env.env)
    skips = getattr(env, "_frameskip", 1)
    return int(said or (skips if isinstance(skips, int) else 1))


def observation_spec(space: spaces.Space) -> Nest:
    """The nest of `BoundedArraySpec` that describes one observation of `space`.

    float64 becomes float32; every other dtype of a Box is kept, so that images stay uint8. Discrete and MultiDiscrete
    become int64, MultiBinary int8. Dict gives a dict, Tuple a tuple, both possibly empty.

    Args:
      space: the space of a single environment, without a batch axis.

    Returns:
      Specs nested as the space is.

    Raises:
      ValueError: the space is of a kind that has no fixed shape (Text, Graph, Sequence, OneOf) or is not known, of a
        dtype that TensorFlow does not have, or a Dict whose names are of several kinds.
    """
    return _spec(space, "observation", _box_observation_spec)


def without_numbers(spec: Nest) -> str | None:
    """A sentence on what in the spec of an observation has size 0, which TF-Agents' networks do not take; None for nothing."""
    for path, leaf in nest_utils.paths(spec):
        if 0 in leaf.shape:
            what = f"observation's part '{'.'.join(path)}'" if path else "observation"
            return (
                f"The {what} has no numbers, of shape {tuple(leaf.shape)}: have the environment leave it out, as "
                "gymnasium.wrappers.FilterObservation does with parts of a Dict."
            )
    return None


def action_spec(space: spaces.Space) -> Nest:
    """The nest of `BoundedArraySpec` that describes one action of `space`.

    As `observation_spec`, but every discrete kind becomes int64 and is numbered from 0, as networks do, wherever the space
    begins; a Box becomes float32 or int64, of which networks make actions; and float32 bounds are rounded inwards so that
    no action within the spec is outside a float64 Box.

    Args:
      space: the space of a single environment, without a batch axis.

    Returns:
      Specs nested as the space is.

    Raises:
      ValueError: as `observation_spec`.
    """
    return _spec(space, "action", _box_action_spec)


def observation_converter(space: spaces.Space, single: bool = False) -> Callable[[Any], Nest]:
    """A function that copies observations into fresh C-ordered arrays with the dtypes of `observation_spec(space)`.

    Args:
      space: the space of a single environment.
      single: the function takes one observation and adds a batch axis of size 1; else it takes a batch of them.

    Returns:
      A function from what an environment gives to a nest of numpy arrays [B, ...] that the environment has no hold of; it
      raises a ValueError where whole numbers are to be made of others.
    """

    def leaf(space: spaces.Space) -> Callable[[Any], Nest]:
        dtype = np.dtype(observation_spec(space).dtype)

        def copy(value: Any) -> np.ndarray:
            return np.array(whole_numbers(value, dtype, space) if dtype.kind in "iu" else value, dtype=dtype, order="C")

        return (lambda value: copy(value)[np.newaxis]) if single else copy

    return _mapped(space, leaf)


def fitting(space: spaces.Space) -> Callable[[Any], Any]:
    """A function that gives an observation as Gymnasium's vector environments take it, which check little.

    It raises a ValueError where an array has another shape than `space` says, or where whole numbers are to be made of others.

    Args:
      space: the space of a single environment.
    """

    def leaf(space: spaces.Space) -> Callable[[Any], Any]:
        dtype, shape = np.dtype(getattr(space, "dtype", None)), getattr(space, "shape", None)
        whole = dtype.kind in "iub"
        counts = isinstance(space, spaces.Discrete) and dtype == np.int64

        def fit(value: Any) -> Any:
            # At every step of every row: what is as it should be is seen at once.
            if type(value) is np.ndarray:
                if value.shape == shape and (not whole or value.dtype == dtype):
                    return value
            elif counts and type(value) is int:
                return value
            if np.shape(value) != shape:
                raise ValueError(
                    f"An observation has shape {np.shape(value)} where its space says {shape}, {space}: correct one."
                )
            return whole_numbers(value, dtype, space) if whole else value

        return fit

    return _mapped(space, leaf)


def whole_numbers(value: Any, dtype: np.dtype, space: spaces.Space) -> np.ndarray:
    """`value` as an array of a dtype of whole numbers or bools; without a copy where it is one.

    Raises:
      ValueError: it has numbers that the dtype has not, which a cast would cut off or wrap around.
    """
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    lost = cast != array
    if np.any(lost):
        raise ValueError(
            f"An observation of {array.dtype} holds {array[lost][0]}, which the {dtype} of its space, {space}, cannot be: give "
            "the space the dtype of what is observed, such as np.float32, or correct the observation."
        )
    return cast


def has_empty_part(space: spaces.Space) -> bool:
    """Whether there is a Dict or Tuple without parts in a space, or it is one."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
    return not parts or any(has_empty_part(part) for part in parts)


def channels_last(space: spaces.Space) -> spaces.Space:
    """The Box of an image [channels, height, width] as [height, width, channels].

    Raises:
      ValueError: `space` is something else.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        raise ValueError(f"An image has the shape [channels, height, width]; got {space}.")
    low, high = (np.moveaxis(bound, 0, -1) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype)  # type: ignore[arg-type]  # Box declares fewer dtypes.


def images_to_channels_last(images: np.ndarray) -> np.ndarray:
    """Images [B, channels, height, width] copied to [B, height, width, channels]."""
    batch, channels, height, width = images.shape
    copy = np.empty((batch, height, width, channels), images.dtype)
    # Channel by channel numpy walks along whole images: a transposed copy, four numbers at a time, takes much longer.
    for channel in range(channels):
        copy[..., channel] = images[:, channel]
    return copy


def action_converter(space: spaces.Space, single: bool = False) -> Callable[[Nest], Any]:
    """A function from actions [B, ...] as in `action_spec(space)` to those that the environment takes.

    It casts to the dtype of the space. Discrete actions are counted from where the space begins. Actions of a bounded Box
    are clipped to its bounds: a Gaussian policy samples outside them, and learns from the action that it sampled.

    Args:
      space: the space of a single environment.
      single: the function returns row 0 alone; else the batch.
    """

    def leaf(space: spaces.Space) -> Callable[[Nest], Any]:
        cast = _caster(space)
        return (lambda value: cast(value)[0]) if single else cast

    return _mapped(space, leaf)


def _caster(space: spaces.Space) -> Callable[[Any], np.ndarray]:
    dtype = space.dtype
    if isinstance(space, spaces.Box) and (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        low, high = space.low, space.high
        # Clipped before the cast, which has whole numbers beyond a narrow dtype wrap around.
        return lambda value: np.asarray(np.minimum(np.maximum(value, low), high), dtype=dtype)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        start = np.asarray(space.start, dtype)
        return lambda value: np.asarray(value, dtype=dtype) + start
    return lambda value: np.asarray(value, dtype=dtype)


def _mapped(space: spaces.Space, leaf: Callable[[spaces.Space], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """The functions that `leaf` gives for the parts of `space`, as one function of nested values."""
    if isinstance(space, spaces.Dict):
        by_name = {name: _mapped(sub, leaf) for name, sub in space.spaces.items()}
        return lambda value: {name: convert(value[name]) for name, convert in by_name.items()}
    if isinstance(space, spaces.Tuple):
        parts = tuple(_mapped(sub, leaf) for sub in space.spaces)
        return lambda value: tuple(convert(item) for convert, item in zip(parts, value, strict=True))
    return leaf(space)


def _spec(space: spaces.Space, name: str, box_spec: Callable[[spaces.Box, str], Nest]) -> Nest:
    acts = box_spec is _box_action_spec
    if isinstance(space, spaces.Dict):
        if len({type(key) for key in space}) > 1:
            raise ValueError(
                f"The names in the {name} space are of several kinds, {list(space)}: make all of them text."
            )
        return {key: _spec(sub, f"{name}/{key}", box_spec) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_spec(sub, f"{name}/{i}", box_spec) for i, sub in enumerate(space.spaces))
    if isinstance(space, spaces.MultiBinary) or (isinstance(space, spaces.Box) and space.dtype == np.bool_):
        return array_spec.BoundedArraySpec(space.shape, np.int64 if acts else np.int8, 0, 1, name)
    if isinstance(space, spaces.Box):
        if np.dtype(space.dtype).itemsize > _WIDEST_BYTES:
            raise ValueError(
                f"The {name} space is of {space.dtype}, which TensorFlow does not have: give it np.float32 or np.float64."
            )
        return box_spec(space, name)
    if isinstance(space, spaces.Discrete):
        low = 0 if acts else int(space.start)
        return array_spec.BoundedArraySpec((), np.int64, low, low + int(space.n) - 1, name)
    if isinstance(space, spaces.MultiDiscrete):
        start = np.zeros(space.shape, np.int64) if acts else np.asarray(space.start, np.int64)
        return _whole_number_spec(space.shape, start, start + space.nvec - 1, name)
    raise ValueError(
        f"The {name} space is a {type(space).__name__}, which alf cannot turn into arrays of one shape: use Box, "
        "Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, for example through a gymnasium wrapper that flattens it. What "
        "is part of a Dict can be left out by alf.environments.wrappers.SelectFields; texts are made numbers by TextToBytes."
    )


def _whole_number_spec(
    shape: tuple[int, ...], low: np.ndarray, high: np.ndarray, name: str
) -> array_spec.BoundedArraySpec:
    if shape == (1,):  # TF-Agents' CategoricalQNetwork takes bounds that are no arrays.
        low, high = low[0], high[0]
    return array_spec.BoundedArraySpec(shape, np.int64, low, high, name)


def _float32_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):  # A bound beyond float32 is no bound.
        return space.low.astype(np.float32), space.high.astype(np.float32)


def _box_observation_spec(space: spaces.Box, name: str) -> array_spec.BoundedArraySpec:
    if space.dtype != np.float64:
        return array_spec.BoundedArraySpec(space.shape, space.dtype, space.low, space.high, name)
    return array_spec.BoundedArraySpec(space.shape, np.float32, *_float32_bounds(space), name)


def _box_action_spec(space: spaces.Box, name: str) -> array_spec.BoundedArraySpec:
    if np.issubdtype(space.dtype, np.integer):
        return _whole_number_spec(space.shape, space.low.astype(np.int64), space.high.astype(np.int64), name)
    low, high = _float32_bounds(space)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    # No float32 lies between them, as where both are the same: the nearest, which the environment gets clipped.
    nearest, none = space.low.astype(np.float32), low > high
    low, high = np.where(none, nearest, low), np.where(none, nearest, high)
    return array_spec.BoundedArraySpec(space.shape, np.float32, low, high, name)
