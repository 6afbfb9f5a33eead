"""The play command on a tiny trained run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from absl import logging

from alf.bin import play, train
from tests.bin.running import SMALL, run_here


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Directory of a run of two iterations."""
    root = tmp_path_factory.mktemp("trained")
    settings = [
        f"--gin_param={b}" for b in (*SMALL, "TrainerConfig.num_iterations=2", "TrainerConfig.checkpoint_interval=1")
    ]
    assert run_here(train.main, f"--root_dir={root}", "--gin_file=async_ppo_cart_pole", *settings) == 0
    return root


@pytest.fixture
def logged(monkeypatch):
    """Everything that is logged, as text."""
    lines = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logging, level, lambda text, *args: lines.append(str(text) % args if args else str(text)))
    return lines


def _play(root, *arguments):
    return run_here(play.main, f"--root_dir={root}", "--sleep_time_per_step=0", *arguments)


def test_returns_and_their_mean(trained, logged):
    assert _play(trained, "--num_episodes=3", "--random_seed=1") == 0
    returns = [float(line.rpartition(" ")[2]) for line in logged if line.startswith("Episode")]
    assert len(returns) == 3
    assert all(r >= 8 for r in returns)
    assert f"Mean return of 3 episodes: {np.mean(returns):.3f}" in "\n".join(logged)
    assert "ckpt-2" in "\n".join(logged)


def test_one_seed_plays_the_same(trained, logged):
    for _ in range(2):
        assert _play(trained, "--num_episodes=2", "--random_seed=7", "--epsilon_greedy=1.0") == 0
    episodes = [line for line in logged if line.startswith("Episode")]
    assert episodes[:2] == episodes[2:]


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_video_is_readable(trained, tmp_path, logged, suffix):
    imageio = pytest.importorskip("imageio.v2")
    path = tmp_path / "videos" / f"v.{suffix}"
    assert _play(trained, "--num_episodes=1", f"--record_file={path}") == 0, logged
    length = int(float(next(line for line in logged if line.startswith("Episode")).rpartition(" ")[2]))
    frames = [np.asarray(f) for f in imageio.get_reader(path)]
    # A GIF keeps no picture that is like the one before.
    assert len(frames) == length if suffix == "mp4" else 0 < len(frames) <= length
    assert frames[0].shape[:2] == (400, 600)
    assert frames[0].std() > 0


def test_a_checkpoint_by_name(trained, logged):
    assert _play(trained, "--num_episodes=1", "--checkpoint_name=ckpt-1") == 0
    assert "ckpt-1" in "\n".join(logged)
    assert _play(trained, "--checkpoint_name=ckpt-77") == 2
    assert "there are: ckpt-1, ckpt-2" in "\n".join(logged)


def test_mistakes_are_told_in_a_sentence(trained, tmp_path, logged):
    assert run_here(play.main) == 2
    assert _play(tmp_path) == 2
    assert _play(trained, "--record_file=v.avi") == 2
    shutil.copy(trained / "configured.gin", tmp_path)
    assert _play(tmp_path) == 2
    text = "\n".join(logged)
    for expected in ("--root_dir is missing", "There is no --gin_file", "must end in .mp4 or .gif", "no checkpoint in"):
        assert expected in text
