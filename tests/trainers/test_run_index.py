"""The run index: records, what survives damage, and that nothing makes reading it fail."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.trainers.checkpoint_files import complete_checkpoints, leftovers
from alf.trainers.checkpointing import Checkpointer, Counters
from alf.trainers.run_index import INDEX_FILE, Record, RunIndex

FOLDER = os.path.join("train", "algorithm")


def _record(step, **kwargs):
    return Record(f"ckpt-{step}", step, files=[f"{FOLDER}/ckpt-{step}.index"], **kwargs)


def _touch(root, step, shards=1):
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in ["index", *(f"data-{i:05}-of-{shards:05}" for i in range(shards))]:
        (folder / f"ckpt-{step}.{name}").write_bytes(b"x")


def _names(index):
    return [r.name for r in index.records()]


def test_a_new_run_is_empty(tmp_path):
    index = RunIndex.load(str(tmp_path / "none"))
    assert (index.records(), index.latest(), index.best(), index.final(), index.run) == ([], None, None, None, {})


def test_everything_comes_back(tmp_path):
    index = RunIndex(str(tmp_path))
    index.run.update(status="running", seed=np.int64(3), lr=np.float32(0.5), ratio=float("nan"), names=("a", "b"))
    record = _record(7, env_steps=70, iterations=6, reward=1.5, reward_episodes=4, created="2020-01-02T03:04:05+00:00")
    index.add(record)
    index.save()
    loaded = RunIndex.load(str(tmp_path))
    assert loaded.records() == [record.with_kinds(add=["best"])]
    assert _names(loaded) == ["ckpt-7"]
    assert loaded.run["lr"] == 0.5
    assert loaded.run["seed"] == 3
    assert loaded.run["ratio"] is None
    assert loaded.run["names"] == ["a", "b"]
    assert "updated" in loaded.run


def test_the_file_is_plain_json_with_relative_paths(tmp_path):
    index = RunIndex(str(tmp_path))
    index.add(_record(1, reward=np.float32(0.1)))
    index.save()
    text = (tmp_path / INDEX_FILE).read_text()
    data = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert str(tmp_path) not in text
    assert data["behaviors"]["agent"]["checkpoints"][0]["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == [INDEX_FILE], "no partial file is left"


def test_numeric_order_and_lookup():
    index = RunIndex("r")
    for step in (100, 9, 10):
        index.add(_record(step))
    assert _names(index) == ["ckpt-9", "ckpt-10", "ckpt-100"]
    assert index.latest().step == 100
    assert index.find("10") == index.find("ckpt-10") == index.records()[1]
    assert index.find("11") is index.find("nonsense") is index.find("../ckpt-9") is None


def test_one_best_and_one_final():
    index = RunIndex("r")
    for step, reward in ((1, 5.0), (2, 7.0), (3, 7.0), (4, None), (5, float("-inf"))):
        index.add(_record(step, reward=reward))
    assert index.best().step == 2
    index.add(_record(6, kinds=["final"]))
    assert index.final().step == 6
    index.add(_record(2, reward=1.0))
    assert index.final().step == 6, "a new reward of an old checkpoint changes nothing about the end"
    index.add(_record(7))
    assert index.final() is None, "the run goes on"
    assert sum("best" in r.kinds for r in index.records()) == 1


def test_two_indices_in_one_process_keep_apart(tmp_path):
    a, b = RunIndex(str(tmp_path / "a")), RunIndex(str(tmp_path / "b"))
    a.add(_record(1))
    a.run["status"] = "running"
    assert b.records() == []
    assert b.run == {}


def test_same_step_twice_is_one_record():
    index = RunIndex("r")
    index.add(_record(1))
    index.add(_record(1, kinds=["final"]))
    assert _names(index) == ["ckpt-1"]
    assert index.saves() == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"run": 3}', b'{"behaviors": {}}'])
def test_a_damaged_index_is_made_up_from_the_directory(tmp_path, content):
    for step in (9, 10):
        _touch(tmp_path, step)
    (tmp_path / FOLDER / "ckpt-11.data-00000-of-00001").write_bytes(b"x")
    (tmp_path / INDEX_FILE).write_bytes(content)
    assert _names(RunIndex.load(str(tmp_path))) == ["ckpt-9", "ckpt-10"]
    assert (tmp_path / INDEX_FILE).read_bytes() == content, "reading writes nothing"


def test_a_made_up_index_knows_counts_and_models(tmp_path):
    counters = Counters()
    counters.iteration.assign(4)
    counters.env_step.assign(80)
    Checkpointer(str(tmp_path / FOLDER), {"counters": counters}).save(4)
    model = tmp_path / "train" / "models" / "ckpt-4" / "saved_model"
    model.mkdir(parents=True)
    (model / "saved_model.pb").write_bytes(b"x")
    os.remove(tmp_path / INDEX_FILE)
    (record,) = RunIndex.load(str(tmp_path)).records()
    assert (record.iterations, record.env_steps) == (4, 80)
    assert "train/models/ckpt-4/saved_model/saved_model.pb" in record.files


def test_a_record_that_makes_no_sense_does_not_cost_the_others(tmp_path):
    index = RunIndex(str(tmp_path))
    for step in (1, 2, 3):
        _touch(tmp_path, step)
        index.add(_record(step, reward=float(step)))
    index.save()
    text = (tmp_path / INDEX_FILE).read_text()
    (tmp_path / INDEX_FILE).write_text(text.replace('"name": "ckpt-2"', '"name": "ckpt-5"'))
    loaded = RunIndex.load(str(tmp_path))
    assert _names(loaded) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert [r.reward for r in loaded.records()] == [1.0, None, 3.0]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "train/../../x", "a\0b", "", ".", 3, None, "a//b", "\ud800"])
def test_no_record_names_a_file_outside_of_the_run(tmp_path, path):
    index = RunIndex(str(tmp_path))
    index.add(_record(1))
    index.save()
    data = json.loads((tmp_path / INDEX_FILE).read_text())
    data["behaviors"]["agent"]["checkpoints"][0]["files"].append(path)
    (tmp_path / INDEX_FILE).write_text(json.dumps(data))
    assert RunIndex.load(str(tmp_path)).records() == []


def test_unknown_and_missing_keys_do_no_harm(tmp_path):
    bare = {"name": "ckpt-3", "step": 3, "files": [f"{FOLDER}/ckpt-3.index"], "colour": "red"}
    data = {"behaviors": {"agent": {"checkpoints": [bare], "mood": 1}}, "later": True}
    (tmp_path / INDEX_FILE).write_text(json.dumps(data))
    (record,) = RunIndex.load(str(tmp_path)).records()
    assert (record.step, record.reward, record.env_steps, record.kinds) == (3, None, 0, ["periodic"])


@pytest.mark.parametrize("name", ["run[1]", "a*b", "what?", "with space", "ünï"])
def test_odd_directory_names(tmp_path, name):
    variable = tf.Variable(1.0)
    checkpointer = Checkpointer(str(tmp_path / name / FOLDER), {"v": variable}, 1)
    for step in (1, 2, 3):
        checkpointer.save(step)
    assert complete_checkpoints(str(tmp_path / name)) == [3]
    assert _names(RunIndex.load(str(tmp_path / name))) == ["ckpt-3"]


def test_sharded_checkpoints_need_all_their_parts(tmp_path):
    _touch(tmp_path, 1, shards=3)
    assert complete_checkpoints(str(tmp_path)) == [1]
    os.remove(tmp_path / FOLDER / "ckpt-1.data-00001-of-00003")
    assert complete_checkpoints(str(tmp_path)) == []


def test_leftovers(tmp_path):
    _touch(tmp_path, 1)
    _touch(tmp_path, 12)
    (tmp_path / FOLDER / "ckpt-1_temp").mkdir()
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    (tmp_path / "train" / "models" / "ckpt-12").mkdir(parents=True)
    assert sorted(leftovers(str(tmp_path), [1])) == [
        f"{FOLDER}/ckpt-12.data-00000-of-00001",
        f"{FOLDER}/ckpt-12.index",
        f"{FOLDER}/ckpt-1_temp",
        "train/models/ckpt-12",
    ]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ckpt-1", "agent"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["run", "behaviors", "agent", "checkpoints", "name", "step", "files", "reward", "kinds", "saves"]
            )
            | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


def _check_load(root):
    index = RunIndex.load(root)
    for record in index.records():
        assert record.name == f"ckpt-{record.step}"
        assert record.reward is None or math.isfinite(record.reward)
        assert record.prefix()
    index.best(), index.final(), index.latest(), index.find("1")
    index.save()
    assert RunIndex.load(root).records() == index.records()


@given(_JSON)
def test_any_json_can_be_read(tmp_path_factory, value):
    root = tmp_path_factory.mktemp("run")
    (root / INDEX_FILE).write_text(json.dumps(value))
    _check_load(str(root))


@given(st.data())
def test_any_damage_can_be_read(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("run")
    index = RunIndex(str(root))
    for step in (1, 2):
        index.add(_record(step, reward=float(step), iterations=step))
    index.run["status"] = "running"
    index.save()
    content = bytearray((root / INDEX_FILE).read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        for at in data.draw(st.lists(st.integers(0, len(content) * 8 - 1), min_size=1, max_size=4)):
            content[at // 8] ^= 1 << at % 8
    (root / INDEX_FILE).write_bytes(content)
    _check_load(str(root))


def test_deep_nesting_is_damage(tmp_path):
    (tmp_path / INDEX_FILE).write_text("[" * 100_000)
    assert RunIndex.load(str(tmp_path)).records() == []
    (tmp_path / INDEX_FILE).write_text('{"run": ' + "[" * 900 + "]" * 900 + "}")
    assert RunIndex.load(str(tmp_path)).records() == []


def test_reading_needs_no_tensorflow(tmp_path):
    RunIndex(str(tmp_path)).save()
    code = (
        "import sys, types; m = types.ModuleType('alf'); m.__path__ = ['alf']; sys.modules['alf'] = m\n"
        f"from alf.trainers.run_index import RunIndex; RunIndex.load({str(tmp_path)!r})\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_best_is_that_of_all_that_are_left(tmp_path):
    index = RunIndex(str(tmp_path))
    records = [index.add(_record(step, reward=reward)) for step, reward in [(1, 5.0), (2, 10.0), (3, 3.0)]]
    assert index.best().step == 2
    index.remove(records[1])
    assert index.best().step == 1
    index.add(_record(4, reward=4.0))
    assert index.best().step == 1
    index.add(_record(5, reward=6.0))
    assert [r.step for r in index.records() if "best" in r.kinds] == [5]
    for record in index.records():
        index.remove(record)
    assert index.best() is None
