"""The first episode of an evaluation as a moving picture in TensorBoard."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import numpy as np
from absl import logging

from alf.data_structures import StepType
from alf.metrics.summary_writer import SummaryWriter

TAG = "Video/evaluation"
_LAST = int(StepType.LAST)
_FPS = 30


class Picture(NamedTuple):
    """A moving picture: `encoded` as a GIF, its `height` and `width` in pixels."""

    encoded: bytes
    height: int
    width: int

    def write(self, writer: SummaryWriter, step: int) -> None:
        """Writes it; not flushed."""
        writer.image(TAG, self.encoded, self.height, self.width, step)


@gin.configurable(module="alf")
class EpisodeVideo:
    """Gathers pictures of row 0 from the begin of an evaluation to the end of its first episode.

    It does so where the environment has pictures: where it is made with `suite_gym.load.render_mode = 'rgb_array'`.
    Elsewhere it costs nothing.
    """

    def __init__(self, every: int = 1, stride: int = 2, max_frames: int = 200, max_side: int = 200) -> None:
        """Creates it.

        Args:
          every: of so many evaluations one is shown; 0 shows none.
          stride: of so many steps one is drawn.
          max_frames: a longer episode is cut there.
          max_side: larger pictures are thinned out to at most so many pixels a side.

        Raises:
          ValueError: a number is too small.
        """
        for name, value, least in (
            ("every", every, 0),
            ("stride", stride, 1),
            ("max_frames", max_frames, 1),
            ("max_side", max_side, 8),
        ):
            if value < least:
                raise ValueError(f"EpisodeVideo.{name}={value} must be at least {least}.")
        self._every, self._stride, self._max_frames, self._max_side = every, stride, max_frames, max_side
        self._evaluations = 0
        self._possible = every > 0
        self._frames: list[np.ndarray] = []
        self._step = 0
        self._recording = False

    def begin(self) -> None:
        """An evaluation begins."""
        self._recording = self._possible and self._evaluations % self._every == 0
        self._evaluations += 1
        self._frames, self._step = [], 0

    def add(self, trajectory: Any, render: Callable[[], np.ndarray | None]) -> None:
        """Takes the picture after a step.

        Args:
          trajectory: the step, next_step_type int32 [B].
          render: gives a picture of row 0, uint8 [height, width, 3], or None. Gray ones [height, width] and
            [height, width, 1] and others that `rgb` takes do too; one of another size than the first is left out.
        """
        if not self._recording:
            return
        if self._step % self._stride == 0:
            self._take(render)
        self._step += 1
        if np.asarray(trajectory.next_step_type)[0] == _LAST or len(self._frames) >= self._max_frames:
            self._recording = False

    def _take(self, render: Callable[[], np.ndarray | None]) -> None:
        try:
            drawn = render()
            frame = None if drawn is None else _thinned_out(drawn, self._max_side)
        except NotImplementedError:
            frame = None
        # What a simulator raises that cannot draw here, such as without a display, is its own affair.
        except Exception as e:
            _say_that_none_is_shown(e)
            frame = None
        if frame is None:
            self._possible = self._recording = False
        elif not self._frames or frame.shape == self._frames[0].shape:
            self._frames.append(frame)

    def picture(self) -> Picture | None:
        """What was gathered since `begin`, if anything was; once."""
        frames, self._frames = self._frames, []
        if not frames:
            return None
        height, width = frames[0].shape[:2]
        try:
            return Picture(gif(frames, _FPS / self._stride), height, width)
        # An evaluation is worth more than its picture.
        except Exception as e:
            _say_that_none_is_shown(e)
            self._possible = False
            return None


def _say_that_none_is_shown(error: Exception) -> None:
    logging.warning("Evaluations have no video, since no picture could be drawn: %s: %s", type(error).__name__, error)


def rgb(drawn: Any) -> np.ndarray:
    """What an environment has drawn as a picture, uint8 [height, width, 3], which may share its memory.

    Args:
      drawn: a picture in colours, with or without opacity, or a gray one, [height, width] or [height, width, 1]; numbers
        from 0 to 255, or fractions or bools from 0 to 1.

    Raises:
      ValueError: it is no picture.
    """
    picture = np.atleast_3d(drawn)
    if picture.ndim != 3 or picture.shape[2] == 2 or not picture.size or picture.dtype.kind not in "biuf":
        raise ValueError(
            f"Environment.render must return uint8 [height, width, 3]; it returned {picture.dtype} {np.shape(drawn)}."
        )
    picture = picture[..., :3]
    if picture.dtype != np.uint8:
        scale = 255 if picture.dtype.kind in "bf" and picture.max() <= 1 else 1
        picture = np.clip(picture * scale, 0, 255).astype(np.uint8)
    return np.broadcast_to(picture, (*picture.shape[:2], 3))


def _thinned_out(drawn: Any, max_side: int) -> np.ndarray:
    """A picture as uint8 [height, width, 3] of at most `max_side` pixels a side, in an array of its own.

    Raises:
      ValueError: it is no picture.
    """
    picture = rgb(drawn)
    thin = max(1, -(-max(picture.shape[:2]) // max_side))
    return np.array(picture[::thin, ::thin], order="C")


def gif(frames: list[np.ndarray], fps: float) -> bytes:
    """An animated picture of frames uint8 [height, width, 3], which is repeated for ever."""
    import imageio.v2 as imageio

    file = io.BytesIO()
    imageio.mimwrite(file, frames, format="GIF", duration=1000.0 / fps, loop=0)  # type: ignore[arg-type]
    return file.getvalue()
