"""Models that a run with behaviors writes: one of each, for any number of its agents."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from alf.export import policy as export_policy
from alf.trainers import models
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from tests.trainers.many_agents import behaviors, bind_hands, bind_pursuit, dqn, ppo

pytestmark = pytest.mark.timeout(300)


def _train(small_config, **kwargs):
    settings = {"num_iterations": 2, "checkpoint_interval": 1, "checkpoint_max_to_keep": 1, "export_saved_model": True}
    ctor = behaviors(chaser=ppo(), runner=dqn(trained=False))
    config = small_config(SyncOffPolicyTrainer, **{"algorithm_ctor": ctor, **settings, **kwargs})
    trainer = config.create_trainer()
    trainer.train()
    return trainer


def test_every_behavior_has_a_model_of_its_own(small_config, tmp_path):
    bind_pursuit()
    trainer = _train(small_config)
    record = RunIndex.load(str(tmp_path / "run")).latest()
    models_dir = tmp_path / "run" / "train" / "models"
    assert [p.name for p in models_dir.iterdir()] == ["ckpt-2"], "those of older checkpoints go with them"
    assert sorted(p.name for p in (models_dir / "ckpt-2").iterdir()) == ["chaser", "runner"]
    for name, size in (("chaser", 10), ("runner", 16)):
        directory = models_dir / "ckpt-2" / name
        assert any(f.endswith(f"ckpt-2/{name}/saved_model/saved_model.pb") for f in record.files)
        metadata = json.loads((directory / "metadata.json").read_text())
        assert (metadata["behavior"], metadata["step"], metadata["env_steps"]) == (name, 2, record.env_steps)
        assert metadata["specs"]["observation"][0]["shape"] == [size]
        _assert_acts_alike(tf.saved_model.load(str(directory / "saved_model")), trainer.algorithm.by_name[name], size)


def _assert_acts_alike(model, algorithm, size):
    """Rows of the batch are agents: five of them, though an environment has three chasers and one runner."""
    seen = np.random.default_rng(1).normal(size=(5, size)).astype(np.float32)
    (actions,) = [v for k, v in model.signatures["action"](observation=tf.constant(seen)).items() if k == "action"]
    spec = algorithm.time_step_spec
    step = tf.nest.map_structure(lambda s: tf.zeros([5, *s.shape], s.dtype), spec)
    step = algorithm.transform_timestep(step._replace(observation=tf.constant(seen)))
    np.testing.assert_array_equal(actions, algorithm.predict(step, (), epsilon_greedy=0.0).action)


def test_one_that_cannot_be_exported_is_named_and_the_others_are_there(small_config, tmp_path, monkeypatch):
    bind_pursuit()
    errors = []
    monkeypatch.setattr(logging, "error", lambda text, *args: errors.append(text % args))
    real = models.exportable

    def exportable(algorithm):
        if type(algorithm).__name__ == "DqnAlgorithm":
            raise export_policy.ExportError("it holds a table")
        return real(algorithm)

    monkeypatch.setattr(models, "exportable", exportable)
    _train(small_config, num_iterations=1)
    (told,) = errors
    assert "no model of the behavior 'runner': ExportError: it holds a table" in told
    assert [p.name for p in (tmp_path / "run" / "train" / "models" / "ckpt-1").iterdir()] == ["chaser"]


def test_onnx_of_every_behavior(small_config, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("tf2onnx")
    names = {"player_0": "left", "player_1": "../right?"}
    bind_hands(behaviors=names)
    _train(small_config, algorithm_ctor=behaviors(**{"*": ppo()}), num_iterations=1, export_onnx=True)
    models_dir = tmp_path / "run" / "train" / "models" / "ckpt-1"
    assert sorted(p.name for p in models_dir.iterdir()) == ["%2E.%2Fright%3F", "left"]
    for directory in models_dir.iterdir():
        (given,) = [i for i in onnx.load(directory / "model.onnx").graph.input if i.name == "observation"]
        assert [d.dim_value for d in given.type.tensor_type.shape.dim][1:] == [6]
