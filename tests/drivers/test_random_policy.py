"""Random actions lie within their specs, use all of them, and follow from the seed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec
from tf_agents.trajectories.policy_step import PolicyStep

from alf.data_structures import ActionTimeStep
from alf.drivers.random_policy import random_policy
from alf.drivers.unroll import Call
from alf.utils.random_actions import random_actions

ROWS = 2000


def _draw(spec, seed=0, t=0):
    def policy(call, time_step, state, t):
        return PolicyStep("of the policy", state, "its info"), "version"

    call = Call((), (), (), tf.constant([seed, 1]), tf.constant(0), tf.constant(0))
    time_step = ActionTimeStep(step_type=tf.zeros([ROWS], tf.int32))
    random = random_policy(policy, lambda seen: random_actions(spec, tf.shape(seen.step_type)[:1]))
    step, version = random(call, time_step, "state", tf.constant(t))
    assert (step.state, step.info, version) == ("state", "its info", "version")
    return tf.nest.map_structure(lambda a: a.numpy(), step.action)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_whole_numbers_are_uniform_over_their_range(dtype):
    drawn = _draw(BoundedTensorSpec([], dtype, 2, 5))
    assert drawn.dtype == dtype.as_numpy_dtype
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert counts.min() > ROWS / 4 * 0.8


def test_bounds_of_each_element():
    drawn = _draw(BoundedTensorSpec([2], tf.float32, [-1.0, 3.0], [1.0, 4.0]))
    assert drawn.shape == (ROWS, 2)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.min(0), [-1.0, 3.0], atol=0.01)
    np.testing.assert_allclose(drawn.max(0), [1.0, 4.0], atol=0.01)
    np.testing.assert_allclose(drawn.mean(0), [0.0, 3.5], atol=0.06)


def test_without_finite_bounds_actions_are_normal():
    most = np.finfo(np.float32).max
    for low, high in ((-most, most), (-np.inf, np.inf)):
        drawn = _draw(BoundedTensorSpec([], tf.float32, low, high))
        np.testing.assert_allclose([drawn.mean(), drawn.std()], [0.0, 1.0], atol=0.1)
    for infinite in (most, np.inf):  # the former is what specs of environments have
        drawn = _draw(BoundedTensorSpec([3], tf.float32, [0.0, -infinite, -2.0], [infinite, 1.0, 2.0]))
        assert (drawn[:, 0].min(), drawn[:, 1].max()) == (0.0, 1.0)
        assert np.abs(drawn).max() < 10.0
        np.testing.assert_allclose(drawn[:, 2].std(), 4.0 / np.sqrt(12.0), atol=0.05)


def test_the_seed_decides_and_nested_actions_differ():
    spec = {"a": BoundedTensorSpec([], tf.float32, 0, 1), "b": BoundedTensorSpec([], tf.float32, 0, 1)}
    first, again, other, later = _draw(spec), _draw(spec), _draw(spec, seed=1), _draw(spec, t=1)
    np.testing.assert_array_equal(first["a"], again["a"])
    for different in (first["b"], other["a"], later["a"]):
        assert not np.array_equal(first["a"], different)
