"""CSV and JSON lines: what is written is what is read, after cuts, torn lines and new columns."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.metrics.tables import CsvFile, JsonLinesFile, read_csv

KINDS = [CsvFile, JsonLinesFile]


def _read(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    if str(path).endswith(".csv"):
        return list(csv.DictReader(text.splitlines()))
    return [json.loads(line) for line in text.splitlines()]


def _steps(path):
    return [int(row["step"]) for row in _read(path)]


def _file(kind, tmp_path):
    return kind(str(tmp_path / ("rows.csv" if kind is CsvFile else "rows.jsonl")))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_appended_by_the_next_process(kind, tmp_path):
    first = _file(kind, tmp_path)
    first.append({"step": 0, "x": 0.1})
    first.append({"step": 1, "x": np.float32(0.5)})
    first.close()
    second = _file(kind, tmp_path)
    second.append({"step": 2, "x": None})
    second.close()
    rows = _read(second.path)
    assert [int(row["step"]) for row in rows] == [0, 1, 2]
    assert [float(row["x"]) for row in rows[:2]] == [0.1, 0.5]
    assert rows[2]["x"] in ("", None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_last_line_is_removed(kind, tmp_path):
    file = _file(kind, tmp_path)
    for step in range(3):
        file.append({"step": step, "x": 1.5})
    file.close()
    whole = os.path.getsize(file.path)
    os.truncate(file.path, whole - 3)
    file.append({"step": 7, "x": 2.5})
    file.close()
    assert _steps(file.path) == [0, 1, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_cut_keeps_what_is_not_above(kind, tmp_path):
    file = _file(kind, tmp_path)
    assert file.cut("step", 3) == {}
    for step in (0, 2, 4, 6):
        file.append({"step": step, "seconds": step / 2})
    last = file.cut("step", 4)
    assert float(last["seconds"]) == 2.0
    file.append({"step": 5, "seconds": 9.0})
    file.close()
    assert _steps(file.path) == [0, 2, 4, 5]
    assert file.cut("step", -1) == {}
    file.append({"step": 0, "seconds": 0.0})
    file.close()
    assert _steps(file.path) == [0]
    assert os.listdir(tmp_path) == [os.path.basename(file.path)]


def test_a_column_that_comes_later_gets_its_place(tmp_path):
    file = CsvFile(str(tmp_path / "rows.csv"))
    file.append({"step": 0, "a": 1.0})
    file.append({"b": 2.0, "step": 1, "a": 3.0})
    file.append({"step": 2})
    file.close()
    again = CsvFile(file.path)
    again.append({"c": 4.0, "step": 3})
    again.close()
    assert _read(file.path) == [
        {"step": "0", "a": "1.0", "b": "", "c": ""},
        {"step": "1", "a": "3.0", "b": "2.0", "c": ""},
        {"step": "2", "a": "", "b": "", "c": ""},
        {"step": "3", "a": "", "b": "", "c": "4.0"},
    ]


def test_json_has_null_for_what_is_not_finite(tmp_path):
    file = JsonLinesFile(str(tmp_path / "rows.jsonl"))
    file.append({"step": 1, "a": math.nan, "b": -math.inf, "c": None, "d": "text"})
    file.close()
    assert _read(file.path) == [{"step": 1, "a": None, "b": None, "c": None, "d": "text"}]


def test_text_with_separators_and_line_ends_is_one_field(tmp_path):
    file = CsvFile(str(tmp_path / "rows.csv"))
    file.append({"step": 1, "name": 'a,"b"\nc'})
    file.close()
    assert _read(file.path) == [{"step": "1", "name": 'a,"b" c'}]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.floats(allow_nan=False), max_size=4), max_size=12),
    st.integers(0, 200),
)
def test_any_rows_with_any_torn_end(tmp_path_factory, rows, torn):
    """Oracle: the list of rows, less those whose line was damaged."""
    path = str(tmp_path_factory.mktemp("rows") / "rows.csv")
    file = CsvFile(path)
    for step, row in enumerate(rows):
        file.append({"step": step, **row})
    file.close()
    size = os.path.getsize(path) if rows else 0
    kept = len(rows)
    if rows:
        text = pathlib.Path(path).read_text()[: max(0, size - torn)]
        os.truncate(path, len(text))
        kept = max(0, text.count("\n") - 1)
    file.append({"step": 99})
    file.close()
    expected = [{"step": float(i), **row} for i, row in enumerate(rows[:kept])] + [{"step": 99.0}]
    found = [{k: float(v) for k, v in row.items() if v} for row in read_csv(path)]
    assert found == expected


def test_memory_does_not_grow_with_rows(tmp_path):
    file = CsvFile(str(tmp_path / "rows.csv"))
    row = {f"column_{i}": 0.123456789 for i in range(20)}
    for step in range(50):
        file.append({"step": step, **row})
    tracemalloc.start()
    try:
        for step in range(50, 3000):
            file.append({"step": step, **row})
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    file.close()
    assert os.path.getsize(file.path) > 500_000
    assert grown < 50_000


def test_a_full_disk_is_told_and_rows_come_back_whole(tmp_path, monkeypatch):
    file = CsvFile(str(tmp_path / "rows.csv"))
    file.append({"step": 0})
    file.flush()
    write = CsvFile._write

    def full(self, out, row):
        out.write("1,half a ro")
        out.flush()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CsvFile, "_write", full)
    with pytest.raises(OSError, match="No space"):
        file.append({"step": 1})
    monkeypatch.setattr(CsvFile, "_write", write)
    file.append({"step": 2})
    file.close()
    assert _steps(file.path) == [0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_the_same_however_it_is_spaced(kind, tmp_path):
    file = _file(kind, tmp_path)
    for step in range(2):
        file.append({"step": step, " of\tmy   own\n": step + 0.5})
    file.close()
    file.append({"step": 2, " of\tmy   own\n": 2.5})
    file.close()
    assert [(set(row), float(row["of my own"])) for row in _read(file.path)] == [
        ({"step", "of my own"}, step + 0.5) for step in range(3)
    ]
