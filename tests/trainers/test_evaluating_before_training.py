"""A resumed run that is evaluated before it trains on: what the stretch behind its checkpoint has written is gone."""

from __future__ import annotations

import glob

import tensorflow as tf

from alf.metrics.tables import read_csv
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer


def _steps_of_events(directory):
    found = []
    for path in glob.glob(f"{directory}/events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [event.step for value in event.summary.value if value.tag == "Metrics/AverageReturn"]
    return sorted(found)


def test_evaluations_of_a_stretch_that_is_trained_again_are_gone(small_config, tmp_path):
    config = small_config(SyncOffPolicyTrainer, checkpoint_interval=0)
    with config.create_trainer() as trainer:
        trainer.train_and_act("1 training_steps")
        trainer.evaluate("1 episodes")
        trainer.save()
        trainer.train_and_act("1 training_steps")
        trainer.evaluate("1 episodes")
    with config.create_trainer() as trainer:
        trainer.evaluate("1 episodes")
        trainer.train_and_act("2 training_steps")
        trainer.evaluate("1 episodes")
    folder = tmp_path / "run" / "eval"
    assert [int(row["global_step"]) for row in read_csv(str(folder / "stats.csv"))] == [1, 1, 3]
    assert _steps_of_events(folder) == [1, 1, 3]
