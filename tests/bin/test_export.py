"""The export command on a tiny trained run."""

from __future__ import annotations

import dataclasses
import errno
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from alf.bin import export
from alf.export import onnx_model
from alf.export.policy import ExportError
from alf.trainers.run_index import RunIndex
from tests.bin.running import ROOT, copy_run, run_here, snapshot


def _export(root, *arguments):
    return run_here(export.main, f"--root_dir={root}", *arguments)


def _weights(directory, step):
    reader = tf.train.load_checkpoint(str(directory / "train" / "algorithm" / f"ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    return [
        reader.get_tensor(name)
        for name in names
        if name.startswith("algorithm/") and "_network/" in name and "OPTIMIZER" not in name
    ]


def test_command_writes_a_model_with_the_weights_of_the_checkpoint(trained, tmp_path):
    before = snapshot(trained)
    target = tmp_path / "model"
    run = subprocess.run(
        [sys.executable, "-m", "alf.bin.export", f"--root_dir={trained}", "--checkpoint=1", f"--export_dir={target}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    assert "ckpt-1" in run.stderr
    assert str(target / "saved_model") in run.stderr
    assert 'model = tf.saved_model.load("saved_model")' in run.stderr
    metadata = json.loads((target / "metadata.json").read_text())
    assert metadata["step"] == 1
    assert metadata["checkpoint"] == "ckpt-1"
    assert metadata["env_steps"] > 0
    assert metadata["specs"]["observation"][0]["shape"] == [4]
    model = tf.saved_model.load(str(target / "saved_model"))
    ours = sorted(float(np.abs(w.numpy()).sum()) for w in model.weights)
    theirs = {step: sorted(float(np.abs(w).sum()) for w in _weights(trained, step)) for step in (1, 2)}
    np.testing.assert_allclose(ours, theirs[1], rtol=1e-6)
    assert not np.allclose(ours, theirs[2], rtol=1e-6)
    assert snapshot(trained) == before


def test_newest_is_exported_by_default(trained, tmp_path, logged):
    assert _export(trained, f"--export_dir={tmp_path}") == 0, logged
    assert json.loads((tmp_path / "metadata.json").read_text())["step"] == 2
    assert (tmp_path / "saved_model" / "saved_model.pb").is_file()


def test_the_steps_are_those_of_the_checkpoint_of_another_run(trained, tmp_path, logged):
    copy_run(trained, tmp_path, 2)
    index = RunIndex.load(str(tmp_path))
    env_steps = index.find("2").env_steps
    index.add(dataclasses.replace(index.find("2"), env_steps=7))
    index.save()
    other = trained / "train" / "algorithm" / "ckpt-2"
    assert _export(tmp_path, f"--checkpoint={other}", f"--export_dir={tmp_path / 'model'}") == 0, logged
    assert json.loads((tmp_path / "model" / "metadata.json").read_text())["env_steps"] == env_steps != 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--export_dir is missing"),
        (("--export_dir=DIR", "--checkpoint=77"), "There is no checkpoint '77'"),
        (("--export_dir=DIR", "--num_episodes=3"), "--num_episodes has no effect here"),
        (("--export_dir=FILE",), "is a file"),
        (("--export_dir=FILE/below",), "cannot be a directory"),
    ],
)
def test_mistakes_are_told_in_a_sentence(trained, tmp_path, logged, arguments, message):
    (tmp_path / "file").write_text("mine")
    paths = {"DIR": str(tmp_path / "model"), "FILE": str(tmp_path / "file")}
    for name, path in paths.items():
        arguments = [a.replace(name, path) for a in arguments]
    assert _export(trained, *arguments) == 2
    assert message in "\n".join(logged)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_onnx_without_its_packages_is_told(trained, tmp_path, logged, monkeypatch):
    def missing():
        raise ExportError("An ONNX model needs onnx: install the extra")

    monkeypatch.setattr(onnx_model, "check_onnx", missing)
    assert _export(trained, f"--export_dir={tmp_path / 'model'}", "--onnx") == 2
    assert "install the extra" in "\n".join(logged)
    assert not list(tmp_path.iterdir())


def test_a_model_that_finds_no_room_is_told_in_a_sentence(trained, tmp_path, logged, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export, "export", full)
    assert _export(trained, f"--export_dir={tmp_path / 'model'}") == 2
    assert logged[-1] == (
        f"--export_dir={tmp_path / 'model'} cannot be written to (No space left on device): make room, or give another path."
    )
