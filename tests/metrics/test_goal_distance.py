"""The distance from the goal, as observations tell it."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from alf.metrics.goal_distance import goal_distance, has_goal


def test_distances_are_those_of_a_plain_loop():
    rng = np.random.default_rng(1)
    achieved, desired = rng.normal(size=(2, 3, 4, 2, 2)), rng.normal(size=(2, 3, 4, 2, 2))
    found = goal_distance({"achieved_goal": achieved, "desired_goal": tf.constant(desired)}, 3)
    assert found.shape == (2, 3, 4)
    for place in np.ndindex(2, 3, 4):
        apart = [(a - b) ** 2 for a, b in zip(achieved[place].ravel(), desired[place].ravel(), strict=True)]
        assert math.isclose(found[place], math.sqrt(sum(apart)))


def test_which_observations_tell_a_goal():
    spec = tf.TensorSpec([2], tf.float32)
    goal = {"observation": spec, "achieved_goal": spec, "desired_goal": spec}
    assert has_goal(goal)
    assert not has_goal(spec)
    assert not has_goal([spec, spec])
    assert not has_goal({"observation": spec, "desired_goal": spec})
    assert not has_goal({**goal, "achieved_goal": tf.TensorSpec([3], tf.float32)})
    assert not has_goal({**goal, "achieved_goal": {"x": spec}, "desired_goal": {"x": spec}})
    for nested in ({"x": spec}, (spec,)):
        assert not has_goal({**goal, "desired_goal": nested})
        assert not has_goal({**goal, "achieved_goal": nested})
