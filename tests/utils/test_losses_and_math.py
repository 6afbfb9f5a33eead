"""Element-wise losses and masked statistics against numpy."""

import gin
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from alf.utils import losses, math_ops

# TensorFlow takes subnormal numbers for 0.
_floats = st.floats(-100, 100, width=32, allow_subnormal=False)
_masked = hnp.array_shapes(min_dims=1, max_dims=2, max_side=6).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float32, shape, elements=_floats),
        hnp.arrays(np.float32, shape, elements=_floats),
        hnp.arrays(np.bool_, shape),
    )
)


@gin.configurable(module="alf_tests")
def _holder(fn=None):
    return fn


@pytest.mark.parametrize("name", ["element_wise_huber_loss", "losses.element_wise_huber_loss"])
def test_gin_finds_losses_under_both_names(name):
    with gin.unlock_config():
        gin.parse_config(f"_holder.fn = @{name}")
    try:
        assert float(_holder()(tf.constant(3.0), tf.constant(1.0))) == 1.5
    finally:
        gin.clear_config()


@pytest.mark.parametrize("name", ["clipped_exp", "math_ops.swish", "estimated_entropy", "action_importance_ratio"])
def test_gin_knows_the_public_functions(name):
    from alf.utils import dist_utils  # noqa: F401

    with gin.unlock_config():
        gin.parse_config(f"_holder.fn = @{name}")
    gin.clear_config()


@given(st.tuples(_floats, _floats))
def test_element_wise_losses(pair):
    x, y = pair
    d = abs(np.float32(x) - np.float32(y))
    huber = 0.5 * d * d if d <= 1 else d - 0.5
    np.testing.assert_allclose(losses.element_wise_huber_loss(tf.constant(x), tf.constant(y)), huber, 1e-5, 1e-6)
    np.testing.assert_allclose(losses.element_wise_squared_loss(tf.constant(x), tf.constant(y)), d * d, 1e-5, 1e-6)


@pytest.mark.parametrize(("d", "slope"), [(0.0, 0.0), (0.5, 0.5), (-0.5, -0.5), (3.0, 1.0), (-3.0, -1.0)])
def test_huber_gradient(d, slope):
    y = tf.constant(d)
    with tf.GradientTape() as tape:
        tape.watch(y)
        loss = losses.element_wise_huber_loss(tf.constant(0.0), y)
    assert float(tape.gradient(loss, y)) == pytest.approx(slope)


def test_activations():
    x = np.array([-30.0, -1.0, 0.0, 1.0, 5.0], np.float32)
    np.testing.assert_allclose(math_ops.clipped_exp(x), np.exp(np.clip(x, -20, 2)), rtol=1e-6)
    np.testing.assert_allclose(math_ops.swish(x), x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(_masked)
def test_masked_mean(case):
    x, _, mask = case
    expected = x[mask].mean() if mask.any() else 0.0
    np.testing.assert_allclose(math_ops.masked_mean(tf.constant(x), tf.constant(mask)), expected, 1e-4, 1e-4)
    np.testing.assert_allclose(math_ops.masked_mean(tf.constant(x)), x.mean(), 1e-4, 1e-4)


@settings(max_examples=60, deadline=None)
@given(_masked)
def test_normalize_advantages(case):
    x, _, mask = case
    got = math_ops.normalize_advantages(tf.constant(x), tf.constant(mask)).numpy()
    assert np.isfinite(got).all()
    assert (got[~mask] == 0).all()
    valid = x[mask].astype(np.float64)
    if len(valid) == 1:
        np.testing.assert_array_equal(got[mask], x[mask])
    elif len(valid) > 1 and valid.std() > 0.01:
        np.testing.assert_allclose(got[mask], (valid - valid.mean()) / (valid.std() + 1e-8), rtol=2e-2, atol=2e-3)


def test_normalize_advantages_without_mask_and_with_constants():
    got = math_ops.normalize_advantages(tf.constant([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(got, [-1.2247449, 0, 1.2247449], rtol=1e-6)
    np.testing.assert_array_equal(math_ops.normalize_advantages(tf.constant([2.0, 2.0])), [0, 0])
    np.testing.assert_array_equal(math_ops.normalize_advantages(tf.constant([[7.0]])), [[7.0]])


@settings(max_examples=60, deadline=None)
@given(_masked)
def test_explained_variance(case):
    y, prediction, mask = case
    got = float(math_ops.explained_variance(tf.constant(prediction), tf.constant(y), tf.constant(mask)))
    assert np.isfinite(got)
    valid, residual = y[mask].astype(np.float64), (y - prediction)[mask].astype(np.float64)
    if len(valid) > 1 and valid.var() > 0.1:
        np.testing.assert_allclose(got, 1 - residual.var() / valid.var(), rtol=1e-2, atol=1e-3)


def test_explained_variance_of_known_cases():
    y = tf.constant([1.0, 2.0, 3.0])
    assert float(math_ops.explained_variance(y, y)) == 1.0
    assert float(math_ops.explained_variance(tf.fill([3], 9.0), y)) == 0.0
    assert float(math_ops.explained_variance(-y, y)) == pytest.approx(-3.0)
    assert float(math_ops.explained_variance(y, tf.ones([3]))) == 0.0
