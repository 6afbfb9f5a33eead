"""Makes a step of some variables smaller until what it changes is small enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Nest = Any

_SHRINK = 0.9
# A change that is infinite, or not a number, says nothing about how far to go back.
_LEAST_SHARE = 1e-3


class TrustedUpdater:
    """Holds the values of variables before a step, to shorten the step afterwards.

    For traced code: create it before the step, in the same function, and call `adjust_step` after it.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Reads the variables.

        Args:
          variables: what the step is going to change.
        """
        self._variables = list(variables)
        # An update of the variable copies a buffer that somebody else holds, before it writes.
        self._before = [v.read_value() for v in self._variables]

    def adjust_step(
        self, change_f: Callable[[], Nest], max_change: Nest, max_shrinks: int = 100
    ) -> tuple[Nest, tf.Tensor]:
        """Shortens the step until no change is larger than allowed.

        Each time the step is multiplied by 0.9 * max_change / change, of the worst of the changes, but by no less than
        0.001; what is not small enough after `max_shrinks` times is taken back altogether.

        Args:
          change_f: gives a nest of float32 [], how much the present variables differ from those before the step; about
            linear in the length of the step.
          max_change: nest of positive numbers of the same structure.
          max_shrinks: see above.

        Returns:
          (the nest of changes before anything was shortened, how often the step was shortened int32 []).
        """
        first = change_f()
        limits = tf.stack([tf.cast(limit, tf.float32) for limit in tf.nest.flatten(max_change)])

        def ratio_of(change: Nest) -> tf.Tensor:
            changes = tf.stack(tf.nest.flatten(change))
            ratios = tf.where(tf.math.is_finite(changes), limits / tf.maximum(changes, 1e-30), 0.0)
            return tf.reduce_min(ratios)

        def shorten(ratio: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            self._go(tf.maximum(_SHRINK * ratio, _LEAST_SHARE))
            return ratio_of(change_f()), count + 1

        ratio, count = tf.while_loop(
            lambda ratio, count: tf.logical_and(ratio < 1.0, count < max_shrinks),
            shorten,
            (ratio_of(first), tf.constant(0)),
            parallel_iterations=1,
        )
        taken_back = ratio < 1.0
        tf.cond(taken_back, self._take_back, lambda: taken_back)
        return first, count

    def _go(self, share: tf.Tensor) -> None:
        """Keeps only `share` of the step from the old values to the present ones."""
        for variable, before in zip(self._variables, self._before, strict=True):
            variable.assign(before + share * (variable - before))

    def _take_back(self) -> tf.Tensor:
        """Returns True."""
        # Not as no share of the step, which may be infinite or not a number.
        for variable, before in zip(self._variables, self._before, strict=True):
            variable.assign(before)
        return tf.constant(True)
