"""Tensors in the place of variables: what of a traced function reads them, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from alf.utils.reading import reading

VALUE, GIVEN, X = 2.0, 7.0, 3.0


def variable() -> tf.Variable:
    return tf.Variable(VALUE)


def test_a_traced_function_its_loops_and_its_branches_read_the_tensor() -> None:
    v = variable()

    @tf.function(autograph=False)
    def function(given: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
        with reading([v], [given]):
            loop = tf.while_loop(
                lambda i, _: i < 3, lambda i, y: (i + 1, y + tf.cond(x > 0.0, lambda: v * x, lambda: v + x)), (0, 0.0)
            )
            inside = [v * x, v.read_value(), v.value(), loop[1]]
        return [*inside, v * x]

    concrete = function.get_concrete_function(tf.constant(GIVEN), tf.constant(X))
    assert concrete.graph.variables == (v,)  # by the last product
    found = [float(y) for y in function(tf.constant(GIVEN), tf.constant(X))]
    assert found == [GIVEN * X, GIVEN, GIVEN, 3 * GIVEN * X, VALUE * X]


def test_eager_code_reads_the_tensor() -> None:
    v = variable()
    with reading([v], [tf.constant(GIVEN)]):
        assert float(v * X) == GIVEN * X
    assert float(v * X) == VALUE * X


def test_after_an_error_variables_are_read_again() -> None:
    v = variable()
    with pytest.raises(KeyError), reading([v], [tf.constant(GIVEN)]):
        raise KeyError
    assert float(v * X) == VALUE * X


def test_values_for_some_of_the_variables_change_none() -> None:
    v = variable()
    with pytest.raises(ValueError, match="shorter"), reading([v, variable()], [tf.constant(GIVEN)]):
        pass
    assert float(v * X) == VALUE * X


def test_an_inner_function_meets_the_variable_and_is_used_again_elsewhere() -> None:
    v = variable()
    inner = tf.function(lambda x: v * x, autograph=False)

    def make() -> tf.types.experimental.PolymorphicFunction:
        @tf.function(autograph=False)
        def outer(given: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape, reading([v], [given]):
                y = inner(x)
            return [y, tape.gradient(y, v)]

        return outer

    for outer in (make(), make()):
        np.testing.assert_array_equal(outer(tf.constant(GIVEN), tf.constant(X)), [VALUE * X, X])
    assert float(inner(tf.constant(X))) == VALUE * X
