"""The tape of an update gives the gradients of a plain tape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.learner_tape import LearnerTape

X = [[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]]


class Doubled(tf.Module):
    """A network of two weights, one of which it reads in a function of its own, as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable([[0.5], [-1.0], [2.0]])
        self.scale = tf.Variable(3.0)

    @tf.function(autograph=False)
    def scaled(self, x: tf.Tensor) -> tf.Tensor:
        return self.scale * x

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.scaled(tf.tanh(x @ self.kernel))


@pytest.mark.parametrize("traced", [True, False])
def test_gradients_are_those_of_a_plain_tape(traced: bool) -> None:
    network = Doubled()
    weights = [network.kernel, network.scale, tf.Variable(1.0)]

    def gradients(tape: Any) -> list[Any]:
        with tape:
            once = network(tf.constant(X))
        with tape:
            # The loss has the network once more.
            loss = tf.reduce_sum(once * network(2.0 * once * tf.constant(X)))
        return [x for x in tape.gradient(loss, weights) if x is not None]

    def both() -> list[Any]:
        return [gradients(LearnerTape(weights, persistent=False)), gradients(tf.GradientTape())]

    once, plain = (tf.function(both, autograph=False) if traced else both)()
    assert len(once) == len(plain) == 2  # nothing depends on the third
    for a, b in zip(once, plain, strict=True):
        assert np.any(a != 0.0)
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_persistent_tape_gives_gradients_more_than_once() -> None:
    network = Doubled()
    weights = [network.kernel, network.scale]

    @tf.function(autograph=False)
    def update() -> list[Any]:
        with LearnerTape(weights, persistent=True) as tape:
            loss = tf.reduce_sum(network(tf.constant(X)))
        found = []
        for weight in weights:
            (gradient,) = tape.gradient(loss, [weight])
            weight.assign_sub(gradient)
            found.append((gradient, weight.read_value()))
        return found

    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(network(tf.constant(X)))
    expected, before = plain.gradient(loss, weights), [w.numpy() for w in weights]
    for (found, after), wanted, weight, old in zip(update(), expected, weights, before, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        np.testing.assert_allclose(after, old - wanted, rtol=1e-6)
        np.testing.assert_allclose(weight, old - wanted, rtol=1e-6)
