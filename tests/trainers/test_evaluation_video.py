"""Evaluations of an environment that draws are shown in TensorBoard; others are not, and training stays the same."""

from __future__ import annotations

import glob
import io

import gin
import imageio.v2 as imageio
import numpy as np
import pytest
import tensorflow as tf

from alf.metrics.episode_video import TAG
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer


def _images(folder):
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            yield from ((event.step, v.image) for v in event.summary.value if v.tag == TAG)


@pytest.mark.slow
def test_evaluations_with_and_without_pictures(small_config, tmp_path):
    weights = []
    for render_mode in ("rgb_array", None):
        gin.bind_parameter("suite_gym.load.render_mode", render_mode)
        root = tmp_path / str(render_mode)
        settings = {"root_dir": str(root), "evaluate": True, "eval_interval": 1, "num_eval_episodes": 2}
        trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
        trainer.train()
        weights.append([v.numpy() for v in trainer.algorithm.variables])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    images = list(_images(tmp_path / "rgb_array" / "eval"))
    assert [step for step, _ in images] == [1, 2, 3]
    frames = imageio.mimread(io.BytesIO(images[0][1].encoded_image_string))
    assert len(frames) > 2
    # The pole moves.
    assert np.any(frames[0][..., :3] != frames[-1][..., :3])
    assert not list(_images(tmp_path / "None" / "eval"))
