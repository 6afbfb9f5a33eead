"""Specs cross as plain data and come back the same."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.specs import array_spec

from alf.distributed.plain_specs import from_plain, layout_from, layout_of, to_plain
from alf.environments import agents
from alf.environments.spaces import action_spec, observation_spec
from tests.distributed.environment_makers import NestedEnvironment

_LEAVES = (
    st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 9), st.integers(-3, 3))
    | st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3))
    | st.builds(spaces.MultiBinary, st.integers(1, 4))
    | st.builds(
        lambda low, width, shape, dtype: spaces.Box(low, low + width, tuple(shape), dtype),
        st.integers(0, 9),
        st.integers(1, 100),
        st.lists(st.integers(1, 3), max_size=3),
        st.sampled_from([np.float32, np.float64, np.uint8, np.int32]),
    )
    | st.just(spaces.Box(-np.inf, np.inf, (2,), np.float32))
)
_SPACES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.dictionaries(st.text(max_size=4), inner, max_size=3).map(spaces.Dict)
        | st.lists(inner, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts)))
    ),
    max_leaves=6,
)


def _check_plain(value: Any) -> None:
    if isinstance(value, dict):
        assert all(type(name) is str for name in value)
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _check_plain(part)
    elif isinstance(value, np.ndarray):
        assert value.dtype != object
    else:
        assert type(value) in (str, int, float, bool, type(None))


def _names(spec: Any) -> list[Any]:
    if isinstance(spec, dict):
        return [_names(spec[name]) for name in sorted(spec)]
    return [_names(part) for part in spec] if isinstance(spec, (tuple, list)) else spec.name


@given(space=_SPACES)
def test_specs_of_all_spaces_come_back_the_same(space: gymnasium.Space) -> None:
    for spec in (observation_spec(space), action_spec(space)):
        plain = to_plain(spec)
        _check_plain(plain)
        back = from_plain(plain)
        assert back == spec
        assert type(back) is type(spec)
        assert _names(back) == _names(spec)


def test_the_plain_form_is_json_but_for_the_bounds() -> None:
    spec = {"a": [array_spec.ArraySpec((2, 3), np.uint8, "x")], "b": ()}
    plain = to_plain(spec)
    assert from_plain(json.loads(json.dumps(plain))) == spec


def test_agents_are_found_in_what_comes_back() -> None:
    space = spaces.Dict({"red": agents.agents_space(spaces.Box(0, 1, (3,)), 2, True)})
    spec = observation_spec(space)
    assert agents.slots_of(from_plain(to_plain(spec))) == agents.slots_of(spec) is not None


def test_a_layout_says_what_there_is_to_know() -> None:
    env = NestedEnvironment(3, 0)
    layout = layout_from(layout_of(env))
    assert layout == (3, env.observation_spec(), env.action_spec(), 4)


class _Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (_Pair(1, 2), "_Pair"),
        (np.zeros(2), "ndarray"),
        ({1: array_spec.ArraySpec((), np.int32)}, "dict"),
        ({"a": object()}, "object"),
    ],
)
def test_what_cannot_cross_is_named(spec: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"is a {told} .*cannot be told to another process"):
        to_plain(spec)
