"""Videos of an environment, a picture a step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FPS = 30
SUFFIXES = (".mp4", ".gif")


class VideoError(RuntimeError):
    """The environment gives no pictures, or they cannot be written."""


class Video:
    """Pictures of row 0, one a step, encoded by the suffix of a file as they come; a driver's observer."""

    def __init__(self, env: Any, path: str) -> None:
        """Opens the file.

        Args:
          env: batched environment that renders.
          path: of the file, .mp4 or .gif; its directory is created.

        Raises:
          VideoError: the file cannot be made.
        """
        import imageio.v2 as imageio

        self._env, self._path = env, path
        self._begun = False
        self._is_gif = path.lower().endswith(".gif")
        self._shape: tuple[int, ...] | None = None
        with self._told():
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            if self._is_gif:
                self._writer = imageio.get_writer(path, mode="I", duration=1000 / FPS, loop=0)
            else:
                self._writer = imageio.get_writer(path, mode="I", fps=FPS, macro_block_size=1)

    def add(self, trajectory: Any) -> None:
        """Takes the picture after a step.

        Raises:
          VideoError: there is none, it is no picture, an .mp4 cannot have it beside those before, or it cannot be written.
        """
        import numpy as np

        from alf.metrics.episode_video import rgb

        del trajectory
        try:
            frame = self._env.render()
        except NotImplementedError as e:
            raise VideoError(
                f"--record_file: {str(e) or 'the environment has no pictures.'} Leave the flag out, or use an environment that "
                "renders rgb_array."
            ) from e
        if frame is None:
            raise VideoError("--record_file: the environment renders nothing; it needs render_mode='rgb_array'.")
        try:
            picture = rgb(frame)
        except ValueError as e:
            raise VideoError(f"--record_file: {e}") from e
        if not self._is_gif:
            # The encoder halves the resolution of colours.
            height, width = picture.shape[:2]
            picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
            self._shape = self._shape or picture.shape
            if picture.shape != self._shape:
                raise VideoError(
                    f"--record_file={self._path}: a picture is {picture.shape[1]} x {picture.shape[0]}, those before it "
                    f"{self._shape[1]} x {self._shape[0]}, and those of an .mp4 have one size: give a .gif."
                )
        with self._told():
            self._writer.append_data(picture)
        self._begun = True

    def close(self) -> None:
        """Completes the file.

        Raises:
          VideoError: it cannot be written.
        """
        import imageio.v2 as imageio

        with self._told():
            self._writer.close()
            if self._begun:
                # How the encoder ended is not told. A file without its end cannot be opened.
                imageio.get_reader(self._path).close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            # An encoder that ended is told with its command line and output, over many lines.
            why = e.strerror or "the encoder ended"
            raise VideoError(
                f"--record_file={self._path} cannot be written ({why}): make room, or give a path that can."
            ) from e


def marked(path: str, mark: str) -> str:
    """`path` with `mark` before its suffix: dir/v.mp4 and ckpt-3 give dir/v-ckpt-3.mp4."""
    name = Path(path)
    return str(name.with_name(f"{name.stem}-{mark}{name.suffix}"))


def render_without_display() -> None:
    """Makes the usual simulators render into memory, unless the user has chosen otherwise."""
    for name, value in (("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy"), ("MUJOCO_GL", "egl")):
        os.environ.setdefault(name, value)
