"""A step that changes too much is shortened until it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.utils.trusted_updater import TrustedUpdater


def take(
    step: np.ndarray, change_of: Any, limits: Any, max_shrinks: int = 100
) -> tuple[Any, np.ndarray, np.ndarray, int]:
    """The changes of the whole step, the variables before and after it was shortened, and how often it was."""
    start = np.linspace(-1.0, 1.0, step.size).reshape(step.shape).astype(np.float32)
    variables = [tf.Variable(start[0]), tf.Variable(start[1:])]

    @tf.function(autograph=False)
    def run() -> Any:
        updater = TrustedUpdater(variables)
        for variable, delta in zip(variables, (step[0], step[1:]), strict=True):
            variable.assign_add(delta)
        return updater.adjust_step(lambda: change_of(variables, start), limits, max_shrinks)

    first, count = run()
    return first, start, np.concatenate([variables[0].numpy()[None], variables[1].numpy()]), int(count)


def norms(variables: Any, start: np.ndarray) -> Any:
    return {
        "first": tf.norm(variables[0] - start[0]),
        "rest": (tf.reduce_max(tf.abs(variables[1] - start[1:])) ** 1.3,),
    }


@given(
    step=st.lists(st.floats(-20, 20, width=32, allow_subnormal=False), min_size=6, max_size=6),
    limit=st.floats(0.0009765625, 50.0, width=32),
)
def test_no_change_is_larger_than_allowed_and_the_direction_stays(step: list[float], limit: float) -> None:
    delta = np.array(step, np.float32).reshape(3, 2)
    limits = {"first": limit, "rest": (2 * limit,)}
    first, start, after, count = take(delta, norms, limits)
    moved = norms([tf.constant(after[0]), tf.constant(after[1:])], start)
    assert float(moved["first"]) <= limit * 1.001 + 1e-6
    assert float(moved["rest"][0]) <= 2 * limit * 1.001 + 1e-6
    whole = float(first["first"]) <= limit and float(first["rest"][0]) <= 2 * limit
    assert (count == 0) == whole
    if whole:
        np.testing.assert_array_equal(after, start + delta)
    else:
        # The same share of every component.
        share = np.dot((after - start).ravel(), delta.ravel()) / np.dot(delta.ravel(), delta.ravel())
        np.testing.assert_allclose(after - start, share * delta, atol=2e-6 * (1 + np.abs(delta).max()))
        assert 0.0 <= share < 1.0


def test_a_linear_change_is_shortened_once_to_nine_tenths_of_the_limit() -> None:
    delta = np.full([3, 2], 4.0, np.float32)
    _, start, after, count = take(delta, lambda v, s: tf.norm(v[0] - s[0]), 1.0)
    assert count == 1
    np.testing.assert_allclose(np.linalg.norm(after[0] - start[0]), 0.9, rtol=1e-5)


def test_what_cannot_be_made_small_is_taken_back() -> None:
    _, start, after, count = take(np.ones([3, 2], np.float32), lambda v, s: tf.constant(5.0), 1.0, max_shrinks=7)
    assert count == 7
    np.testing.assert_array_equal(after, start)


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_step_to_no_number_is_taken_back(lost: float) -> None:
    step = np.ones([3, 2], np.float32)
    step[1, 1] = lost
    _, start, after, _ = take(step, lambda v, s: tf.reduce_max(tf.abs(v[1] - s[1:])), 1.0)
    np.testing.assert_array_equal(after, start)


def test_an_infinite_change_is_gone_back_from_but_not_all_the_way() -> None:
    def change(variables: object, start: np.ndarray) -> tf.Tensor:
        norm = norms(variables, start)["first"]
        return tf.where(norm > 2.0, tf.constant(np.inf), norm)

    _, start, after, count = take(np.full([3, 2], 4.0, np.float32), change, 1.0)
    assert count == 1
    assert 0.0 < np.linalg.norm(after[0] - start[0]) <= 1.0
