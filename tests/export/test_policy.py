"""Names of leaves, their random values, and what counts as equal."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.specs import tensor_spec

from alf.algorithms.exporting import exportable
from alf.data_structures import StepType
from alf.environments import spaces
from alf.export import ExportError, verify
from alf.export.policy import Leaf, named
from tests.export.policies import make

_PAIR = collections.namedtuple("_PAIR", ["b", "a"])
_KEYS = st.text("aAbé_/ 1", min_size=1, max_size=3)
_NESTS = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.dictionaries(_KEYS, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(_PAIR, inner, inner),
    ),
    max_leaves=8,
)


@given(_NESTS)
def test_names_are_in_tensorflows_order_and_fit_for_signatures(nest: Any) -> None:
    pairs = named("state", nest)
    assert [leaf for _, leaf in pairs] == tf.nest.flatten(nest)
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"state[a-z0-9_]*", name) for name in names)


def test_names_are_the_paths() -> None:
    nest = {"Camera": 1, "goal": _PAIR([2, 3], 4), "go al": 5, "go_al": 6}
    assert named("observation", nest) == [
        ("observation_camera", 1),
        ("observation_go_al", 5),
        ("observation_go_al_2", 6),
        ("observation_goal_b_0", 2),
        ("observation_goal_b_1", 3),
        ("observation_goal_a", 4),
    ]
    assert named("action", 7) == [("action", 7)]


@given(
    st.sampled_from([tf.float32, tf.int64, tf.uint8, tf.int8]),
    st.tuples(st.integers(-100, 100), st.integers(0, 27)),
    st.booleans(),
    st.booleans(),
)
def test_random_values_are_within_the_bounds(dtype: Any, bounds: Any, below: bool, above: bool) -> None:
    low, high = bounds[0], bounds[0] + bounds[1]
    if dtype == tf.uint8:
        low, high = abs(low), abs(low) + bounds[1]
    leaf = Leaf("x", (2, 3), dtype, np.asarray(low) if below else None, np.asarray(high) if above else None)
    values = leaf.draw(np.random.default_rng(0), 50)
    assert values.dtype == dtype
    assert values.shape == (50, 2, 3)
    if below:
        assert values.numpy().min() >= low
    if above:
        assert values.numpy().max() <= high
    assert np.isfinite(values.numpy().astype(np.float64)).all()


@pytest.mark.parametrize(
    ("dtype", "low", "high", "expected"),
    [
        (tf.float32, None, -50, (-52, -50)),
        (tf.float32, 50, np.inf, (50, 52)),
        (tf.float32, -np.inf, np.inf, (-1, 1)),
        (tf.int64, -np.inf, -50, (-52, -50)),
        (tf.uint8, None, 1, (0, 1)),
        (tf.int64, 3, 5, (3, 5)),
        (tf.bool, None, None, (0, 1)),
    ],
)
def test_all_allowed_values_that_are_moderate_are_drawn(dtype: Any, low: Any, high: Any, expected: Any) -> None:
    bounds = (None if b is None else np.asarray(b) for b in (low, high))
    values = Leaf("x", (100,), dtype, *bounds).draw(np.random.default_rng(0), 5).numpy()
    rounded = np.round(values.astype(np.float64)).astype(int)
    assert np.unique(rounded).tolist() == list(range(expected[0], expected[1] + 1))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1e4, 1e4, (-100, 100)),
        (-1, 1e4, (-1, 100)),
        (1e3, 2e3, (1e3, 1100)),
        (-9, 8, (-9, 8)),
        (-2e3, -1e3, (-1100, -1e3)),
    ],
)
def test_values_of_a_sane_size_are_the_smallest_within_the_bounds(low: float, high: float, expected: Any) -> None:
    for dtype in (tf.float32, tf.int64):
        leaf = Leaf("x", (40,), dtype, np.asarray(low), np.asarray(high))
        values = leaf.draw(np.random.default_rng(0), 50, largest=100.0).numpy()
        span = 0.01 * (expected[1] - expected[0]) + 1
        assert expected[0] <= values.min() <= expected[0] + span
        assert expected[1] - span <= values.max() <= expected[1]


def test_description_of_bounds_is_plain_json() -> None:
    spec = tensor_spec.BoundedTensorSpec([2], tf.float32, [-np.inf, 0.0], [3.0, 3.0])
    assert Leaf.of("x", spec).describe() == {
        "name": "x",
        "shape": [2],
        "dtype": "float32",
        "minimum": [None, 0.0],
        "maximum": 3.0,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_box_without_bounds_is_described_without(dtype: Any) -> None:
    """TF-Agents' specs have the largest number of float32 in place of infinity."""
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), dtype)
    described = Leaf.of("x", tensor_spec.from_spec(spaces.observation_spec(box))).describe()
    assert (described["minimum"], described["maximum"]) == (None, None)
    half = gymnasium.spaces.Box(np.array([-np.inf, 0.0], dtype), np.array([1e30, np.inf], dtype), dtype=dtype)
    described = Leaf.of("x", tensor_spec.from_spec(spaces.observation_spec(half))).describe()
    assert (described["minimum"], described["maximum"]) == ([None, 0.0], [pytest.approx(1e30), None])
    whole = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2**62)
    assert Leaf.of("x", whole).describe()["maximum"] == 2**62


