"""Stacks of frames that are stored as single frames and put together again when they are read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import Experience, StepType
from alf.utils import nest_utils
from alf.utils.value_kinds import is_scalar

# Steps whose stacks are all looked at, to find out whether they are what they are taken for.
_CHECKED_STEPS = 500
# By how many bytes they hold.
_WORDS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


@dataclasses.dataclass
class FrameStacks:
    """Which leaves of a step are stacks of k frames, of which only the newest is stored.

    The k - 1 frames before it are those of the steps before, but for an episode's first steps: there its first frame
    stands for the missing ones, as frame stacking wrappers do it.

    Attributes:
      size: k; 1 for none.
      axis: of the frames in an observation of rank 3, the newest last.
      spec: Experience of specs of one step, stacks whole.
      fields: dotted paths of the observations that are stacks; None where only one can be.
    """

    size: int
    axis: int
    spec: Experience
    fields: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Finds the stacks; ValueError when there are none where there should be, or it is not said which they are."""
        if not is_scalar(self.size, int) or self.size < 1 or self.axis not in (-3, -2, -1):
            raise ValueError(
                "ReplayBuffer needs frame_stack >= 1, a whole number, and a frame_axis of -3, -2 or -1, got "
                f"{self.size!r} and {self.axis!r}."
            )
        self.size = int(self.size)
        self._to_check = _CHECKED_STEPS
        # By the leaves of an observation: the dotted path to each, and whether it is a stack.
        self._paths = [".".join(path) for path, _ in nest_utils.paths(self.spec.observation)]
        stacks = self._stack_paths() if self.size > 1 else []
        self._is_stack = [path in stacks for path in self._paths]
        marks = self.spec._replace(**{name: _marks(getattr(self.spec, name), False) for name in self.spec._fields})
        marks = marks._replace(observation=tf.nest.pack_sequence_as(self.spec.observation, self._is_stack))
        self.stacked: list[bool] = tf.nest.flatten(marks)

    def _stack_paths(self) -> Sequence[str]:
        """The paths of the stacks."""
        leaves = zip(self._paths, tf.nest.flatten(self.spec.observation), strict=True)
        fit = [path for path, x in leaves if x.shape.rank == 3 and x.shape[self.axis] % self.size == 0]
        if not fit:
            raise ValueError(
                f"ReplayBuffer.frame_stack={self.size}: no observation of rank 3 has a multiple of {self.size} frames "
                f"along axis {self.axis}; there are {self.spec.observation}."
            )
        if self.fields is None and len(fit) > 1:
            raise ValueError(
                f"ReplayBuffer.frame_stack={self.size}: {' and '.join(map(repr, fit))} have a multiple of {self.size} frames "
                f"along axis {self.axis}: name those that are by ReplayBuffer.frame_stack_fields."
            )
        if self.fields is not None and (not self.fields or not set(self.fields) <= set(fit)):
            raise ValueError(
                f"ReplayBuffer.frame_stack_fields={list(self.fields)} must be observations of rank 3 with a multiple of "
                f"{self.size} frames along axis {self.axis}: name some of {', '.join(map(repr, fit))}."
            )
        return fit if self.fields is None else self.fields

    def stored_specs(self) -> list[tf.TensorSpec]:
        """Specs of the leaves as they are stored."""
        specs = []
        for spec, stack in zip(tf.nest.flatten(self.spec), self.stacked, strict=True):
            shape = spec.shape.as_list()
            if stack:
                shape[self.axis] //= self.size
            specs.append(tf.TensorSpec(shape, spec.dtype))
        return specs

    def stored(self, exp: Experience) -> list[tf.Tensor]:
        """The leaves of experience, of any leading axes, as they are stored; traceable."""
        leaves = tf.nest.flatten(exp)
        return [tf.split(x, self.size, self.axis)[-1] if s else x for x, s in zip(leaves, self.stacked, strict=True)]

    def check(self, exp: Experience) -> None:
        """Looks at experience [Q, T, B, ...] that is stored: the first steps of episodes, and all of the first 500 steps.

        Raises:
          ValueError: an observation is not put together from the frames of the steps before.
        """
        if self.size == 1:
            return
        if self._to_check > 0:
            self._check_all(exp)
            return
        # Episodes may be long and streams many: what is left in a stack at a reset shows as late as here.
        begins = np.asarray(exp.step_type) == StepType.FIRST
        if begins.any():
            for path, x in self._stacks_of(exp.observation):
                frames = self._split(np.asarray(x)[begins], 1)
                self._refuse(path, (frames[:, :-1] != frames[:, -1:]).any())

    def _check_all(self, exp: Experience) -> None:
        """Looks at all steps, and at the bootstrap behind them, if there is one."""
        seen = (exp.step_type, exp.observation)
        if exp.bootstrap != ():
            after = exp.bootstrap.time_step
            with_last = lambda x, row: np.concatenate([x, np.asarray(row)[:, np.newaxis]], 1)  # noqa: E731
            seen = tf.nest.map_structure(with_last, seen, (after.step_type, after.observation))
        step_type = np.asarray(seen[0])
        self._to_check -= step_type.size
        for path, x in self._stacks_of(seen[1]):
            frames = self._split(np.asarray(x), 3)
            older = frames[:, :, :, :-1]
            # Nothing is known of what was before the first of these steps.
            before = np.concatenate([older[:, :1], frames[:, :-1, :, 1:]], axis=1)
            first = (step_type == StepType.FIRST)[..., np.newaxis, np.newaxis, np.newaxis, np.newaxis]
            of_a_step = tuple(range(3, frames.ndim))
            wrong = (older != np.where(first, frames[:, :, :, -1:], before)).any(of_a_step)
            # An environment that was built anew ended its episode by showing the last stack again, once, or twice where
            # other rows of its batch had to begin first.
            same = (frames[:, 1:] == frames[:, :-1]).all(of_a_step)
            ends = same & (step_type[:, 1:] == StepType.LAST)
            ends_next = np.concatenate([ends[:, 1:], np.ones_like(ends[:, :1])], axis=1)
            wrong[:, 1:] &= ~(ends | (same & (step_type[:, 1:] == StepType.MID) & ends_next))
            self._refuse(path, wrong.any())

    def _stacks_of(self, observation: Any) -> Iterator[tuple[str, Any]]:
        """The paths and values of the stacks."""
        for path, is_stack, x in zip(self._paths, self._is_stack, tf.nest.flatten(observation), strict=True):
            if is_stack:
                yield path, x

    def _split(self, stacks: np.ndarray, axis: int) -> np.ndarray:
        """The frames of stacks, along a new axis."""
        return np.stack(np.split(stacks, self.size, self.axis), axis)

    def _refuse(self, path: str, wrong: bool) -> None:
        if wrong:
            raise ValueError(
                f"ReplayBuffer.frame_stack={self.size}: observations{f' {path!r}' if path else ''} along axis {self.axis} "
                "are not the frames of the last steps, with the first frame of an episode in the place of missing ones: "
                "set frame_stack=1, the right frame_axis, or what is a stack by frame_stack_fields."
            )

    def stacks(self, frames: tf.Tensor, step_type: tf.Tensor) -> tf.Tensor:
        """Puts stacks together; traceable.

        Args:
          frames: [b, k - 1 + L, ...], consecutive steps as stored.
          step_type: int32 [b, k - 1 + L], of these.

        Returns:
          [b, L, ...], the stacks of the last L of them.
        """
        total = step_type.shape[1]
        at = tf.range(total)[tf.newaxis]
        began = tf.where(step_type == StepType.FIRST, at, -1)
        # The newest FIRST at or before each step.
        episode = tf.stack([tf.reduce_max(began[:, : i + 1], 1) for i in range(self.size - 1, total)], 1)
        layers = [
            tf.gather(frames, tf.maximum(at[:, self.size - 1 :] - back, episode), batch_dims=1)
            for back in reversed(range(self.size))
        ]
        return _side_by_side(layers, self.axis)


def _side_by_side(layers: list[tf.Tensor], axis: int) -> tf.Tensor:
    """`tf.concat`, which copies single bytes one at a time: single bytes of 2, 4 or 8 layers are written as one word."""
    word = _WORDS.get(len(layers))
    if axis != -1 or word is None or layers[0].dtype != tf.uint8 or layers[0].shape[-1] != 1:
        return tf.concat(layers, axis)
    wide = [tf.cast(tf.squeeze(x, -1), word) for x in layers]
    # The first layer comes first in memory: it is the lowest byte. The highest one wraps around into the sign.
    return tf.bitcast(functools.reduce(lambda high, low: 256 * high + low, reversed(wide)), tf.uint8)


def _marks(nest: Any, mark: bool) -> Any:
    return tf.nest.map_structure(lambda _: mark, nest)
