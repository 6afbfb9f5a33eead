"""The play command on a tiny trained run."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from alf.bin import command_line, play, train
from alf.trainers.run_index import Record, RunIndex
from tests.bin.running import copy_run, read_until, run_here, snapshot, start

pytestmark = pytest.mark.slow


def _play(root, *arguments):
    return run_here(play.main, f"--root_dir={root}", "--sleep_time_per_step=0", *arguments)


def test_returns_and_their_mean(trained, logged):
    assert _play(trained, "--num_episodes=3", "--random_seed=1") == 0
    returns = [float(line.rpartition(" ")[2]) for line in logged if line.startswith("Episode")]
    assert len(returns) == 3
    assert all(r >= 8 for r in returns)
    assert f"Mean return of 3 episodes: {np.mean(returns):.3f}" in "\n".join(logged)
    assert "ckpt-2" in "\n".join(logged)


def test_each_return_is_of_one_episode(trained, logged, monkeypatch):
    ends, steps = [], []
    told = play.logging.info

    def info(message, *arguments):
        if message.startswith("Episode"):
            ends.append(len(steps))
        told(message, *arguments)

    monkeypatch.setattr(play, "time", SimpleNamespace(sleep=steps.append))
    monkeypatch.setattr(play.logging, "info", info)
    assert _play(trained, "--num_episodes=3", "--sleep_time_per_step=1") == 0
    returns = [float(line.rpartition(" ")[2]) for line in logged if line.startswith("Episode")]
    assert returns == np.diff(ends, prepend=0).tolist(), "CartPole gives 1 a step"


def test_one_seed_plays_the_same_and_nothing_is_written(trained, logged):
    before = snapshot(trained)
    for _ in range(2):
        assert _play(trained, "--num_episodes=2", "--random_seed=7", "--epsilon_greedy=1.0") == 0
    episodes = [line for line in logged if line.startswith("Episode")]
    assert episodes[:2] == episodes[2:]
    assert snapshot(trained) == before


def test_an_episode_that_never_ends_has_no_return(trained, logged, monkeypatch):
    monkeypatch.setattr(play, "MAX_STEPS", 3)
    assert _play(trained, "--num_episodes=1") == 2
    assert logged[-1].startswith("An episode has not ended after 3 steps: give the environment a time limit")
    assert not [line for line in logged if "return" in line]


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


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_video_that_finds_no_room_is_told_in_a_sentence(trained, tmp_path, logged, suffix):
    pytest.importorskip("imageio.v2")
    path = tmp_path / f"v.{suffix}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Files may not grow beyond this: what a full disk does, for this process and its encoder.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        code = _play(trained, "--num_episodes=20", f"--record_file={path}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2, logged
    assert logged[-1].startswith(f"--record_file={path} cannot be written (")
    assert "\n" not in logged[-1]


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--checkpoint=1", "ckpt-1"),
        ("--checkpoint_name=ckpt-1", "ckpt-1"),
        ("--checkpoint={root}/train/algorithm/ckpt-1.index", "ckpt-1"),
    ],
)
def test_a_checkpoint_is_chosen(trained, logged, flag, name):
    assert _play(trained, "--num_episodes=1", flag.format(root=trained)) == 0
    assert next(line for line in logged if line.startswith("Playing")).endswith(f"{name}.")


def test_the_best_checkpoint(trained, tmp_path, logged):
    copy_run(trained, tmp_path, 1, 2)
    index = RunIndex.load(str(tmp_path))
    index.add(dataclasses.replace(index.find("1"), reward=7.0, kinds=["best"]))
    index.save()
    assert _play(tmp_path, "--num_episodes=1", "--checkpoint=best") == 0
    assert any("ckpt-1." in line for line in logged if line.startswith("Playing"))


def test_what_the_run_was_configured_by_wins_over_a_file_of_the_user(trained, tmp_path, logged):
    copy_run(trained, tmp_path, 2)
    mine = tmp_path / "mine.gin"
    mine.write_text("ActorDistributionNetwork.fc_layer_params = (7,)\n")
    assert _play(tmp_path, "--num_episodes=1") == 0, logged
    assert any(
        line.startswith(f"{tmp_path / 'configured.gin'}, by which") and f"over {mine};" in line for line in logged
    )
    # Training goes on by what has been edited since.
    longer = f"--root_dir={tmp_path}", "--gin_param=TrainerConfig.num_iterations=3"
    assert run_here(train.main, *longer) == 2
    assert "does not fit this run" in logged[-1]
    os.utime(mine, (1.0, 1.0))
    assert run_here(train.main, *longer) == 0, logged
    assert RunIndex.load(str(tmp_path)).latest().step == 3


def test_mistakes_are_told_in_a_sentence(trained, tmp_path, logged):
    assert run_here(play.main) == 2
    assert _play(tmp_path) == 2
    shutil.copy(trained / "configured.gin", tmp_path)
    assert _play(tmp_path) == 2
    for wrong in (
        "--record_file=v.avi",
        "--num_episodes=0",
        "--checkpoint=ckpt-77",
        f"--checkpoint={tmp_path}",
        "--max_wait_secs=-1",
        "--max_wait_secs=1",
    ):
        assert _play(trained, wrong) == 2
    assert _play(trained, "--checkpoint=periodic") == 0
    copy_run(trained, tmp_path / "none", status="finished")
    assert _play(tmp_path / "none", "--checkpoint=periodic") == 2
    assert logged[-1].startswith(
        f"There is no periodic checkpoint in {tmp_path / 'none' / 'train' / 'algorithm'}: train"
    )
    assert _play(trained, "--follow", "--checkpoint=1") == 2
    assert _play(trained, "--checkpoint=1", "--checkpoint_name=2") == 2
    nowhere = ["create_environment.env_name='Nowhere-v1'", "create_environment.vectorization=None"]
    assert _play(trained, *(f"--gin_param={b}" for b in nowhere)) == 2
    text = "\n".join(logged)
    for expected in (
        "--root_dir is missing",
        "There is no --gin_file",
        "must end in .mp4 or .gif",
        "There is no checkpoint in",
        "--num_episodes=0 must be at least 1",
        "there are: ckpt-1, ckpt-2",
        f"There is no checkpoint in {tmp_path}",
        "--max_wait_secs=-1.0 must be at least 0",
        "--max_wait_secs has no effect here",
        "leave --checkpoint=1 out",
        "mean the same: give one",
        "Gymnasium knows no environment 'Nowhere-v1'",
    ):
        assert expected in text


def test_follow_plays_each_newer_checkpoint_until_the_run_is_finished(trained, tmp_path, logged):
    copy_run(trained, tmp_path, 1)

    def train_on():
        while not any(line.startswith("Mean return") for line in logged):
            time.sleep(0.02)
        copy_run(trained, tmp_path, 2, status="finished")

    training = threading.Thread(target=train_on)
    training.start()
    assert _play(tmp_path, "--follow", "--num_episodes=1", "--max_wait_secs=30") == 0
    training.join()
    played = [line for line in logged if line.startswith("Playing")]
    assert [line.rpartition("/")[2] for line in played] == ["ckpt-1.", "ckpt-2."]
    assert any("The run is finished" in line for line in logged)


def test_follow_waits_no_longer_than_asked(trained, tmp_path, logged):
    shutil.copy(trained / "configured.gin", tmp_path)
    assert _play(tmp_path, "--follow", "--max_wait_secs=0.1") == 0
    assert "No new checkpoint came within 0.1 s." in logged


@pytest.mark.parametrize(("longest", "slept"), [(0.25, [0.25]), (1.0, [1.0]), (2.5, [1.0, 1.0, 0.5])])
def test_a_wait_is_as_long_as_asked_and_ends_with_a_look(longest, slept, tmp_path, monkeypatch, logged):
    class Clock:
        def __init__(self):
            self.slept = []

        def monotonic(self):
            return sum(self.slept)

        def sleep(self, secs):
            self.slept.append(secs)

    clock, looks = Clock(), []
    monkeypatch.setattr(play.trained, "time", clock)
    (tmp_path / "training_status.json").write_text("{")  # which is told of once
    wanted = looks.append  # Gives None: what is wanted never comes.
    assert play.trained.wait_for(str(tmp_path), wanted, poll_secs=1.0, max_wait_secs=longest) is None
    assert clock.slept == slept
    assert len(looks) == len(slept) + 1
    assert sum("it was made up from the directory" in line for line in logged) == 1


def test_follow_plays_a_run_that_is_begun_anew_meanwhile(tmp_path, monkeypatch):
    played = []

    def write(step, created, status):
        index = RunIndex(str(tmp_path))
        index.run["status"] = status
        index.add(Record(f"ckpt-{step}", step, files=[f"train/algorithm/ckpt-{step}.index"], created=created))
        index.save()

    def restore_listed(root_dir, algorithm, name):
        played.append(name)
        if len(played) == 1:
            write(10, "2001-02-03T04:05:06", "finished")

    monkeypatch.setattr(play.trained, "restore_listed", restore_listed)
    write(1000, "2001-02-03T04:00:00", "running")
    play.follow(str(tmp_path), None, None, max_wait_secs=5)
    assert played == ["ckpt-1000", "ckpt-10"]


def test_follow_survives_a_checkpoint_that_is_removed_meanwhile(trained, tmp_path, logged, monkeypatch):
    copy_run(trained, tmp_path, 1, 2)
    real = play.trained.restore

    def restore(root_dir, algorithm, which):
        if which == "ckpt-2":
            index = RunIndex.load(root_dir)
            index.remove(index.find("2"))
            index.run["status"] = "finished"
            index.save()
        return real(root_dir, algorithm, which)

    monkeypatch.setattr(play.trained, "restore", restore)
    assert _play(tmp_path, "--follow", "--num_episodes=1") == 0
    assert any("ckpt-2 is left out" in line for line in logged)


def test_interrupted_follow_ends_with_code_0(trained, tmp_path):
    copy_run(trained, tmp_path, 2)
    process = start("alf.bin.play", f"--root_dir={tmp_path}", "--follow", "--num_episodes=1", "--sleep_time_per_step=0")
    read_until(process, "Waiting for the next checkpoint")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert "Stopped after 1 checkpoints." in output


def test_use_cpu_hides_the_gpus(trained, logged):
    import tensorflow as tf

    assert _play(trained, "--num_episodes=1", "--use_cpu") == 0
    assert tf.config.get_visible_devices("GPU") == []
    assert any(line.startswith("--use_cpu: TensorFlow sees no GPU") for line in logged)


def test_restored_weights_are_those_of_the_checkpoint(trained):
    import gin
    import tensorflow as tf

    from alf.utils.gin_utils import parse_gin

    gin.clear_config()
    command_line.flags.FLAGS(["alf"])
    command_line.set_up()
    parse_gin([str(trained / "configured.gin")])
    env = play.trained.make_environment(0)
    algorithm = play.trained.make_algorithm(str(trained), env)
    place = trained / "train" / "algorithm"
    asked = {"1": 1, "ckpt-2": 2, str(place / "ckpt-1"): 1, str(trained): 2, "latest": 2}
    for which, step in asked.items():
        restored = play.trained.restore(str(trained), algorithm, which)
        assert (restored.name, restored.step) == (f"ckpt-{step}", step)
        reader = tf.train.load_checkpoint(str(place / f"ckpt-{step}"))
        saved = [reader.get_tensor(k) for k in reader.get_variable_to_shape_map() if k.startswith("algorithm")]
        for variable in algorithm.acting_variables():
            assert any(s.shape == variable.shape and np.array_equal(s, variable.numpy()) for s in saved)
    env.close()
    gin.clear_config()
