"""Small helpers over specs, states and transforms that every room uses."""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.data_structures import Nest, StepType
from alf.utils import nest_utils
from alf.utils.devices import has_gpu
from alf.utils.target_updater import get_target_updater as get_target_updater

_global_env = threading.local()

# Specs have the largest float where a space has infinity.
_UNBOUNDED = 1e9


def flat(rows: Nest) -> Nest:
    """Rows with two leading axes, such as [T, B, ...], with one: [T * B, ...]."""
    return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), rows)


def as_array(number: float, dtype: Any) -> np.ndarray:
    """A number as an array without axes, for TensorFlow where the number differs from call to call.

    TensorFlow caches the tensor of each Python number it is given and never frees it, 0.7 KB each
    (https://github.com/tensorflow/tensorflow/issues/68196).
    """
    return np.array(number, dtype)


def zeros_from_spec(nested_spec: Nest, batch_size: int | tf.Tensor) -> Nest:
    """Zero tensors of `nested_spec` with a leading batch axis."""
    return tf.nest.map_structure(
        lambda s: tf.zeros(tf.concat([[batch_size], tf.convert_to_tensor(s.shape, tf.int32)], 0), s.dtype), nested_spec
    )


def packer(structure: Nest) -> Callable[[Sequence[Any]], Nest]:
    """`tf.nest.pack_sequence_as(structure, ...)` as a function of the flat values, for calls that are many.

    TensorFlow walks through the structure at each: 7 us for a dictionary of one.
    """
    if not tf.nest.is_nested(structure):
        return operator.itemgetter(0)
    if type(structure) is dict and not any(map(tf.nest.is_nested, structure.values())):
        names = sorted(structure)
        return lambda flat: dict(zip(names, flat, strict=True))
    return functools.partial(tf.nest.pack_sequence_as, structure)


def is_stateless(state_spec: Nest) -> bool:
    """Whether a state spec has no leaf: a feed-forward policy."""
    return not tf.nest.flatten(state_spec)