def _check(change: Any, zero: bool = False) -> None:
    """Compares a policy with itself, its outputs changed."""
    algorithm = make("feed_forward")
    for variable in algorithm.acting_variables() if zero else ():
        variable.assign(tf.zeros_like(variable))
    policy = exportable(algorithm)
    run = policy.functions["action"]
    verify.check(policy, run, lambda inputs: change(run(inputs)), "The model")


def _other_action(outputs: Any) -> Any:
    return {"action": (outputs["action"] + 1) % 3}


def test_another_action_counts_as_equal_only_where_it_is_as_probable() -> None:
    _check(dict)
    _check(_other_action, zero=True)
    with pytest.raises(ExportError, match="by the policy"):
        _check(_other_action)


def test_each_row_with_another_action_has_to_be_as_probable() -> None:
    policy = exportable(make("multi_discrete"))
    run = policy.functions["action"]

    def check(good: set[int], changed: set[int]) -> None:
        def model(inputs: Any) -> Any:
            action = run(inputs)["action"].numpy()
            for row in changed & set(range(len(action))):
                # The last part of an action counts as the first does.
                action[row, -1] = (action[row, -1] + 1) % 4
            return {"action": action}

        def nearly_best(inputs: Any, actions: Any) -> np.ndarray:
            return np.isin(np.arange(len(actions["action"])), list(good))

        verify.check(dataclasses.replace(policy, nearly_best=nearly_best), run, model, "The model")

    check({0, 2}, {2})
    for good, changed in (({0, 2}, {1}), ({0, 2}, {1, 2}), (set(), {2})):
        with pytest.raises(ExportError, match="by the policy"):
            check(good, changed)


def test_another_whole_number_that_is_no_action_is_never_as_good() -> None:
    policy = exportable(make("feed_forward"))

    def with_count(count: int) -> Any:
        return lambda inputs: {**policy.functions["action"](inputs), "state_count": tf.constant([count])}

    verify.check(policy, with_count(1), with_count(1), "The model")
    with pytest.raises(ExportError, match=r"state_count is \[2\], and by the policy \[1\]"):
        verify.check(policy, with_count(1), with_count(2), "The model")


def test_a_model_that_looks_at_a_state_given_to_a_first_row_is_refused() -> None:
    policy = exportable(make("recurrent"))
    run = policy.functions["action"]
    verify.check(policy, run, run, "The model")

    def never_first(inputs: Any) -> Any:
        return run({**inputs, "step_type": tf.fill(inputs["step_type"].shape, int(StepType.MID))})

    with pytest.raises(ExportError, match="The model: "):
        verify.check(policy, run, never_first, "The model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: {}, "the model gives"),
        (lambda o: {"action": tf.cast(o["action"], tf.int32)}, "int32"),
        (lambda o: {"action": o["action"][:1, None]}, r"\(1, 1\)"),
    ],
)
def test_missing_and_misshapen_outputs_are_told(change: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        _check(change)


@pytest.mark.parametrize("difference", [2e-5, np.nan])
def test_a_small_difference_is_too_large(difference: float) -> None:
    policy = exportable(make("feed_forward"))
    run = policy.functions["value"]

    def model(inputs: Any, by: float) -> Any:
        value = run(inputs)["value"].numpy()
        value[0] += by * max(1.0, abs(value[0]))
        return {"value": value}

    verify.check(policy, run, lambda inputs: model(inputs, 5e-6), "The model")
    with pytest.raises(ExportError, match="differs"):
        verify.check(policy, run, lambda inputs: model(inputs, difference), "The model")
