"""Moving pictures of evaluations in TensorBoard."""

from __future__ import annotations

import glob
import io
from types import SimpleNamespace

import imageio.v2 as imageio
import numpy as np
import pytest
import tensorflow as tf

from alf.metrics import episode_video
from alf.metrics.episode_video import TAG, EpisodeVideo, gif
from alf.metrics.summary_writer import SummaryWriter


def _step(last=False):
    return SimpleNamespace(next_step_type=np.array([2 if last else 1, 1]))


class _Screen:
    """Pictures that are one grey, brighter from one to the next."""

    def __init__(self, height=20, width=30, depth=3):
        self.drawn = 0
        self._shape = (height, width, depth)

    def __call__(self):
        self.drawn += 1
        return np.full(self._shape, 10 * self.drawn % 256, np.uint8)


def _images(folder):
    for path in glob.glob(f"{folder}/events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            yield from ((v.tag, event.step, v.image) for v in event.summary.value if v.HasField("image"))


def _play(video, screen, *lengths):
    video.begin()
    for length in lengths:
        for i in range(length):
            video.add(_step(i == length - 1), screen)


def _write(video, writer, step):
    picture = video.picture()
    if picture is not None:
        picture.write(writer, step)


def test_the_first_episode_of_row_0_is_shown(tmp_path):
    video, screen, writer = EpisodeVideo(stride=2), _Screen(), SummaryWriter(str(tmp_path))
    _play(video, screen, 7, 7)
    _write(video, writer, 12)
    writer.close()
    ((tag, step, image),) = _images(tmp_path)
    assert (tag, step, image.height, image.width) == (TAG, 12, 20, 30)
    frames = imageio.mimread(io.BytesIO(image.encoded_image_string))
    # Steps 0, 2, 4 and 6 of seven.
    assert [int(frame[0, 0, 0]) for frame in frames] == [10, 20, 30, 40]
    assert screen.drawn == 4


def test_long_episodes_are_cut_and_large_pictures_thinned_out(tmp_path):
    video, screen, writer = (
        EpisodeVideo(stride=1, max_frames=3, max_side=50),
        _Screen(120, 160, 4),
        SummaryWriter(str(tmp_path)),
    )
    _play(video, screen, 100)
    _write(video, writer, 1)
    _write(video, writer, 2)
    writer.close()
    ((_, step, image),) = _images(tmp_path)
    assert (step, image.height, image.width) == (1, 30, 40)
    assert screen.drawn == len(imageio.mimread(io.BytesIO(image.encoded_image_string))) == 3


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])])
def test_every_so_many_evaluations(tmp_path, every, expected):
    video, writer = EpisodeVideo(every), SummaryWriter(str(tmp_path))
    for evaluation in range(5):
        _play(video, _Screen(), 2)
        _write(video, writer, evaluation)
    writer.close()
    assert [step for _, step, _ in _images(tmp_path)] == expected


def test_environments_without_pictures_are_asked_once(tmp_path, logged):
    def refuse():
        asked.append(1)
        raise NotImplementedError("no picture")

    def fail():
        asked.append(1)
        raise OSError("no display")

    def nothing():
        asked.append(1)

    asked: list[int] = []
    for render, told in ((refuse, 0), (nothing, 0), (fail, 1)):
        asked.clear()
        logged.clear()
        video, writer = EpisodeVideo(), SummaryWriter(str(tmp_path / "none"))
        for _ in range(2):
            _play(video, render, 3)
            _write(video, writer, 1)
        assert len(asked) == 1
        assert len(logged) == told
    assert "no picture could be drawn: OSError: no display" in logged[0]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("pictures", "shades"),
    [
        ([np.full((20, 30), shade, np.uint8) for shade in (40, 80)], [40, 80]),
        ([np.full((20, 30, 1), shade, np.uint8) for shade in (40, 80)], [40, 80]),
        ([np.full((20, 30, 3), shade, np.int64) for shade in (40, 80)], [40, 80]),
        ([np.full((20, 30, 3), shade, np.float32) for shade in (40, 300)], [40, 255]),
        # As plots that grow; what is of another size than the first is left out.
        ([np.full((20, 30 + (i == 1), 3), shade, np.uint8) for i, shade in enumerate((40, 80, 120))], [40, 120]),
    ],
    ids=["gray", "one channel", "int64", "float32", "growing"],
)
def test_pictures_of_other_kinds_are_shown(pictures, shades):
    video, drawn = EpisodeVideo(stride=1), iter(pictures)
    _play(video, lambda: next(drawn), len(pictures))
    picture = video.picture()
    frames = imageio.mimread(io.BytesIO(picture.encoded))
    assert [int(frame[0, 0, 0]) for frame in frames] == shades
    assert all(len(np.unique(frame[..., :3])) == 1 for frame in frames)
    assert (picture.height, picture.width) == (20, 30)


@pytest.mark.parametrize("drawn", ["text", np.zeros((4, 5, 2)), np.zeros((0, 5, 3)), np.zeros((1, 4, 5, 3)), [None]])
def test_what_is_no_picture_is_told_once(drawn, logged):
    video = EpisodeVideo(stride=1)
    for _ in range(2):
        _play(video, lambda: drawn, 3)
        assert video.picture() is None
    assert len(logged) == 1
    assert "Evaluations have no video, since no picture could be drawn" in logged[0]


def test_what_cannot_be_encoded_is_told_of(logged, monkeypatch):
    def broken(*args):
        raise OSError("no space")

    monkeypatch.setattr(episode_video, "gif", broken)
    video = EpisodeVideo()
    _play(video, _Screen(), 3)
    assert video.picture() is None
    assert "OSError: no space" in logged[0]


def test_numbers_that_are_too_small():
    for name in ("every", "stride", "max_frames", "max_side"):
        with pytest.raises(ValueError, match=f"EpisodeVideo.{name}=-1 must be at least"):
            EpisodeVideo(**{name: -1})


def test_a_gif_moves_at_the_speed_asked_for():
    reader = imageio.get_reader(io.BytesIO(gif([np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 9, np.uint8)], 20.0)))
    assert reader.get_meta_data()["duration"] == pytest.approx(50)


def test_tensorboard_reads_the_picture(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    video, writer = EpisodeVideo(), SummaryWriter(str(tmp_path))
    _play(video, _Screen(), 4)
    _write(video, writer, 3)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (image,) = events.Images(TAG)
    assert (image.step, image.height, image.width) == (3, 20, 30)
    assert image.encoded_image_string.startswith(b"GIF89a")
