"""What a run does where a device, or a disk, has no room left."""

from __future__ import annotations

import pytest
import tensorflow as tf

from alf.metrics import tables
from alf.metrics.episode_rows import EpisodeRows
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.saving import Saver


def test_weights_that_cannot_be_looked_at_are_a_failing_save(small_config, monkeypatch, logged):
    check, errors = Saver.check_weights, [tf.errors.ResourceExhaustedError(None, None, "full")]

    def checking(self):
        if errors:
            raise errors.pop()
        check(self)

    monkeypatch.setattr(Saver, "check_weights", checking)
    with small_config(SyncOffPolicyTrainer, num_iterations=2, checkpoint_interval=1).create_trainer() as trainer:
        trainer.train()
    assert not errors
    assert trainer.counters.iterations == 2
    (told,) = [line for line in logged if "could not be written" in line]
    assert told.startswith("The checkpoint after iteration 1 could not be written (ResourceExhaustedError: full")


@pytest.mark.parametrize("most", [float("inf"), 3.0])
def test_a_table_of_episodes_that_cannot_be_cut_stays_and_its_numbers_go_on(tmp_path, monkeypatch, logged, most):
    def full(path):
        raise OSError(28, "No space left on device")

    path = str(tmp_path / "episodes.csv")
    rows = EpisodeRows(path, 1)
    rows.append({"global_step": step, "episode": step + 1} for step in range(5))
    rows.flush()
    monkeypatch.setattr(tables, "_replacement", full)
    assert rows.resume("episode", 2 if most > 3 else 9, most) == 5
    rows.append([{"global_step": 3, "episode": 6}])
    rows.close()
    assert [row["episode"] for row in tables.read_csv(path)] == ["1", "2", "3", "4", "5", "6"]
    assert len([line for line in logged if "episodes.csv cannot be written" in line]) == 1