def broadcast_mask(mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """`mask` [B...] with axes of size 1 appended up to the rank of `like`."""
    return tf.reshape(mask, tf.concat([tf.shape(mask), tf.ones([like.shape.rank - mask.shape.rank], tf.int32)], 0))


def reset_state_if_necessary(state: Nest, initial_state: Nest, reset_mask: tf.Tensor) -> Nest:
    """Rows of `state` [B, ...] where `reset_mask` [B] holds are replaced by those of `initial_state`."""
    return tf.nest.map_structure(lambda i, s: tf.where(broadcast_mask(reset_mask, s), i, s), initial_state, state)


def reset_state_at_first(state: Nest, step_type: tf.Tensor) -> Nest:
    """Zeroes the rows of `state` [B, ...] whose current step is FIRST (never by the end of the step before)."""
    if is_stateless(state):
        return state
    return reset_state_if_necessary(
        state, tf.nest.map_structure(tf.zeros_like, state), tf.equal(step_type, StepType.FIRST)
    )


def add_outer_dims(nested_spec: Nest, dims: Iterable[int | None]) -> Nest:
    """`nested_spec` as plain TensorSpecs with `dims` put before every shape."""
    outer = list(dims)
    return tf.nest.map_structure(lambda s: tf.TensorSpec(outer + s.shape.as_list(), s.dtype), nested_spec)


def as_list(x: Any) -> list[Any]:
    """`x` as a list: itself if it is a list or tuple, nothing for None, else `[x]`."""
    if x is None:
        return []
    return list(x) if isinstance(x, (list, tuple)) else [x]


def set_global_env(env: Any) -> None:
    """Makes `env` what `get_observation_spec` and `get_action_spec` speak of in this thread."""
    _global_env.env = env


def get_env() -> Any:
    """The environment given to `set_global_env` in this thread; ValueError when there is none."""
    env = getattr(_global_env, "env", None)
    if env is None:
        raise ValueError(
            "No environment is set: a trainer sets it, or call alf.utils.common.set_global_env(env) first."
        )
    return env


def field_of(nest: Nest, path: str | None) -> Nest:
    """What is at a dotted path of a nest of dicts and named tuples; all of it without a path.

    Raises:
      ValueError: there is nothing at the path.
    """
    for name in path.split(".") if path else []:
        _check_field(nest, name)
        nest = nest[name] if isinstance(nest, dict) else getattr(nest, name)
    return nest


def _parts(nest: Nest) -> list[str]:
    """Names of what a dict or a named tuple holds; none of anything else."""
    return list(nest) if isinstance(nest, dict) else list(nest._fields) if nest_utils.is_namedtuple(nest) else []


def _check_field(nest: Nest, name: str) -> None:
    """Raises ValueError where a nest has no part `name`."""
    names = _parts(nest)
    if name not in names:
        there = f"only {names}" if names else "which has no parts"
        raise ValueError(f"There is no field {name!r} in an observation, {there}: correct the name.")


def check_made(name: str, **given: Any) -> None:
    """Raises ValueError where one of the arguments of `name` is a class or function that was to be called, as gin's `@X`."""
    for argument, value in given.items():
        if callable(value) and not isinstance(value, tf.Module):
            kind = getattr(value, "__name__", value)
            raise ValueError(
                f"{name}: {argument} is {kind} and not one of it: write @{kind}() with parentheses in gin."
            )


def check_range(least: float, most: float = math.inf, **given: Any) -> None:
    """Raises ValueError where one of the arguments is a plain number outside of [least, most], or none, NaN.

    What a schedule or a tensor says shows only when it is used.
    """
    for argument, value in given.items():
        if isinstance(value, numbers.Real) and not least <= float(value) <= most:
            right = f"at least {least:g}" if math.isinf(most) else f"in [{least:g}, {most:g}]"
            raise ValueError(f"{argument}={value} must be {right}.")


def check_sizes(**given: Any) -> None:
    """Raises ValueError where one of the arguments is no whole number of at least 1; None is let through."""
    for argument, value in given.items():
        if value is not None and not (isinstance(value, numbers.Integral) and int(value) >= 1):
            raise ValueError(f"{argument}={value!r} must be a whole number of at least 1.")


@gin.configurable(module="alf.utils.common")
def get_observation_spec(field: str | None = None) -> Nest:
    """The observation spec, after the default cast to float32 (images too), of the run's environment.

    Args:
      field: dotted path into a nested observation.
    """
    return field_of(cast_spec(tensor_spec.from_spec(get_env().observation_spec())), field)


@gin.configurable(module="alf.utils.common")
def get_action_spec() -> Nest:
    """The action spec of the run's environment."""
    return tensor_spec.from_spec(get_env().action_spec())


@gin.configurable(module="alf.utils.common")
def active_action_target_entropy(active_action_portion: float = 0.2, min_entropy: float = 0.3) -> float:
    """A target entropy for the run's environment: that of a policy which takes a share of the discrete actions alike, nats.

    Args:
      active_action_portion: the share, in (0, 1].
      min_entropy: the least target, of few actions.

    Raises:
      ValueError: the share is out of its range, or the action is not a single discrete one.
    """
    if not 0.0 < active_action_portion <= 1.0:
        raise ValueError(
            f"active_action_target_entropy.active_action_portion={active_action_portion} must be above 0 and at most 1."
        )
    spec = get_action_spec()
    if tf.nest.is_nested(spec) or not spec.dtype.is_integer or spec.shape.num_elements() != 1:
        raise ValueError(
            f"active_action_target_entropy is for a single discrete action, got {spec}: give the target entropy as a number."
        )
    count = int(np.max(spec.maximum) - np.min(spec.minimum)) + 1
    return max(math.log(count * active_action_portion), min_entropy)


def only_true(**switches: bool) -> dict[str, Any]:
    """The switches that are true, as arguments to pass on; the others are left to gin bindings."""
    return {name: True for name, value in switches.items() if value}


def is_bounded(low: Any, high: Any) -> bool:
    """Whether the bounds of a spec are those of a bounded space."""
    return bool(np.all(are_bounded(low, high)))


def are_bounded(low: Any, high: Any) -> Any:
    """Whether the bounds of each element of a spec are those of a bounded space, bool, of their shape."""
    return (np.abs(low) < _UNBOUNDED) & (np.abs(high) < _UNBOUNDED)


def cast_spec(nested_spec: Nest) -> Nest:
    """`nested_spec` as `cast_transformer` leaves it: every leaf float32."""

    def cast(spec: tf.TypeSpec) -> tf.TypeSpec:
        if spec.dtype == tf.float32:
            return spec
        return tf.TensorSpec(spec.shape, tf.float32, spec.name)

    return tf.nest.map_structure(cast, nested_spec)


@gin.configurable(module="alf.utils.common")
def cast_transformer(observation: Nest, dtype: tf.DType = tf.float32) -> Nest:
    """Casts every leaf of an observation."""
    return tf.nest.map_structure(lambda o: o if o.dtype == dtype else tf.cast(o, dtype), observation)


def transform_observation(observation: Nest, field: str | None, func: Callable[[tf.Tensor], tf.Tensor]) -> Nest:
    """Applies `func` to the leaf at the dotted path `field` of a nested observation, or to all of a plain one.

    Raises:
      ValueError: there is nothing at the path, or a nest.
    """
    if not field:
        if tf.nest.is_nested(observation):
            raise ValueError(
                f"A transform of one tensor got an observation of parts {_parts(observation)}: name those that it is "
                "for by `fields`."
            )
        return func(observation)
    name, _, rest = field.partition(".")
    _check_field(observation, name)
    if isinstance(observation, dict):
        return {k: transform_observation(v, rest, func) if k == name else v for k, v in observation.items()}
    return observation._replace(**{name: transform_observation(getattr(observation, name), rest, func)})


_tracing = threading.local()


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Has what is traced inside of the block, by this thread, made of operations that converters of models know."""
    _tracing.portable = True
    try:
        yield
    finally:
        _tracing.portable = False


def _in_one_pass() -> bool:
    """Whether to scale pictures by TensorFlow's operation for that: half the time of three, to the same bits.

    It runs on one thread, and not on a GPU.
    """
    one_thread = tf.config.threading.get_intra_op_parallelism_threads() == 1
    return one_thread and not has_gpu() and not getattr(_tracing, "portable", False)


@gin.configurable(module="alf.utils.common")
def image_scale_transformer(
    observation: Nest, fields: list[str] | None = None, min: float = -1.0, max: float = 1.0
) -> Nest:
    """Maps uint8 images to float32 in [min, max].

    Raises:
      ValueError: a chosen leaf is not uint8.
    """

    def scale(image: tf.Tensor) -> tf.Tensor:
        if image.dtype != tf.uint8:
            raise ValueError(
                f"image_scale_transformer needs uint8 images and got {image.dtype.name}: name others out by `fields`."
            )
        if _in_one_pass():
            return tf.quantization.dequantize(tf.bitcast(image, tf.quint8), min, max)
        return tf.cast(image, tf.float32) * ((max - min) / 255.0) + min

    for field in fields or [None]:  # type: ignore[list-item]
        observation = transform_observation(observation, field, scale)
    return observation


@gin.configurable(module="alf.utils.common")
def scale_transformer(
    observation: Nest, scale: float, dtype: tf.DType = tf.float32, fields: list[str] | None = None
) -> Nest:
    """Multiplies observations by `scale` after a cast to `dtype`."""
    for field in fields or [None]:  # type: ignore[list-item]
        observation = transform_observation(observation, field, lambda o: tf.cast(o, dtype) * scale)
    return observation


@gin.configurable(module="alf.utils.common")
def reward_clipping(r: tf.Tensor, minmax: tuple[float, float] = (-1.0, 1.0)) -> tf.Tensor:
    """Clips rewards to [minmax[0], minmax[1]]."""
    return tf.clip_by_value(r, minmax[0], minmax[1])


@gin.configurable(module="alf.utils.common")
def reward_scaling(r: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
    """Multiplies rewards by `scale`."""
    return r * scale
