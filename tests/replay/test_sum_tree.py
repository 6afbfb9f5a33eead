"""The sum tree against a linear scan."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.replay.sum_tree import SumTree


def _scan(weights: np.ndarray, at: float) -> int:
    """The leaf in whose share `at` lies, found one by one."""
    begin = 0.0
    for leaf, weight in enumerate(weights):
        if begin <= at < begin + weight:
            return leaf
        begin += weight
    raise AssertionError("past the total")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_draws_and_sums_are_those_of_a_linear_scan(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    tree, weights = SumTree(size, data.draw(st.integers(2, 5))), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 3))):
        leaves = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8, unique=True))
        # Whole numbers: sums are exact in whatever order.
        values = data.draw(st.lists(st.integers(0, 9), min_size=len(leaves), max_size=len(leaves)))
        tree.set(tf.constant(leaves, tf.int64), tf.constant(values, tf.float64))
        weights[leaves] = values
    np.testing.assert_array_equal(tree.get(tf.range(size, dtype=tf.int64)), weights)
    assert float(tree.total()) == weights.sum()
    at = np.arange(0, weights.sum(), 0.5)
    if len(at):
        np.testing.assert_array_equal(tree.draw(tf.constant(at)), [_scan(weights, a) for a in at])


def test_rounding_never_draws_a_leaf_without_weight() -> None:
    rng = np.random.default_rng(0)
    weights = np.where(rng.random(500) < 0.9, 0.0, rng.random(500) * 10.0 ** rng.integers(-12, 3, 500))
    tree = SumTree(500, 7)
    tree.set(tf.range(500, dtype=tf.int64), tf.constant(weights))
    total = float(tree.total())
    edges = np.cumsum(weights)
    at = np.concatenate([edges, np.nextafter(edges, 0), [0.0, total, np.nextafter(total, np.inf)]])
    assert (weights[tree.draw(tf.constant(at)).numpy()] > 0).all()


def test_what_is_cleared_weighs_nothing() -> None:
    tree = SumTree(10, 3)
    tree.set(tf.constant([4], tf.int64), tf.constant([2.0], tf.float64))
    tree.clear()
    assert float(tree.total()) == 0.0
    with pytest.raises(ValueError, match="size >= 1"):
        SumTree(0)
