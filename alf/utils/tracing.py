"""Traced functions whose calls skip TensorFlow's own look at the arguments.

TensorFlow compares each tensor of a call with its spec, in Python: 1.5 ms for the twenty of a batch of experience, a
third of the time of a step that is acted outside the graph. It also counts how often each line of code is traced, in all
of the process: a notebook that trains several times would be warned of tracing that it can do nothing about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from alf.data_structures import Nest


class Concrete:
    """`function` traced once, for tensors of given specs, which callers must give: they are not checked again."""

    def __init__(self, function: Callable[..., Any], *specs: Nest) -> None:
        """Traces, without AutoGraph.

        Args:
          function: of nests of tensors.
          *specs: a nest of `tf.TensorSpec`, or of tensors like those to come, for each argument.
        """
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        flat = tf.nest.flatten(specs)
        given = traced.inputs[: len(flat)]
        assert [(x.shape, x.dtype) for x in given] == [(s.shape, s.dtype) for s in flat], "inputs are in another order"
        self._traced = traced
        self._captured = traced.captured_inputs

    @property
    def graph(self) -> tf.Graph:
        """What was traced."""
        return self._traced.graph

    def __call__(self, *args: Nest) -> Any:
        """The result for nests of tensors of the specs."""
        return self._traced._call_flat(tf.nest.flatten(args), self._captured)


class Traced:
    """`function` traced anew for tensors of other shapes or types; the structure of its arguments must stay the same."""

    def __init__(self, function: Callable[..., Any], *specs: Nest) -> None:
        """Nothing is traced before the first call.

        Args:
          function: of nests of tensors.
          *specs: a nest of `tf.TensorSpec` for each argument has it traced once, for whatever is as they say.
        """
        self._function = function
        self._specs = specs
        self._concrete: dict[tuple[Any, ...], Concrete] = {}

    def prepare(self) -> None:
        """Traces for the specs that were given, which the first call would do."""
        if self._specs and () not in self._concrete and not tf.config.functions_run_eagerly():
            self._concrete[()] = Concrete(self._function, *self._specs)

    def __call__(self, *args: Nest) -> Any:
        """The result for nests of tensors."""
        if tf.config.functions_run_eagerly():
            return self._function(*args)
        key = () if self._specs else tuple((x.shape, x.dtype) for x in tf.nest.flatten(args))
        concrete = self._concrete.get(key)
        if concrete is None:
            concrete = self._concrete[key] = Concrete(self._function, *(self._specs or args))
        return concrete(*args)
