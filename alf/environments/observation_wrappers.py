"""Wrappers of single Gymnasium environments that change observations: stacks, pictures, fields."""

from __future__ import annotations

import abc
import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from alf.environments import agents
from alf.environments.atari_preprocessing import import_cv2
from alf.utils.common import transform_observation

CHANNEL_ORDERS = ("channels_last", "channels_first")
# That OpenCV resizes at once.
_MOST_CHANNELS = 4


def transform_space(
    observation_space: spaces.Space, field: str | None, func: Callable[[spaces.Space], spaces.Space]
) -> spaces.Space:
    """Applies `func` to the space at the dotted path `field` of a nested space, or to all of a plain one.

    Args:
      observation_space: a space; with a `field`, a Dict.
      field: names joined by dots; None or "" for the space itself.
      func: from a space to another.

    Raises:
      ValueError: there is no such field.
    """
    if not field:
        return func(observation_space)
    name, _, rest = field.partition(".")
    if not isinstance(observation_space, spaces.Dict) or name not in observation_space.spaces:
        there = list(observation_space) if isinstance(observation_space, spaces.Dict) else type(observation_space)
        raise ValueError(f"There is no observation field {field!r}: there are {there}.")
    parts = {k: transform_space(v, rest, func) if k == name else v for k, v in observation_space.spaces.items()}
    return spaces.Dict(parts)


class BaseObservationWrapper(gymnasium.ObservationWrapper, abc.ABC):
    """Changes some fields of the observation and leaves the others."""

    def __init__(self, env: gymnasium.Env, fields: Sequence[str] | None = None) -> None:
        """Wraps `env`.

        Args:
          env: its observation space has a Box at each of the fields.
          fields: dotted paths into a nested observation; None for an observation that is one array.

        Raises:
          ValueError: there is no such field, it is named twice, or it is not a Box of the shape that the wrapper takes.
        """
        super().__init__(env)
        _check_names(self, fields or ())
        space = env.observation_space
        self._transforms: list[tuple[str, Callable[[Any], Any]]] = []
        for field in fields or [""]:
            space = transform_space(space, field, functools.partial(self._checked_space, field))
            self._transforms.append((field, functools.partial(self.transform, field)))
        self.observation_space = space

    def _checked_space(self, field: str, space: spaces.Space) -> spaces.Space:
        if not isinstance(space, spaces.Box):
            where = f"The field {field!r}" if field else "The observation"
            raise ValueError(
                f"{type(self).__name__} takes arrays. {where} is a {type(space).__name__}: name the arrays by `fields`."
            )
        return self.transform_box(space)

    def observation(self, observation: Any) -> Any:
        """The observation with the chosen fields transformed."""
        if isinstance(observation, list) and isinstance(self.env.observation_space, spaces.Box):
            observation = np.array(observation, self.env.observation_space.dtype)
        for field, transform in self._transforms:
            observation = transform_observation(observation, field, transform)
        return observation

    @abc.abstractmethod
    def transform_box(self, space: spaces.Box) -> spaces.Box:
        """The space of a transformed field."""

    @abc.abstractmethod
    def transform(self, field: str, value: Any) -> np.ndarray:
        """The transformed value of a field."""


@gin.configurable(module="alf.environments.wrappers")
class FrameStack(BaseObservationWrapper):
    """Joins the last `stack_size` observations of an episode along the channel axis, the newest last.

    Before that many steps were taken, the first observation of the episode stands for those that are missing. A picture
    without a channel axis gets one: [84, 84] becomes [84, 84, stack_size].
    """

    def __init__(
        self,
        env: gymnasium.Env,
        stack_size: int = 4,
        channel_order: str = "channels_last",
        fields: Sequence[str] | None = None,
    ) -> None:
        """Wraps `env`.

        Args:
          env: gives arrays of one to three axes.
          stack_size: observations in a stack, at least 1.
          channel_order: "channels_last" joins along the last axis, "channels_first" along the first.
          fields: see `BaseObservationWrapper`.

        Raises:
          ValueError: an argument is out of its range, or the environment has several agents.
        """
        agents.refuse("FrameStack", env.observation_space)
        if stack_size < 1 or channel_order not in CHANNEL_ORDERS:
            raise ValueError(
                f"FrameStack needs stack_size >= 1 and channel_order one of {CHANNEL_ORDERS}; got {stack_size} and "
                f"{channel_order!r}."
            )
        self._stack_size = stack_size
        self._last = channel_order == "channels_last"
        self._frames: dict[str, collections.deque[np.ndarray]] = {}
        super().__init__(env, fields)

    def _join(self, frames: Sequence[np.ndarray]) -> np.ndarray:
        axes = frames[0].ndim
        if self._last and axes > 1:
            # Channel by channel: to concatenate axes of one number each takes fifteen times as long.
            return np.stack([plane for frame in frames for plane in _planes(frame)], axis=-1)
        return np.stack(frames) if axes == 2 else np.concatenate(frames)

    def transform_box(self, space: spaces.Box) -> spaces.Box:
        if not space.shape:
            raise ValueError("FrameStack takes arrays of at least one axis; got shape (): name others by `fields`.")
        low, high = (self._join([bound] * self._stack_size) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)  # type: ignore[arg-type]  # Box declares fewer dtypes.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, and its stacks."""
        self._frames.clear()
        return super().reset(seed=seed, options=options)

    def transform(self, field: str, value: Any) -> np.ndarray:
        frame = np.array(value)  # The environment may write into its array again.
        if field not in self._frames:
            self._frames[field] = collections.deque([frame] * self._stack_size, self._stack_size)
        else:
            self._frames[field].append(frame)
        return self._join(self._frames[field])


