"""Videos of what environments draw, of whichever size and kind."""

from __future__ import annotations

import numpy as np
import pytest

from alf.bin.video import Video, VideoError

imageio = pytest.importorskip("imageio.v2")


class _Screen:
    def __init__(self, pictures):
        self._pictures = iter(pictures)

    def render(self):
        return next(self._pictures)


def _record(path, pictures):
    video = Video(_Screen(pictures), str(path))
    try:
        for _ in pictures:
            video.add(None)
    finally:
        video.close()
    return [np.asarray(frame)[..., :3] for frame in imageio.mimread(path)]


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [
        ((65, 63, 3), np.uint8, 1),
        ((64, 33, 3), np.uint8, 1),
        ((64, 32), np.uint8, 1),
        ((64, 32, 1), np.uint8, 1),
        ((64, 32, 4), np.uint8, 1),
        ((64, 32, 3), np.int64, 1),
        ((64, 32, 3), np.float32, 1),
        ((64, 32, 3), np.float64, 1 / 255),
    ],
)
def test_pictures_of_every_size_and_kind_are_written(tmp_path, suffix, shape, dtype, scale):
    shades = (40, 120, 200)
    pictures = [np.full(shape, shade * scale, dtype) for shade in shades]
    pictures[1][: shape[0] // 2] = 200 * scale
    frames = _record(tmp_path / f"v.{suffix}", pictures)
    height, width = shape[:2]
    # The encoder of .mp4 takes even sizes only.
    even = (height + height % 2, width + width % 2)
    assert {frame.shape for frame in frames} == {(*(even if suffix == "mp4" else (height, width)), 3)}
    assert [float(frame[height - 1, width - 1, 0]) for frame in frames] == pytest.approx(shades, abs=4)
    assert float(frames[1][0, 0, 0]) == pytest.approx(200, abs=4)


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
@pytest.mark.parametrize("drawn", [np.zeros((4, 5, 2), np.uint8), "text", np.zeros((2, 4, 5, 3), np.uint8)])
def test_what_is_no_picture_is_told(tmp_path, suffix, drawn):
    with pytest.raises(VideoError, match=r"--record_file: Environment.render must return uint8 \[height, width, 3\]"):
        _record(tmp_path / f"v.{suffix}", [drawn])


def test_pictures_of_several_sizes_are_for_a_gif(tmp_path):
    pictures = [np.full((20, 30 + 4 * i, 3), 60 * i, np.uint8) for i in range(2)]
    with pytest.raises(VideoError, match=r"a picture is 34 x 20, those before it 30 x 20, .* give a \.gif\."):
        _record(tmp_path / "v.mp4", pictures)
    assert len(_record(tmp_path / "v.gif", pictures)) == 2
