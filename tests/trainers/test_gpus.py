"""What a GPU would be used for, told by settings alone: there is none where the tests run."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf
from absl import logging

from alf.bin import command_line
from alf.trainers import seeds


@pytest.mark.parametrize(("seed", "gpu", "expected"), [(1, True, [True]), (None, True, []), (1, False, [])])
def test_with_a_seed_they_sum_in_the_same_order(monkeypatch, seed, gpu, expected):
    asked: list[bool] = []
    monkeypatch.setattr(seeds, "has_gpu", lambda: gpu)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append(True))
    seeds.spawn(seed)
    assert asked == expected


@pytest.mark.parametrize(
    ("gpus", "driver", "visible", "told"),
    [
        (["one", "two"], True, None, "INFO TensorFlow sees 2 GPU(s)"),
        ([], True, None, "WARNING This machine has a GPU that TensorFlow cannot use"),
        ([], True, "0", "WARNING This machine has a GPU that TensorFlow cannot use"),
        ([], True, "", None),
        ([], True, "-1", None),
        ([], False, None, None),
    ],
)
def test_commands_say_whether_one_is_used(tmp_path, monkeypatch, gpus, driver, visible, told):
    command_line.flags.FLAGS(["alf"])
    device = tmp_path / "nvidia0"
    if driver:
        device.touch()
    monkeypatch.setattr(command_line, "_NVIDIA_GPU", str(device))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(logging, level, lambda text, *a, level=level: lines.append(f"{level.upper()} {text % a}"))
    command_line._set_up_devices()
    assert [line.startswith(told) for line in lines] == [True] if told else not lines


def test_several_runs_share_one():
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