def _planes(picture: np.ndarray) -> list[np.ndarray]:
    """The channels of a picture [height, width, channels], or itself where it has no axis of them."""
    return [picture] if picture.ndim == 2 else [picture[..., i] for i in range(picture.shape[-1])]


@gin.configurable(module="alf.environments.wrappers")
class FrameResize(BaseObservationWrapper):
    """Scales pictures, uint8 [height, width] or [height, width, channels], by the mean over areas."""

    def __init__(
        self, env: gymnasium.Env, width: int = 84, height: int = 84, fields: Sequence[str] | None = None
    ) -> None:
        """Wraps `env`.

        Args:
          env: gives pictures.
          width: of the result, in pixels.
          height: likewise.
          fields: see `BaseObservationWrapper`.

        Raises:
          ImportError: OpenCV is not installed.
          ValueError: see `BaseObservationWrapper`, or the environment has several agents; or a size below 1.
        """
        agents.refuse("FrameResize", env.observation_space)
        if width < 1 or height < 1:
            raise ValueError(f"FrameResize needs width and height >= 1; got {width} and {height}.")
        self._cv2 = import_cv2("FrameResize")
        self._size = (width, height)
        super().__init__(env, fields)

    def transform_box(self, space: spaces.Box) -> spaces.Box:
        width, height = self._size
        return spaces.Box(0, 255, (height, width, *_picture_shape(self, space)[2:]), np.uint8)

    def transform(self, field: str, value: Any) -> np.ndarray:
        picture = np.asarray(value)
        planes = np.atleast_3d(picture)
        groups = [planes[..., i : i + _MOST_CHANNELS] for i in range(0, planes.shape[2], _MOST_CHANNELS)]
        resized = [self._cv2.resize(group, self._size, interpolation=self._cv2.INTER_AREA) for group in groups]
        # OpenCV drops a single channel.
        return np.dstack(resized).reshape(*resized[0].shape[:2], *picture.shape[2:])


@gin.configurable(module="alf.environments.wrappers")
class FrameGrayScale(BaseObservationWrapper):
    """Turns pictures, uint8 [height, width, 3], gray, [height, width, 1], by luminance."""

    def __init__(self, env: gymnasium.Env, fields: Sequence[str] | None = None) -> None:
        """Wraps `env`; arguments and errors as in `FrameResize`."""
        agents.refuse("FrameGrayScale", env.observation_space)
        self._cv2 = import_cv2("FrameGrayScale")
        super().__init__(env, fields)

    def transform_box(self, space: spaces.Box) -> spaces.Box:
        shape = _picture_shape(self, space)
        if shape[2:] != (3,):
            raise ValueError(f"FrameGrayScale takes pictures in three colours; got shape {shape}.")
        return spaces.Box(0, 255, (*shape[:2], 1), np.uint8)

    def transform(self, field: str, value: Any) -> np.ndarray:
        return self._cv2.cvtColor(np.asarray(value), self._cv2.COLOR_RGB2GRAY)[..., np.newaxis]


def _picture_shape(wrapper: BaseObservationWrapper, space: spaces.Box) -> tuple[int, ...]:
    if space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        raise ValueError(
            f"{type(wrapper).__name__} takes pictures, uint8 of two or three axes; got {space.dtype} {space.shape}: name "
            "the pictures by `fields`."
        )
    return space.shape


@gin.configurable(module="alf.environments.wrappers")
class SelectFields(gymnasium.wrappers.FilterObservation):
    """Keeps some fields of a Dict observation, such as the picture of a MiniGrid without its text."""

    def __init__(self, env: gymnasium.Env, fields: Sequence[str]) -> None:
        """Wraps `env`.

        Args:
          env: its observation space is a Dict.
          fields: names to keep.

        Raises:
          ValueError: there is no such field, or the observation is no Dict.
        """
        if not isinstance(env.observation_space, spaces.Dict):
            kind = type(env.observation_space).__name__
            raise ValueError(f"SelectFields takes an observation that is a Dict; got {kind}: leave it out.")
        _check_names(self, fields)
        super().__init__(env, list(fields))


def _check_names(wrapper: gymnasium.Wrapper, fields: Sequence[str]) -> None:
    if isinstance(fields, str):
        raise ValueError(f"{type(wrapper).__name__}.fields={fields!r} must be a list of names: put it in brackets.")
    if len(set(fields)) < len(fields):
        raise ValueError(f"{type(wrapper).__name__}.fields={list(fields)} name one of them twice: name each once.")
