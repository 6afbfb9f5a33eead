"""Policies as ONNX models, with the extra `onnx`.

One model has all heads: the action, the parameters of its distribution, the value and the new state. Its inputs are
only what acting needs.
"""

from __future__ import annotations

import importlib.util
import logging as std_logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from alf._extras import how_to_install
from alf.export import verify
from alf.export.graphs import Traced, Weights, trace
from alf.export.policy import ExportablePolicy, ExportError, Tensors

# What ONNX calls the state after the step, since its inputs and outputs share their names.
NEXT = "next_"

_PACKAGES = ("onnx", "onnxruntime", "tf2onnx")
_OPSET = 17

# ONNX Runtime sums in another order, and where terms of many thousands cancel, more than the tolerance is left.
_LARGEST_INPUT = 100.0


def check_onnx() -> None:
    """Raises ExportError when the packages of the extra are missing."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"An ONNX model needs {', '.join(missing)}; a SavedModel alone needs nothing more: {how_to_install('onnx')}"
        )


def write(policy: ExportablePolicy, path: str) -> dict[str, Any]:
    """Writes a policy with its present weights, and compares the file with it in ONNX Runtime.

    Returns:
      names of the inputs and outputs, for `metadata.json`.

    Raises:
      ExportError: it cannot be converted, or does something else than the policy.
    """
    functions = list(policy.functions)
    traced = trace(policy, functions)
    try:
        model = _convert(policy, traced)
    except Exception as e:  # a converter fails in as many ways as there are graphs
        raise ExportError(f"tf2onnx cannot convert this policy: {type(e).__name__}: {e}") from e
    _check_operations(model.graph)
    with open(path, "wb") as file:
        file.write(model.SerializeToString())
    _verify(policy, functions, path)
    return {
        "opset": _OPSET,
        "inputs": [value.name for value in model.graph.input],
        "outputs": [value.name for value in model.graph.output],
    }


def _convert(policy: ExportablePolicy, traced: Traced) -> Any:
    import tf2onnx

    weights = Weights(variable for _, variable in traced.variables)
    weights.copy(weights.read())

    def run(**inputs: tf.Tensor) -> Tensors:
        return traced.build(inputs, weights.handle_of)

    specs = {leaf.name: leaf.tensor_spec() for leaf in policy.inputs if leaf.name in traced.inputs}
    concrete = tf.function(run, autograph=False).get_concrete_function(**specs)
    frozen = convert_variables_to_constants_v2(concrete)
    inputs = {tensor.name: name for tensor, name in zip(frozen.inputs, sorted(specs), strict=True)}
    outputs = {
        tensor.name: NEXT + name if name in policy.state else name
        for tensor, name in zip(frozen.outputs, sorted(traced.outputs), strict=True)
    }
    # What it cannot convert is told in a sentence.
    std_logging.getLogger("tf2onnx").setLevel(std_logging.CRITICAL)
    model, _ = tf2onnx.convert.from_graph_def(
        frozen.graph.as_graph_def(), input_names=list(inputs), output_names=list(outputs), opset=_OPSET
    )
    _rename(model.graph, inputs | outputs)
    return model


def _check_operations(graph: Any) -> None:
    """Raises ExportError where an ONNX graph has operations of TensorFlow, which tf2onnx leaves as they are."""
    import onnx

    foreign = sorted({node.op_type for node in graph.node if not onnx.defs.has(node.op_type, node.domain)})
    if foreign:
        raise ExportError(
            f"ONNX has no {', '.join(foreign)}, by which this policy computes, as those that draw goals and agents of "
            "TF-Agents do: leave the ONNX model out, the SavedModel has it."
        )


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Gives values of an ONNX graph other names."""
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _verify(policy: ExportablePolicy, functions: list[str], path: str) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime has no common base of its errors
        raise ExportError(f"ONNX Runtime refuses the converted model: {e}") from e
    inputs = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    # Actions and parameters may have names that begin alike.
    states = {NEXT + name: name for name in policy.state}

    def model(given: Tensors) -> dict[str, np.ndarray]:
        results = session.run(outputs, {name: given[name].numpy() for name in inputs})
        return {states.get(name, name): result for name, result in zip(outputs, results, strict=True)}

    def heads(given: Tensors) -> Tensors:
        merged: Tensors = {}
        for name in functions:
            merged |= policy.functions[name](given)
        return merged

    verify.check(policy, heads, model, "The ONNX model", _LARGEST_INPUT)
