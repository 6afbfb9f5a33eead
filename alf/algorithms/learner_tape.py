"""The tape of an update."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from alf.utils.reading import reading


class LearnerTape:
    """A `tf.GradientTape` under which traced code reads every weight once, however often its network is used.

    TensorFlow reads a variable anew wherever it is used, and each time converts it anew where products are of bfloat16.
    A critic is used twice in an update, for its own loss and for the actor's.
    """

    def __init__(self, weights: Sequence[tf.Variable], persistent: bool) -> None:
        """Creates the tape.

        Args:
          weights: what is learned, each once; not assigned to under the tape.
          persistent: `gradient` may be called more than once.
        """
        self._tape = tf.GradientTape(persistent=persistent)
        self._weights = weights
        self._values: list[tf.Tensor] | None = None
        self._reading = contextlib.ExitStack()

    def __enter__(self) -> LearnerTape:
        self._tape.__enter__()
        # Eager code reads without an operation.
        if not tf.executing_eagerly():
            if self._values is None:
                self._values = [tf.convert_to_tensor(weight) for weight in self._weights]
            self._reading.enter_context(reading(self._weights, self._values))
        return self

    def __exit__(self, *exc: Any) -> None:
        self._reading.close()
        self._tape.__exit__(*exc)

    def gradient(self, target: tf.Tensor, sources: Sequence[tf.Variable]) -> list[tf.Tensor | None]:
        """Gradients of a scalar in variables, None for a variable without any; see `tf.GradientTape`."""
        return self._tape.gradient(target, sources)
