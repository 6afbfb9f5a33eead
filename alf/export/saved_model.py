"""Policies as TensorFlow SavedModels.

The graph of a policy never changes, so it is traced and serialised once; a later checkpoint writes the same graph file
and new weights beside it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from alf.export import verify
from alf.export.graphs import Traced, Weights, trace
from alf.export.policy import ExportablePolicy, ExportError, Tensors

INITIAL_STATE = "get_initial_state"

_GRAPH = "saved_model.pb"
_BUNDLE = os.path.join("variables", "variables")
_WEIGHT = "weights/{}/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"


class SavedModelWriter:
    """Writes SavedModels of one policy, and reads them back."""

    def __init__(self, policy: ExportablePolicy) -> None:
        """Traces the policy.

        Raises:
          ExportError: something in it cannot be part of a model.
        """
        self._policy = policy
        self._functions = {name: trace(policy, [name]) for name in policy.functions}
        self._weights = Weights(v for f in self._functions.values() for _, v in f.variables)
        values = self._weights.read()
        self._weights.copy(values)
        with tempfile.TemporaryDirectory() as directory:
            self._save_template(directory)
            with open(os.path.join(directory, _GRAPH), "rb") as file:
                self._graph = file.read()
            bundle = tf.train.load_checkpoint(os.path.join(directory, _BUNDLE))
            self._objects = tf.constant(bundle.get_tensor(_OBJECTS))
            written = set(bundle.get_variable_to_shape_map()) - {_OBJECTS}
        self._keys = [_WEIGHT.format(i) for i in range(len(values))]
        if written != set(self._keys):
            raise ExportError(f"TensorFlow wrote other weights than those of the policy: {sorted(written)}.")
        self._loaded: Any = None
        self._verified = False

    def inputs_of(self, signature: str) -> list[str]:
        """Names of what a signature takes, as arguments by name."""
        if signature == INITIAL_STATE:
            return ["batch_size"]
        used = self._functions[signature].inputs
        return [leaf.name for leaf in self._policy.inputs if leaf.name in used or leaf.name in self._always(signature)]

    def outputs_of(self, signature: str) -> list[str]:
        """Names of what a signature returns."""
        return list(self._policy.state if signature == INITIAL_STATE else self._functions[signature].outputs)

    @property
    def signatures(self) -> list[str]:
        """Names of the signatures; that of the initial state is there for recurrent policies only."""
        return [*self._functions, *([INITIAL_STATE] if self._policy.state else [])]

    def write(self, directory: str) -> None:
        """Writes the policy with its present weights; to be called by the thread that trains, between updates.

        Raises:
          ExportError: TensorFlow could not write the weights.
          OSError: the graph could not be written.
        """
        bundle = os.path.join(directory, _BUNDLE)
        os.makedirs(os.path.dirname(bundle))
        with open(os.path.join(directory, _GRAPH), "wb") as file:
            file.write(self._graph)
        tensors = [*self._weights.read(), self._objects]
        names = [*self._keys, _OBJECTS]
        try:
            tf.raw_ops.SaveV2(prefix=bundle, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
        except tf.errors.OpError as e:
            raise ExportError(f"The weights could not be written to {bundle}: {e.message}") from e

    def verify(self, directory: str) -> None:
        """Reads a written model back and compares it with the policy, whose weights must be those of `write`.

        The first model is compared with the policy run operation by operation; later ones with the traced policy, and
        for them the graph that was built of the first gets the weights in the files, since that is most of the work.

        Raises:
          ExportError: the files are not as they were written, or the model does not do what the policy does.
        """
        signatures = self._load(directory)
        for name, function in self._functions.items():
            call, inputs = signatures[name], self.inputs_of(name)
            run = function.run if self._verified else self._policy.functions[name]

            def model(given: Tensors, call: Any = call, inputs: list[str] = inputs) -> Tensors:
                return call(**{leaf: given[leaf] for leaf in inputs})

            verify.check(self._policy, run, model, f"The SavedModel's {name}")
        self._verified = True

    def _load(self, directory: str) -> dict[str, Callable[..., Tensors]]:
        with open(os.path.join(directory, _GRAPH), "rb") as file:
            if file.read() != self._graph:
                raise ExportError(f"{directory}: {_GRAPH} is not as it was written; is the disk full or damaged?")
        if self._loaded is None:
            self._loaded = tf.saved_model.load(directory)
        else:
            bundle = tf.train.load_checkpoint(os.path.join(directory, _BUNDLE))
            for variable, key in zip(self._loaded.weights, self._keys, strict=True):
                variable.assign(bundle.get_tensor(key))
        return dict(self._loaded.signatures)

    # ---- building ----

    def _always(self, signature: str) -> set[str]:
        """Inputs that a signature has whatever its operations use: what is observed, and its part of the state."""
        state = set(self._policy.state)
        own = {name for name in state if name in self._functions[signature].outputs}
        return set(self._policy.always) - state | own

    def _save_template(self, directory: str) -> None:
        module = tf.Module(name="policy")
        module.weights = self._weights.copies
        signatures = {name: self._signature(name, function) for name, function in self._functions.items()}
        if self._policy.state:
            signatures[INITIAL_STATE] = self._initial_state()
        # TensorFlow wraps each signature, and would rewrite the wrappers by AutoGraph: a third of the time of an export.
        save = tf.autograph.experimental.do_not_convert(tf.saved_model.save)
        try:
            save(module, directory, signatures=signatures)
        except tf.errors.OpError as e:
            raise ExportError(
                f"The graph could not be written to {directory} ({e.message}): make room there, or set TMPDIR."
            ) from e

    def _signature(self, name: str, function: Traced) -> Any:
        def run(**inputs: tf.Tensor) -> Tensors:
            return function.build(inputs, self._weights.handle_of)

        specs = {leaf: self._policy.leaf(leaf).tensor_spec() for leaf in self.inputs_of(name)}
        return tf.function(run, autograph=False).get_concrete_function(**specs)

    def _initial_state(self) -> Any:
        def run(batch_size: tf.Tensor) -> Tensors:
            return {name: self._policy.leaf(name).zeros(batch_size) for name in self._policy.state}

        return tf.function(run, autograph=False).get_concrete_function(
            batch_size=tf.TensorSpec([], tf.int32, "batch_size")
        )
