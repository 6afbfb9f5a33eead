"""What the reporter writes, read back from the event files."""

from __future__ import annotations

import csv
import glob
import json
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from alf.metrics.event_files import cut_events
from alf.metrics.histogram import Histogram
from alf.metrics.metrics import standard_metrics
from alf.metrics.reporter import StatsReporter
from alf.metrics.summary_writer import SummaryWriter
from alf.metrics.time_shares import Timings
from alf.metrics.user_stats import Aggregation


def _events(log_dir):
    """[(tag, step, value)] of every event file under log_dir."""
    found = []
    # Their names end in seconds and a number that counts on: as text, the tenth of a second is before the ninth.
    numbers = lambda path: [int(part) for part in os.path.basename(path).split(".") if part.isdigit()]  # noqa: E731
    for path in sorted(glob.glob(os.path.join(log_dir, "events.out.tfevents.*")), key=numbers):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.HasField("histo"):
                    found.append((value.tag, event.step, value.histo))
                elif value.metadata.plugin_data.plugin_name == "hparams":
                    found.append((value.tag, event.step, value.metadata.plugin_data.content))
                elif value.metadata.plugin_data.plugin_name == "text":
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
        "Metrics/AverageReturn_std": 0.0,
        "Metrics/AverageEpisodeLength": 1.0,
        "Metrics/AverageEpisodeLength_std": 0.0,
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
    assert {tag for tag, _, _ in _events(tmp_path)} == {
        "Metrics/NumberOfEpisodes",
        "Metrics/EnvironmentSteps",
        "Metrics/LongestOpenEpisode",
    }


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


def _csv(folder, name="stats.csv"):
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def _json(folder):
    return [json.loads(line) for line in (folder / "stats.jsonl").read_text().splitlines()]


def test_the_same_numbers_everywhere(tmp_path):
    """TensorBoard keeps float32, so that is what is compared."""
    with StatsReporter(str(tmp_path)) as reporter:
        for step in (0, 3, 7):
            metrics = standard_metrics(1, 1)
            metrics[2](_finished_episode(), 0)
            reporter.add("Own/score", step + 0.1)
            reporter.write(
                step, step, metrics, losses={"loss": 1 / (step + 3)}, stats={"lag_mean": 0.7}, env_steps=step * 9
            )
    events = {(tag, step): value for tag, step, value in _events(tmp_path)}
    rows, lines = _csv(tmp_path), _json(tmp_path)
    assert [row["global_step"] for row in rows] == ["0", "3", "7"]
    axes = {"global_step", "iteration", "env_steps", "episodes", "seconds", "wall_time"}
    for row, line in zip(rows, lines, strict=True):
        assert {k: float(v) for k, v in row.items() if v} == {k: v for k, v in line.items() if v is not None}
        tags = {k: float(v) for k, v in row.items() if v and k not in axes}
        assert {"Own/score", "Losses/loss", "staleness/lag_mean", "Metrics/AverageReturn"} <= set(tags)
        for tag, value in tags.items():
            assert events[tag, int(row["global_step"])] == np.float32(value)


def test_several_x_axes(tmp_path):
    metrics = standard_metrics(1, 1)
    for metric in metrics:
        metric(_finished_episode(), 0)
    with StatsReporter(str(tmp_path)) as reporter:
        reporter.write(1, 4, metrics, env_steps=1000)
    found = {tag: step for tag, step, _ in _events(tmp_path)}
    assert found["Metrics/AverageReturn"] == 4
    assert found["Metrics_vs_EnvironmentSteps/AverageReturn"] == 1000
    assert found["Metrics_vs_NumberOfEpisodes/AverageReturn"] == 1
    assert found["Metrics_vs_Seconds/AverageReturn"] == 0


def _run(folder, steps, resume_at=0):
    with StatsReporter(str(folder)) as reporter:
        reporter.resume(resume_at)
        for step in steps:
            reporter.write(step, step, losses={"loss": step * 1.0}, env_steps=step * 100)
        return reporter.seconds


