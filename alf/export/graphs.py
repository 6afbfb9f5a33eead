"""Policies as TensorFlow functions that hold copies of the weights and nothing else of the program they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from alf.export.policy import ExportablePolicy, ExportError, Tensors
from alf.utils import tracing
from alf.utils.common import portable

# Operations that call back into the Python program which made them.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function of a policy, traced: the operations that its outputs need, apart from the weights.

    Attributes:
      graph_def: those operations, inputs and weights as placeholders.
      inputs: placeholder of each input that is used, by name.
      outputs: tensor names by name.
      variables: (placeholder, variable) of those that are read.
      constants: (placeholder, value) of tensors that the function found in its program.
      run: the traced function itself, which reads live variables: from all inputs of the policy to the named outputs.
    """

    graph_def: graph_pb2.GraphDef
    inputs: dict[str, str]
    outputs: dict[str, str]
    variables: list[tuple[str, tf.Variable]]
    constants: list[tuple[str, Any]]
    run: Callable[[Tensors], Tensors]

    def build(self, inputs: Mapping[str, tf.Tensor], handle_of: Callable[[tf.Variable], tf.Tensor]) -> Tensors:
        """Puts the operations into the graph that is being traced.

        Args:
          inputs: tensors by name; those that are not needed are left out.
          handle_of: the resource to read instead of a variable.

        Returns:
          the named outputs.
        """
        found = {placeholder: inputs[name] for name, placeholder in self.inputs.items()}
        found |= {placeholder: handle_of(variable) for placeholder, variable in self.variables}
        found |= {placeholder: tf.constant(value) for placeholder, value in self.constants}
        names = list(self.outputs)
        tensors = tf.graph_util.import_graph_def(
            self.graph_def,
            input_map={f"{placeholder}:0": tensor for placeholder, tensor in found.items()},
            return_elements=[self.outputs[name] for name in names],
            name="policy",
        )
        return dict(zip(names, tensors, strict=True))


def trace(policy: ExportablePolicy, functions: Sequence[str]) -> Traced:
    """Traces functions of a policy as one; outputs of one name are those of the last that has it.

    Raises:
      ExportError: it calls Python, or holds something that a model cannot, such as a table.
    """

    def run(inputs: Tensors) -> Tensors:
        outputs: Tensors = {}
        for name in functions:
            outputs |= policy.functions[name](inputs)
        # An input that is handed through needs an operation of its own to be an output.
        return {name: tf.identity(tensor) for name, tensor in outputs.items()}

    specs = {leaf.name: leaf.tensor_spec() for leaf in policy.inputs}
    with portable():
        concrete = tf.function(run, autograph=False).get_concrete_function(specs)
    graph = concrete.graph
    what = " and ".join(functions)
    outputs = {name: tensor.name for name, tensor in concrete.structured_outputs.items()}
    needed = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), [name.partition(":")[0] for name in outputs.values()]
    )
    _refuse_python(needed, what)
    present = {node.name for node in needed.node}
    placeholders = tf.nest.flatten(concrete.structured_input_signature[0][0])
    inputs = {spec.name: tensor.op.name for spec, tensor in zip(placeholders, graph.inputs, strict=False)}
    variables, constants = _captures(graph, present, what)
    used = {name: placeholder for name, placeholder in inputs.items() if placeholder in present}
    return Traced(needed, used, outputs, variables, constants, concrete)


def _captures(graph: Any, present: set[str], what: str) -> tuple[list[tuple[str, tf.Variable]], list[tuple[str, Any]]]:
    by_handle = {id(v.handle): v for v in graph.variables}
    variables, constants = [], []
    for outside, inside in graph.captures:
        placeholder = inside.op.name
        if placeholder not in present:
            continue
        if id(outside) in by_handle:
            variables.append((placeholder, by_handle[id(outside)]))
        elif outside.dtype != tf.resource and hasattr(outside, "numpy"):
            constants.append((placeholder, outside.numpy()))
        else:
            raise ExportError(
                f"The policy's {what} uses {outside!r}, which a model cannot hold: use tensors and variables only."
            )
    return variables, constants


def _refuse_python(graph_def: graph_pb2.GraphDef, what: str) -> None:
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    found = sorted({node.name for node in nodes if node.op in _PYTHON_OPS})
    if found:
        raise ExportError(
            f"The policy's {what} calls Python in {found}, so it cannot run without it: use TensorFlow operations in "
            "place of tf.py_function and tf.numpy_function."
        )


class Weights:
    """Variables in place of those of a policy, with values of their own."""

    def __init__(self, variables: Iterable[tf.Variable]) -> None:
        self._live = list({v.ref(): v for v in variables}.values())
        self._place = {v.ref(): i for i, v in enumerate(self._live)}
        self._read = tracing.Traced(lambda: tuple(v.read_value() for v in self._live))
        self.copies: list[tf.Variable] = []

    def read(self) -> tuple[tf.Tensor, ...]:
        """The present values of the policy's variables; to be called by the thread that trains, between updates."""
        values: tuple[tf.Tensor, ...] = self._read()
        return values

    def copy(self, values: Sequence[tf.Tensor]) -> None:
        """Gives the copies `values`."""
        if not self.copies:
            self.copies = [
                tf.Variable(x, trainable=v.trainable, name=v.name.partition(":")[0])
                for x, v in zip(values, self._live, strict=True)
            ]
            return
        for variable, value in zip(self.copies, values, strict=True):
            variable.assign(value)

    def handle_of(self, variable: tf.Variable) -> tf.Tensor:
        """The resource of the copy of a variable, in the graph that is being traced."""
        graph, copy = tf.compat.v1.get_default_graph(), self.copies[self._place[variable.ref()]]
        graph.watch_variable(copy)
        return graph.capture(copy.handle)
