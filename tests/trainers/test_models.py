"""Models that a run writes with its checkpoints."""

from __future__ import annotations

import json
import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from alf.export import ExportError, onnx_model, saved_model
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex

pytestmark = pytest.mark.timeout(300)


def _train(config):
    trainer = AsyncOffPolicyTrainer(config)
    trainer.train()
    return trainer


def _bundle(root, name):
    reader = tf.train.load_checkpoint(str(pathlib.Path(root, "train", "algorithm", name)))
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in key}


def test_every_checkpoint_has_its_model_and_training_is_the_same_without(small_config, tmp_path):
    roots = {}
    for export in (True, False):
        root = roots[export] = tmp_path / str(export)
        config = small_config(
            AsyncOffPolicyTrainer,
            root_dir=str(root),
            checkpoint_interval=1,
            exact_resume=False,
            export_saved_model=export,
        )
        gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
        _train(config)
    with_models, without = (RunIndex.load(str(roots[e])).records() for e in (True, False))
    assert [r.name for r in with_models] == [r.name for r in without] == ["ckpt-1", "ckpt-2", "ckpt-3"]
    for record in with_models:
        directory = roots[True] / "train" / "models" / record.name
        assert sorted(p.name for p in directory.iterdir()) == ["metadata.json", "saved_model"]
        assert any(f.endswith(("saved_model.pb", record.name)) for f in record.files), record.files
        metadata = json.loads((directory / "metadata.json").read_text())
        assert metadata["step"] == record.step
        assert metadata["env_steps"] == record.env_steps
        bundles = [_bundle(roots[e], record.name) for e in (True, False)]
        same = [k for k in bundles[0] if k.startswith("algorithm/")]
        assert len(same) > 10
        for key in same:
            np.testing.assert_array_equal(bundles[0][key], bundles[1][key], err_msg=key)
        model = tf.saved_model.load(str(directory / "saved_model"))
        trained = sorted(float(np.abs(v).sum()) for k, v in bundles[0].items() if "_network/" in k and "OPTIM" not in k)
        np.testing.assert_allclose(sorted(float(np.abs(w.numpy()).sum()) for w in model.weights), trained, rtol=1e-6)
    assert not (roots[False] / "train" / "models").exists()


def test_a_failed_export_is_logged_and_training_goes_on(small_config, monkeypatch):
    errors = []
    monkeypatch.setattr(logging, "error", lambda text, *args: errors.append(text % args))

    def wrong(self):
        return tuple(w + 1e-2 for w in self._read())

    monkeypatch.setattr(saved_model.Weights, "read", wrong)
    config = small_config(AsyncOffPolicyTrainer, checkpoint_interval=2, num_iterations=2, export_saved_model=True)
    _train(config)
    assert any("ckpt-2 goes without exported models: ExportError" in e for e in errors), errors
    models = pathlib.Path(config.root_dir, "train", "models")
    assert not models.exists() or not list(models.iterdir())
    assert RunIndex.load(config.root_dir).latest().step == 2


def test_missing_onnx_packages_are_told_at_the_start(small_config, monkeypatch):
    monkeypatch.setattr(onnx_model, "_PACKAGES", ("no_such_package",))
    with pytest.raises(ExportError, match="no_such_package"):
        _train(small_config(AsyncOffPolicyTrainer, export_onnx=True))


def test_a_run_that_goes_on_exports_the_model_that_was_not_finished(small_config):
    _train(small_config(AsyncOffPolicyTrainer, checkpoint_interval=1))
    config = small_config(AsyncOffPolicyTrainer, checkpoint_interval=1, export_saved_model=True)
    _train(config)
    directory = pathlib.Path(config.root_dir, "train", "models")
    assert [p.name for p in directory.iterdir()] == ["ckpt-3"]
    record = RunIndex.load(config.root_dir).latest()
    assert record.step == 3
    assert any(f.startswith("train/models/ckpt-3/saved_model/") for f in record.files), record.files
    when = directory / "ckpt-3" / "metadata.json"
    written = when.stat().st_mtime_ns
    _train(config)
    assert when.stat().st_mtime_ns == written
