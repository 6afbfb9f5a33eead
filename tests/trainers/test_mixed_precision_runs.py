"""Runs whose products are made in bfloat16 train weights of float32, and export models that are compared in float32."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.utils import mixed_precision


@pytest.mark.skipif(not mixed_precision.supported(), reason="the processor has no bfloat16 arithmetic")
def test_a_run_trains_in_it_and_its_models_are_those_of_float32(small_config):
    config = small_config(
        AsyncOffPolicyTrainer, checkpoint_interval=1, num_iterations=2, export_saved_model=True, mixed_precision=True
    )
    trainer = AsyncOffPolicyTrainer(config)
    try:
        trainer.train()
        assert mixed_precision.in_force()
    finally:
        mixed_precision.use(False)
    assert {v.dtype for v in trainer.algorithm.trainable_variables} == {tf.float32}
    records = RunIndex.load(config.root_dir).records()
    models = pathlib.Path(config.root_dir, "train", "models")
    assert sorted(p.name for p in models.iterdir()) == [r.name for r in records] == ["ckpt-1", "ckpt-2"]
