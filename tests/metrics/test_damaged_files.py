"""Statistics that a resumed run finds damaged: it goes on, and rows that are whole stay."""

from __future__ import annotations

import csv
import json
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.bin.output_flag import read_lines
from alf.bin.run_view import last_row
from alf.metrics.event_files import cut_events
from alf.metrics.reporter import StatsReporter
from alf.metrics.summary_writer import SummaryWriter
from alf.metrics.tables import CsvFile, JsonLinesFile, read_csv
from alf.trainers.report import read_columns
from tests.awake import awake_secs
from tests.damage import damage

_SECONDS = 20.0


def _episode():
    """An episode of two steps in one environment."""
    return SimpleNamespace(
        step_type=np.array([[0], [1]]), next_step_type=np.array([[1], [2]]), reward=np.ones((2, 1), np.float32)
    )


def _write(folder, *steps):
    with StatsReporter(str(folder), log_episodes=True) as reporter:
        reporter.resume(min(steps) - 1)
        for step in steps:
            reporter.episodes.at(global_step=step)
            reporter.episodes(_episode())
            reporter.add("Own/x", float(step))
            reporter.write(step, step, env_steps=10 * step)
    return reporter


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of six summaries, by name."""
    folder = tmp_path_factory.mktemp("whole")
    _write(folder, *range(1, 7))
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@given(st.data())
def test_a_run_goes_on_in_damaged_files(tmp_path_factory, whole, data):
    folder = tmp_path_factory.mktemp("run")
    for name, content in whole.items():
        (folder / name).write_bytes(data.draw(damage(content)))
    began = awake_secs()
    reporter = _write(folder, 4, 5)
    assert reporter.seconds >= 0.0
    for name in ("stats.csv", "episodes.csv"):
        rows = list(read_csv(str(folder / name)))
        steps = [row.get("global_step") for row in rows]
        assert steps[-2:] == ["4", "5"], name
        assert all(float(step) <= 5 for step in steps)
        read_columns(str(folder / name))
    lines = read_lines(str(folder / "stats.jsonl"))
    assert [line["global_step"] for line in lines][-2:] == [4, 5]
    assert last_row(str(folder), []) == {}
    assert awake_secs() - began < _SECONDS


@given(st.data())
def test_damage_in_one_line_costs_no_other(tmp_path_factory, data):
    """Oracle: the lines but the damaged one; line ends are left alone, and lines behind the cut go."""
    folder = tmp_path_factory.mktemp("rows")
    at = data.draw(st.integers(1, 6))
    odd = data.draw(st.binary(min_size=1, max_size=40)).replace(b"\n", b"").replace(b"\r", b"")
    for kind, name in ((CsvFile, "rows.csv"), (JsonLinesFile, "rows.jsonl")):
        path = folder / name
        file = kind(str(path))
        for step in range(1, 7):
            file.append({"step": step, "x": step / 3})
        file.close()
        lines = path.read_bytes().split(b"\n")
        place = at if kind is CsvFile else at - 1
        lines[place] = odd
        path.write_bytes(b"\n".join(lines))
        file.cut("step", 4)
        text = path.read_text(errors="replace").splitlines()
        rows = list(csv.DictReader(text)) if kind is CsvFile else [json.loads(line) for line in text]
        sound = [row for row in rows if row.get("x") and float(row["x"]) == float(row["step"]) / 3]
        expected = [step for step in range(1, 5) if step != at]
        assert [int(row["step"]) for row in sound if int(row["step"]) != at] == expected


@pytest.mark.parametrize("value", ['"text"', "[1]", "1e999", "-1e999", "NaN", "1" + "0" * 400, "true", "{}"])
def test_values_that_are_no_numbers(tmp_path, value):
    (tmp_path / "stats.jsonl").write_text(f'{{"global_step": 1, "seconds": {value}}}\n{{"global_step": {value}}}\n')
    (tmp_path / "episodes.csv").write_text(f"episode,global_step\n{value},1\n")
    reporter = _write(tmp_path, 2)
    assert 0.0 <= reporter.seconds < 1e9
    assert list(read_csv(str(tmp_path / "episodes.csv")))[-1]["global_step"] == "2"


def test_a_length_out_of_all_bounds_asks_for_no_memory(tmp_path):
    writer = SummaryWriter(str(tmp_path))
    writer.scalars({"a": 1.0}, 1)
    writer.close()
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    for length in (2**63, 2**64 - 1, 2**40, 2**33):
        with open(path, "ab") as file:
            file.write(struct.pack("<Q", length) + bytes(100))
        assert cut_events(str(tmp_path), 1) == 0
        with open(path, "rb+") as file:
            file.truncate(size)
    assert cut_events(str(tmp_path), 0) > 0


@given(st.data())
def test_events_before_the_damage_stay(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("events")
    writer = SummaryWriter(str(folder))
    for step in range(1, 7):
        writer.scalars({"a": float(step)}, step)
    writer.close()
    (path,) = folder.iterdir()
    content = path.read_bytes()
    damaged = data.draw(damage(content))
    path.write_bytes(damaged)
    cut_events(str(folder), 3)
    sound = next((i for i, (a, b) in enumerate(zip(content, damaged, strict=False)) if a != b), len(damaged))
    ends, end = [], 0
    for record in tf.data.TFRecordDataset(_as_file(folder, content)).as_numpy_iterator():
        end += 16 + len(record)
        ends.append(end)
    # The version, then a record a step.
    kept = sum(e <= sound for e in ends[:4])
    assert path.read_bytes()[: ends[kept - 1] if kept else 0] == content[: ends[kept - 1] if kept else 0]


def _as_file(folder, content):
    path = folder / "whole"
    path.write_bytes(content)
    return str(path)