def test_a_resumed_run_goes_on_where_it_was_cut(tmp_path):
    first = _run(tmp_path, (1, 2, 3, 4, 5))
    # Killed after step 5, with a checkpoint at step 3; a half-written line is left.
    with open(tmp_path / "stats.csv", "a") as file:
        file.write("6,6,6")
    _run(tmp_path, (4, 6), resume_at=3)
    assert [row["global_step"] for row in _csv(tmp_path)] == ["1", "2", "3", "4", "6"]
    assert [line["global_step"] for line in _json(tmp_path)] == [1, 2, 3, 4, 6]
    seconds = [float(row["seconds"]) for row in _csv(tmp_path)]
    assert seconds == sorted(seconds)
    assert seconds[3] >= seconds[2] > 0.0
    assert first > 0.0
    assert [step for tag, step, _ in _events(tmp_path) if tag == "Losses/loss"] == [1, 2, 3, 4, 6]
    _run(tmp_path, (1,), resume_at=0)
    assert [step for tag, step, _ in _events(tmp_path) if tag == "Losses/loss"] == [1]
    assert len(_csv(tmp_path)) == len(_json(tmp_path)) == 1


def test_time_goes_on_where_no_table_tells_it(tmp_path):
    """TensorBoard's files are cut, not read; the run knows how long it took."""
    metrics = standard_metrics(1, 1)
    for metric in metrics:
        metric(_finished_episode(), 0)
    with StatsReporter(str(tmp_path), formats=("tensorboard",)) as reporter:
        reporter.resume(4, seconds=70.0)
        reporter.write(5, 5, metrics)
    (found,) = (step for tag, step, _ in _events(tmp_path) if tag == "Metrics_vs_Seconds/AverageReturn")
    assert found == 70


@pytest.mark.parametrize("how", ["AVERAGE", "HISTOGRAM"])
def test_a_statistic_cannot_take_the_place_of_what_the_run_reports(tmp_path, how):
    with StatsReporter(str(tmp_path)) as reporter:
        reporter.add("Losses/own", 1.0, how)
        reporter.write(1, 1, losses={"loss": 2.0})
        reporter.add("Losses/loss", 1.0, how)
        with pytest.raises(ValueError, match="A statistic of your own is called 'Losses/loss'"):
            reporter.write(2, 2, losses={"loss": 2.0}, histograms={"Losses/loss": Histogram()})


def test_names_of_statistics_are_kept_apart_from_the_axes(tmp_path):
    with StatsReporter(str(tmp_path)) as reporter:
        for name in ("global_step", "seconds", " iteration"):
            with pytest.raises(ValueError, match=f"A statistic cannot be called '{name.strip()}'"):
                reporter.add(name, 0.0)
        for step in (1, 2):
            reporter.add("Own/score  of mine ", 7.0 + step)
            reporter.write(step, step)
    assert [row["Own/score of mine"] for row in _csv(tmp_path)] == ["8.0", "9.0"]
    assert len(set(_csv(tmp_path)[0])) == len((tmp_path / "stats.csv").read_text().splitlines()[0].split(","))


def test_a_resumed_run_keeps_all_that_is_not_above(tmp_path):
    _run(tmp_path, (1, 2))
    before = (tmp_path / "stats.csv").read_bytes()
    _run(tmp_path, (), resume_at=2)
    assert (tmp_path / "stats.csv").read_bytes() == before
    _run(tmp_path, (3,), resume_at=2)
    assert (tmp_path / "stats.csv").read_bytes().startswith(before)
    assert [step for tag, step, _ in _events(tmp_path) if tag == "Losses/loss"] == [1, 2, 3]


def test_cutting_leaves_the_other_axes_of_earlier_steps(tmp_path):
    metrics = standard_metrics(1, 1)
    for metric in metrics:
        metric(_finished_episode(), 0)
    with StatsReporter(str(tmp_path)) as reporter:
        for step in (1, 2, 3):
            reporter.write(step, step, metrics, env_steps=step * 1000)
    with StatsReporter(str(tmp_path)) as reporter:
        reporter.resume(2)
    against = [step for tag, step, _ in _events(tmp_path) if tag == "Metrics_vs_EnvironmentSteps/AverageReturn"]
    assert against == [1000, 2000]


def test_what_was_written_at_the_step_of_a_resume_hides_nothing_behind_it(tmp_path):
    """As an evaluation is before a resumed run trains."""
    for steps in ((1, 2), (3, 4), (2,)):
        writer = SummaryWriter(str(tmp_path))
        for step in steps:
            writer.scalars({"a": 0.0}, step)
        writer.close()
    cut_events(str(tmp_path), 2)
    assert [step for _, step, _ in _events(tmp_path)] == [1, 2, 2]


