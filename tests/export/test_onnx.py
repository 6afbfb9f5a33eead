"""ONNX models, run by ONNX Runtime; skipped where the extra `onnx` is not installed."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.exporting import exportable
from alf.export import ExportError, export_policy, onnx_model
from tests.algorithms.networks import recurrent
from tests.export.policies import BOX, CONTINUOUS, DISCRETE, RECURRENT, actor_critic, make, unnormalised

pytestmark = pytest.mark.timeout(300)

needs_extra = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "tf2onnx")),
    reason="the extra onnx is not installed",
)


@needs_extra
@pytest.mark.parametrize("name", ["recurrent", "squashed", "dict_observation"])
def test_onnx_runtime_acts_as_the_saved_model(name: str, tmp_path: pathlib.Path) -> None:
    """The two models come from one policy by different ways, so each is an oracle of the other."""
    import onnxruntime

    policy = exportable(make(name))
    assert export_policy(policy, str(tmp_path), onnx=True) == ["saved_model", "model.onnx", "metadata.json"]
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    signatures = tf.saved_model.load(str(tmp_path / "saved_model")).signatures
    takes = [i.name for i in session.get_inputs()]
    described = json.loads((tmp_path / "metadata.json").read_text())["onnx"]
    assert described["inputs"] == takes
    assert ("step_type" in takes) == (name in RECURRENT)
    draw = np.random.default_rng(3)
    rows = 7
    state = {n: np.zeros((rows, *policy.leaf(n).shape), np.float32) for n in policy.state}
    for t in range(5):
        given = {leaf.name: leaf.draw(draw, rows).numpy() for leaf in policy.inputs} | state
        given["step_type"] = np.where(draw.random(rows) < (1.0 if t == 0 else 0.2), 0, 1).astype(np.int32)
        results = session.run(None, {n: given[n] for n in takes})
        outputs = dict(zip((o.name for o in session.get_outputs()), results, strict=True))
        for signature in signatures.values():
            inputs = signature.structured_input_signature[1]
            if "batch_size" in inputs:
                continue
            for key, tensor in signature(**{n: tf.constant(given[n]) for n in inputs}).items():
                if key not in policy.state:
                    np.testing.assert_allclose(outputs[key], tensor.numpy(), rtol=1e-5, atol=1e-5, err_msg=key)
        state = {n: outputs[f"next_{n}"] for n in policy.state}


@needs_extra
def test_parts_of_an_action_may_have_names_as_the_next_state(tmp_path: pathlib.Path) -> None:
    """Beside a state, whose outputs have the prefix that these names begin with."""
    parts = {"next_steer": CONTINUOUS, "next_gear": DISCRETE}
    policy = exportable(actor_critic(BOX, parts, recurrent(BOX, parts, 8)))
    export_policy(policy, str(tmp_path), onnx=True)
    outputs = json.loads((tmp_path / "metadata.json").read_text())["onnx"]["outputs"]
    states = {f"next_{name}" for name in policy.state}
    assert states
    given = {leaf.name: leaf.draw(np.random.default_rng(0), 2) for leaf in policy.inputs}
    heads = {name for function in policy.functions.values() for name in function(given)}
    assert {"action_next_steer", "action_next_gear", "next_gear_logits"} <= heads
    assert set(outputs) == states | (heads - set(policy.state))
    assert len(outputs) == len(set(outputs))


def _spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has converted models other weights."""
    convert = onnx_model._convert

    def wrong(*args: Any) -> Any:
        import onnx

        model = convert(*args)
        for weight in model.graph.initializer:
            values = onnx.numpy_helper.to_array(weight)
            if values.dtype == np.float32 and values.ndim == 2:
                weight.CopyFrom(onnx.numpy_helper.from_array(values + np.float32(1e-3), weight.name))
        return model

    monkeypatch.setattr(onnx_model, "_convert", wrong)


@needs_extra
def test_a_wrong_onnx_model_is_refused_and_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil(monkeypatch)
    with pytest.raises(ExportError, match="The ONNX model"):
        export_policy(exportable(make("feed_forward")), str(tmp_path / "model"), onnx=True)
    assert not list(tmp_path.iterdir())


@needs_extra
@pytest.mark.parametrize(("low", "high"), [(-1e4, 1e4), (1e5, 2e5)])
def test_large_observations_that_are_not_normalised_are_rounded_otherwise(
    low: float, high: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differences grow with what is multiplied, also where the products nearly cancel each other; weights still count."""
    policy = exportable(unnormalised(low, high))
    export_policy(policy, str(tmp_path / "model"), onnx=True)
    _spoil(monkeypatch)
    with pytest.raises(ExportError, match=r"The ONNX model: .* differs"):
        export_policy(policy, str(tmp_path / "wrong"), onnx=True)


def test_missing_packages_are_named_before_anything_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tf2onnx" else find(name))
    with pytest.raises(ExportError, match=r'needs .*tf2onnx.*pip install "\.\[onnx\]"'):
        export_policy(exportable(make("feed_forward")), str(tmp_path / "model"), onnx=True)
    assert not list(tmp_path.iterdir())
