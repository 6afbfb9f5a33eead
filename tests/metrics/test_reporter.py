"""What the reporter writes, read back from the event files."""

from __future__ import annotations

import glob
import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from alf.metrics.metrics import standard_metrics
from alf.metrics.reporter import StatsReporter


def _events(log_dir):
    """[(tag, step, value)] of every event file under log_dir."""
    found = []
    for path in sorted(glob.glob(os.path.join(log_dir, "events.out.tfevents.*"))):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "text":
                    found.append((value.tag, event.step, tf.make_ndarray(value.tensor)[0].decode()))
                else:
                    found.append((value.tag, event.step, value.simple_value))
    return found


def _finished_episode():
    return SimpleNamespace(
        step_type=np.array([[0]], np.int32), next_step_type=np.array([[2]], np.int32), reward=np.array([[3.0]], "f")
    )


def test_tags_of_the_ecosystem(tmp_path):
    reporter = StatsReporter(str(tmp_path))
    metrics = standard_metrics(1, 1)
    for metric in metrics:
        metric(_finished_episode(), 0)
    reporter.write(
        1,
        7,
        metrics,
        losses={"loss": tf.constant(0.5), "approx_kl": 0.25},
        stats={"lag_mean": 1.5, "learn_queue_fill": 2},
        env_steps=1000,
    )
    reporter.write(2, 9, metrics)
    reporter.close()
    events = _events(tmp_path)
    first = {tag: value for tag, step, value in events if step == 7}
    assert first == {
        "Metrics/NumberOfEpisodes": 1.0,
        "Metrics/EnvironmentSteps": 1.0,
        "Metrics/AverageReturn": 3.0,
        "Metrics/AverageEpisodeLength": 1.0,
        "Losses/loss": 0.5,
        "Losses/approx_kl": 0.25,
        "staleness/lag_mean": 1.5,
        "Driver/learn_queue_fill": 2.0,
    }
    assert ("Metrics_vs_EnvironmentSteps/AverageReturn", 1000, 3.0) in events
    assert [tag for tag, step, _ in events if step == 9 and tag == "global_steps_per_sec"]


def test_no_average_without_an_episode(tmp_path):
    reporter = StatsReporter(str(tmp_path))
    reporter.write(1, 1, standard_metrics(1, 1), env_steps=5)
    reporter.close()
    assert {tag for tag, _, _ in _events(tmp_path)} == {"Metrics/NumberOfEpisodes", "Metrics/EnvironmentSteps"}


def test_due_needs_iterations_and_seconds(tmp_path):
    both = StatsReporter(str(tmp_path), summary_interval=3, min_interval_secs=0.0)
    assert both.due(1)
    both.write(1, 1)
    assert [both.due(i) for i in (2, 3, 4)] == [False, False, True]
    slow = StatsReporter(str(tmp_path), summary_interval=1, min_interval_secs=3600.0)
    slow.write(1, 1)
    assert not slow.due(1000)


def test_text_is_readable_at_once(tmp_path):
    reporter = StatsReporter(str(tmp_path))
    reporter.text("gin/operative_config", "    a.b = 1", 4)
    assert _events(tmp_path) == [("gin/operative_config", 4, "    a.b = 1")]


def test_nothing_is_created_before_the_first_write(tmp_path):
    StatsReporter(str(tmp_path / "events")).close()
    assert not (tmp_path / "events").exists()


def test_tensorboard_reads_the_file(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reporter = StatsReporter(str(tmp_path))
    reporter.write(1, 5, losses={"loss": 2.0})
    reporter.text("gin/operative_config", "text", 5)
    reporter.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("Losses/loss")] == [(5, 2.0)]
    assert "gin/operative_config" in events.Tags()["tensors"]


def test_summary_interval_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="summary_interval=0"):
        StatsReporter(str(tmp_path), summary_interval=0)