def test_a_silent_stretch_tells_the_longest_open_episode(tmp_path):
    metrics = standard_metrics(1, 1)
    open_episode = SimpleNamespace(
        step_type=np.array([[0], [1], [1]]), next_step_type=np.array([[1], [1], [1]]), reward=np.zeros([3, 1], "f")
    )
    with StatsReporter(str(tmp_path)) as reporter:
        for metric in metrics:
            metric(open_episode, 0)
        reporter.write(1, 1, metrics)
        for metric in metrics:
            metric(_finished_episode(), 0)
        reporter.write(2, 2, metrics)
        reporter.write(3, 3, metrics)
    told = [row["Metrics/LongestOpenEpisode"] for row in _csv(tmp_path)]
    assert told == ["3.0", "", "0.0"]
    assert [row["episodes"] for row in _csv(tmp_path)] == ["0.0", "1.0", "1.0"]


def test_steps_a_second_are_of_the_stretch_between_two_summaries(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("alf.metrics.reporter.time.monotonic", lambda: now[0])
    with StatsReporter(str(tmp_path)) as reporter:
        for iteration, (step, secs) in enumerate([(10, 4.0), (30, 5.0), (40, 1.0)]):
            reporter.write(iteration, step)
            now[0] += secs
    assert [row["global_steps_per_sec"] for row in _csv(tmp_path)] == ["", "5.0", "2.0"]


def test_time_shares_are_of_the_stretch_between_two_summaries(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("alf.metrics.reporter.time.monotonic", lambda: now[0])
    with StatsReporter(str(tmp_path)) as reporter:
        reporter.write(1, 1, timings=Timings(5.0, 1.0, 3.0, 3.0, 0.0, 1))
        now[0] += 10.0
        reporter.write(2, 2, timings=Timings(11.0, 4.0, 8.0, 4.0, 2.0, 1))
    first, second = _csv(tmp_path)
    assert first["Time/learner_training"] == ""
    assert [
        float(second[f"Time/{n}"]) for n in ("learner_training", "learner_waiting", "learner_other")
    ] == pytest.approx([0.6, 0.3, 0.1])
    assert [float(second[f"Time/{n}"]) for n in ("environment", "inference", "collecting_waiting")] == pytest.approx(
        [0.5, 0.1, 0.2]
    )


def test_a_row_for_the_same_iteration_again_keeps_speed_and_shares(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("alf.metrics.reporter.time.monotonic", lambda: now[0])
    with StatsReporter(str(tmp_path)) as reporter:
        for iteration, trained in ((1, 0.0), (2, 6.0), (2, 6.5)):
            reporter.write(iteration, 10 * iteration, timings=Timings(trained, 0.0, trained, 0.0, 0.0, 1))
            now[0] += 10.0
    _, before, last = _csv(tmp_path)
    for name in ("global_steps_per_sec", "Time/learner_training", "Time/learner_other"):
        assert last[name] == before[name] != ""


def test_histograms_and_recent_values(tmp_path):
    with StatsReporter(str(tmp_path)) as reporter:
        reporter.add("Own/spread", [1.0, 2.0, 2.0], Aggregation.HISTOGRAM)
        reporter.add("Own/where", 5, "MOST_RECENT", source="env 3")
        reporter.write(1, 1, histograms={"staleness/lag": Histogram.of_counts([0, 4])})
    events = {tag: value for tag, _, value in _events(tmp_path)}
    assert events["staleness/lag"].num == 4
    assert events["Own/spread"].num == 3
    assert events["Own/spread/max"] == 2.0
    assert "Own/where/source" not in events
    assert _csv(tmp_path)[0]["Own/where/source"] == _json(tmp_path)[0]["Own/where/source"] == "env 3"


def test_a_burst_of_updates_counts_each_value_once(tmp_path):
    """A signal of k independent values, none of them a running sum."""
    with StatsReporter(str(tmp_path), log_episodes=True) as reporter:
        loss = reporter.register_signal("Loss")
        assert reporter.register_signal("Loss") is loss
        for value in (4.0, 1.0, 1.0):
            loss.add(value)
        reporter.write(1, 1)
        loss.add(7.0)
        reporter.write(2, 2)
    assert [float(row["Loss/mean"]) for row in _csv(tmp_path)] == [2.0, 7.0]
    assert [float(row["Loss/max"]) for row in _csv(tmp_path)] == [4.0, 7.0]


def test_episodes_are_logged_only_when_asked_for(tmp_path):
    plain = StatsReporter(str(tmp_path / "plain"))
    assert plain.episodes is None
    with pytest.raises(ValueError, match="log_episodes = True"):
        plain.register_signal("x", lambda trajectory: trajectory.reward)
    with StatsReporter(str(tmp_path), log_episodes=True) as reporter:
        reporter.register_signal("twice", lambda trajectory: 2 * trajectory.reward)
        reporter.episodes(_finished_episode(), 0)
    assert _csv(tmp_path, "episodes.csv")[0]["twice/Mean"] == "6.0"


def test_rows_are_held_back_no_longer_than_said(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("alf.metrics.reporter.time.monotonic", lambda: now[0])
    reporter = StatsReporter(str(tmp_path), flush_secs=60.0, max_queue=3)
    lines = []
    for step in range(5):
        reporter.write(step, step)
        lines.append(len((tmp_path / "stats.jsonl").read_text().splitlines()))
    now[0] += 60.0
    reporter.write(5, 5)
    lines.append(len(_json(tmp_path)))
    assert lines == [1, 1, 1, 4, 4, 6]


CRASH = """
import sys
from alf.metrics.reporter import StatsReporter
reporter = StatsReporter(sys.argv[1], flush_secs=1e9, max_queue=10**9, log_episodes=True)
for step in range(5):
    reporter.write(step, step, losses={"loss": step})
raise KeyboardInterrupt
"""


def test_pending_rows_are_written_when_nobody_closes_the_reporter(tmp_path):
    subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], stderr=subprocess.DEVNULL, timeout=60)
    assert [row["global_step"] for row in _csv(tmp_path)] == list("01234")
    assert len(_json(tmp_path)) == 5


def test_a_full_disk_stops_no_training(tmp_path, monkeypatch, caplog):
    reporter = StatsReporter(str(tmp_path))
    reporter.write(1, 1)

    def full(self, row):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("alf.metrics.tables.RowFile.append", full)
        reporter.write(2, 2)
        reporter.write(3, 3)
    reporter.write(4, 4)
    reporter.close()
    assert [row["global_step"] for row in _csv(tmp_path)] == ["1", "4"]
    assert len([r for r in caplog.records if "No space left" in r.getMessage()]) == 2


def test_a_full_disk_costs_the_events_of_its_time(tmp_path):
    """The operating system itself refuses to let files grow."""
    reporter = StatsReporter(str(tmp_path), formats=())
    reporter.text("early", "x", 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for step in (2, 3):
            reporter.text("lost", "x" * 10_000, step)
            reporter.hparams({"lost": 1.0}, "group", step)
        reporter.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(os.listdir(tmp_path)) == 1
    reporter.text("late", "x", 4)
    reporter.close()
    assert [(tag, step) for tag, step, _ in _events(tmp_path)] == [("early", 1), ("late", 4)]


def test_hparams_are_what_the_plugin_reads(tmp_path):
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    with StatsReporter(str(tmp_path)) as reporter:
        reporter.hparams({"Adam.learning_rate": 0.5, "PPO.clip": True, "env": "CartPole-v1", "n": 3}, "group", 1)
    ((tag, _, content),) = _events(tmp_path)
    info = plugin.HParamsPluginData.FromString(content).session_start_info
    assert tag == "_hparams_/session_start_info"
    assert info.group_name == "group"
    assert info.hparams["Adam.learning_rate"].number_value == 0.5
    assert info.hparams["PPO.clip"].bool_value is True
    assert info.hparams["env"].string_value == "CartPole-v1"
    assert info.hparams["n"].number_value == 3.0


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'xml', which is none of tensorboard, csv, jsonl"):
        StatsReporter(str(tmp_path), formats=["csv", "xml"])


def test_formats_can_be_left_out(tmp_path):
    with StatsReporter(str(tmp_path), formats=["csv"]) as reporter:
        reporter.write(1, 1)
    assert os.listdir(tmp_path) == ["stats.csv"]
