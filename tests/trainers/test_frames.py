"""Environment steps are decisions of the agent; frames are told beside them."""

from __future__ import annotations

import csv

import gin
import pytest

from alf.environments.wrappers import FrameSkip
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer


@pytest.mark.parametrize(
    ("trainer", "skip"), [(SyncOffPolicyTrainer, 1), (SyncOffPolicyTrainer, 3), (AsyncOffPolicyTrainer, 3)]
)
def test_frames_are_steps_times_the_frame_skip(small_config, tmp_path, trainer, skip):
    gin.bind_parameter("suite_gym.load.gym_env_wrappers", (FrameSkip,))
    gin.bind_parameter("FrameSkip.skip", skip)
    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)
    small_config(trainer, summary_interval=1).create_trainer().train()
    with open(tmp_path / "run" / "train" / "stats.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    if skip == 1:
        assert "Metrics/EnvironmentFrames" not in rows[0]
        return
    for row in rows:
        frames, steps = float(row["Metrics/EnvironmentFrames"]), float(row["Metrics/EnvironmentSteps"])
        # The asynchronous driver may count a segment between the two.
        assert frames == skip * steps or (trainer is AsyncOffPolicyTrainer and 0 <= frames < skip * steps)


def test_a_run_tells_the_frames_of_its_own_environments(small_config, tmp_path):
    gin.bind_parameter("suite_gym.load.gym_env_wrappers", (FrameSkip,))
    gin.bind_parameter("FrameSkip.skip", 3)
    first = small_config(SyncOffPolicyTrainer, summary_interval=1).create_trainer()
    first.initialize()
    gin.bind_parameter("FrameSkip.skip", 1)
    with small_config(SyncOffPolicyTrainer, root_dir=str(tmp_path / "other")).create_trainer() as second:
        second.initialize()
        first.train()
    with open(tmp_path / "run" / "train" / "stats.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert float(row["Metrics/EnvironmentFrames"]) == 3 * float(row["Metrics/EnvironmentSteps"]) > 0
