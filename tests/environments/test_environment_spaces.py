"""Spaces to specs and values between them, over drawn spaces."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from tf_agents.specs import array_spec

from alf.environments import spaces as alf_spaces

_SHAPES = st.lists(st.integers(1, 3), min_size=0, max_size=2).map(tuple)


@st.composite
def _boxes(draw: st.DrawFn) -> spaces.Box:
    dtype: Any = draw(st.sampled_from([np.uint8, np.int8, np.int32, np.float16, np.float32, np.float64]))
    low, span = draw(st.integers(0, 9)), draw(st.integers(1, 99))
    shift = draw(st.sampled_from([0.0, 0.1, 1 / 3])) if np.issubdtype(dtype, np.floating) else 0
    return spaces.Box(dtype(low + shift), dtype(low + span + shift), draw(_SHAPES), dtype)


_LEAVES: st.SearchStrategy[gymnasium.Space] = st.one_of(
    _boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(
        lambda nvec, start: spaces.MultiDiscrete(nvec, start=[start] * len(nvec)),
        st.lists(st.integers(1, 5), min_size=1, max_size=3),
        st.integers(-3, 3),
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
    st.builds(lambda shape: spaces.Box(0, 1, shape, np.bool_), _SHAPES),
)
_SPACES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(spaces.Dict),
        st.lists(inner, max_size=2).map(lambda parts: spaces.Tuple(tuple(parts))),
    ),
    max_leaves=4,
)


def _assert_in_spec(spec: Any, value: Any) -> None:
    tf.nest.assert_same_structure(spec, value)
    for leaf_spec, leaf in zip(tf.nest.flatten(spec), tf.nest.flatten(value), strict=True):
        assert leaf.dtype == leaf_spec.dtype
        assert leaf.shape == leaf_spec.shape
        assert (leaf >= leaf_spec.minimum).all()
        assert (leaf <= leaf_spec.maximum).all()


@settings(max_examples=60, deadline=None)
@given(space=_SPACES, seed=st.integers(0, 2**31 - 1))
def test_observations_of_a_space_lie_in_its_spec(space: gymnasium.Space, seed: int) -> None:
    space.seed(seed)
    convert = alf_spaces.observation_converter(space, single=True)
    rows = convert(space.sample())
    _assert_in_spec(alf_spaces.observation_spec(space), tf.nest.map_structure(lambda a: a[0], rows))


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@settings(max_examples=60, deadline=None)
@given(space=_SPACES, seed=st.integers(0, 2**31 - 1))
def test_actions_of_a_spec_lie_in_its_space(space: gymnasium.Space, seed: int) -> None:
    spec = alf_spaces.action_spec(space)
    rng = np.random.default_rng(seed)
    for leaf in tf.nest.flatten(spec):
        assert leaf.dtype in (np.float32, np.int64)

    def sample(leaf: array_spec.BoundedArraySpec, fraction: float) -> np.ndarray:
        low, high = leaf.minimum.astype(np.float64), leaf.maximum.astype(np.float64)
        chosen = low + (high - low) * (rng.random((2, *leaf.shape)) if fraction < 0 else fraction)
        return np.broadcast_to(chosen, (2, *leaf.shape)).astype(leaf.dtype)

    for fraction in (-1.0, 0.0, 1.0):
        action = tf.nest.map_structure(functools.partial(sample, fraction=fraction), spec)
        for leaf in tf.nest.flatten(alf_spaces.action_converter(space)(action)):
            assert leaf.shape[0] == 2
        assert space.contains(alf_spaces.action_converter(space, single=True)(action)), (space, action)


@pytest.mark.parametrize("value", [2.5, -1, 300, np.nan, np.inf])
@pytest.mark.parametrize("single", [True, False])
def test_no_number_of_an_observation_is_cut_to_a_whole_one(value: float, single: bool) -> None:
    space = spaces.Tuple((spaces.Discrete(9), spaces.Box(0, 255, (2,), np.uint8), spaces.Box(0.0, 9.0, (), np.float32)))
    convert = alf_spaces.observation_converter(space, single=single)
    with pytest.raises(ValueError, match=r"which the uint8 of its space, Box.*, cannot be: give the space the dtype"):
        convert((3, np.array([0, value]), 2.5))
    rows = convert((3.0, [7, 255], 2.5))
    assert [np.ravel(part).tolist() for part in rows] == [[3], [7, 255], [2.5]]


def test_known_specs() -> None:
    discrete = alf_spaces.observation_spec(spaces.Discrete(3, start=5))
    assert (discrete.shape, discrete.dtype, discrete.minimum, discrete.maximum) == ((), np.int64, 5, 7)
    multi = alf_spaces.action_spec(spaces.MultiDiscrete([2, 4]))
    assert multi.shape == (2,)
    assert multi.minimum.tolist() == [0, 0]
    assert multi.maximum.tolist() == [1, 3]
    assert alf_spaces.observation_spec(spaces.MultiBinary((2, 3))).dtype == np.int8
    assert alf_spaces.action_spec(spaces.MultiBinary(2)).dtype == np.int64
    assert alf_spaces.observation_spec(spaces.Tuple(())) == ()
    assert alf_spaces.observation_spec(spaces.Box(0, 255, (2,), np.uint8)).dtype == np.uint8
    assert alf_spaces.observation_spec(spaces.Dict()) == {}


def test_discrete_actions_are_numbered_from_0_wherever_the_space_begins() -> None:
    """As networks number them: a policy of n outputs plays what the space holds, and all of it."""
    space = spaces.Dict({"one": spaces.Discrete(3, start=-1), "two": spaces.MultiDiscrete([2, 4], start=[5, 7])})
    spec = alf_spaces.action_spec(space)
    assert (int(spec["one"].minimum), int(spec["one"].maximum)) == (0, 2)
    assert (spec["two"].minimum.tolist(), spec["two"].maximum.tolist()) == ([0, 0], [1, 3])
    played = alf_spaces.action_converter(space)({"one": np.arange(3), "two": np.array([[0, 0], [1, 3], [0, 2]])})
    assert played["one"].tolist() == [-1, 0, 1]
    assert played["two"].tolist() == [[5, 7], [6, 10], [5, 9]]


def test_float64_action_bounds_are_rounded_inwards() -> None:
    space = spaces.Box(np.array([-0.1, 0.1]), np.array([0.1, 0.3]), dtype=np.float64)
    spec = alf_spaces.action_spec(space)
    assert spec.dtype == np.float32
    assert (spec.minimum.astype(np.float64) >= space.low).all()
    assert (spec.maximum.astype(np.float64) <= space.high).all()


def test_a_pinned_float64_action_keeps_its_value() -> None:
    """0.1 lies between two float32, and no float32 within [0.1, 0.1]."""
    space = spaces.Box(np.array([-1.0, 0.1]), np.array([1.0, 0.1]), dtype=np.float64)
    spec = alf_spaces.action_spec(space)
    assert spec.minimum.tolist() == [-1.0, np.float32(0.1)]
    assert spec.maximum.tolist() == [1.0, np.float32(0.1)]
    assert space.contains(alf_spaces.action_converter(space)(np.array([[0.3, np.float32(0.1)]], np.float32))[0])


def test_gaussian_actions_are_clipped_and_not_in_place() -> None:
    action = np.array([[-3.0], [0.5], [9.0]], np.float32)
    out = alf_spaces.action_converter(spaces.Box(-2.0, 2.0, (1,), np.float32))(action)
    assert out.tolist() == [[-2.0], [0.5], [2.0]]
    assert action.tolist() == [[-3.0], [0.5], [9.0]]


@pytest.mark.parametrize(
    ("dtype", "expected"), [(np.float16, np.float32), (np.int8, np.int64), (np.uint8, np.int64), (np.int32, np.int64)]
)
def test_actions_of_a_box_are_numbers_that_networks_take(dtype: Any, expected: Any) -> None:
    """The bounds stay what they are, and the environment gets its own dtype; numbers beyond them do not wrap around."""
    highest = np.finfo(dtype).max if expected is np.float32 else np.iinfo(dtype).max
    space = spaces.Box(dtype(0), highest, (2,), dtype)
    spec = alf_spaces.action_spec(space)
    assert (spec.dtype, spec.minimum.dtype, spec.minimum.tolist()) == (expected, expected, [0, 0])
    assert spec.maximum.tolist() == space.high.tolist()
    played = alf_spaces.action_converter(space)(np.array([[-1, 1], [7, 2 * float(highest)]], expected))
    assert played.dtype == dtype
    assert played.tolist() == [[0, 1], [7, float(highest)]]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}),
        spaces.Graph(spaces.Discrete(2), None),
    ],
)
def test_unsupported_spaces_are_named(space: gymnasium.Space) -> None:
    with pytest.raises(ValueError, match=r"(Text|Sequence|Graph).*use Box"):
        alf_spaces.observation_spec(space)


def test_what_tensorflow_has_no_type_for_is_refused() -> None:
    wide = spaces.Box(-1.0, 1.0, (2,), np.longdouble)  # type: ignore[arg-type]
    for spec in (alf_spaces.observation_spec, alf_spaces.action_spec):
        with pytest.raises(
            ValueError, match=r"space/?.* is of \w+, which TensorFlow does not have: give it np.float32"
        ):
            spec(spaces.Tuple((wide,)))


def test_names_of_several_kinds_are_refused() -> None:
    mixed = spaces.Dict({"a": spaces.Discrete(2), 2: spaces.Discrete(2)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"names .*\['a', 2\]: make all of them text"):
        alf_spaces.observation_spec(mixed)
    assert list(alf_spaces.observation_spec(spaces.Dict({1: spaces.Discrete(2)}))) == [1]  # type: ignore[dict-item]
