"""Numbers of states are shown as vectors, wherever they are in an observation; and what a network makes of each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.environments import create_environment, suite_gym
from alf.environments.wrappers import OneHot

DISCRETE = st.builds(spaces.Discrete, st.integers(1, 6), start=st.integers(-3, 3)) | st.lists(
    st.integers(1, 5), min_size=1, max_size=3
).flatmap(
    lambda sizes: st.builds(lambda start: spaces.MultiDiscrete(sizes, start=[start] * len(sizes)), st.integers(-2, 2))
)
LEAVES = DISCRETE | st.just(spaces.Box(0.0, 1.0, (2,), np.float32)) | st.just(spaces.MultiBinary(3))
NESTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict)
    ),
    max_leaves=5,
)


class Shows(gymnasium.Env):
    """Shows what it is given."""

    def __init__(self, space: spaces.Space, values: Any = None) -> None:
        self.observation_space, self.action_space, self.values = space, spaces.Discrete(2), values

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.values, {}


def expected(space: spaces.Space, value: Any) -> Any:
    """By the definition, number by number."""
    if isinstance(space, spaces.Dict):
        return {name: expected(space[name], value[name]) for name in space}
    if isinstance(space, spaces.Tuple):
        return tuple(expected(part, one) for part, one in zip(space, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return [int(space.start + i == value) for i in range(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        numbers = zip(space.nvec, space.start, value, strict=True)
        return [int(start + i == one) for n, start, one in numbers for i in range(n)]
    return value.tolist()


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else np.asarray(value).tolist()


def some_discrete(space: spaces.Space) -> bool:
    parts = list(space.values()) if isinstance(space, spaces.Dict) else space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(map(some_discrete, parts))  # type: ignore[arg-type]
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


@settings(deadline=None, max_examples=150)
@given(NESTS, st.integers(0, 1000))
def test_each_number_becomes_a_vector_with_one_one(space: spaces.Space, seed: int) -> None:
    space.seed(seed)
    value = space.sample()
    if not some_discrete(space):
        with pytest.raises(ValueError, match="OneHot is for discrete observations, and there is none in"):
            OneHot(Shows(space))
        return
    env = OneHot(Shows(space, value))
    seen, _ = env.reset()
    assert env.observation_space.contains(seen)
    assert plain(seen) == expected(space, value)


def test_a_number_outside_its_space_is_said() -> None:
    with pytest.raises(ValueError, match=r"observation 4 is not in Discrete\(4\)"):
        OneHot(Shows(spaces.Discrete(4), 4)).reset()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_tables_of_states_by_name(vectorization: str) -> None:
    load = lambda name: suite_gym.load(name, gym_env_wrappers=(OneHot,))  # noqa: E731
    env = create_environment("Taxi-v4", load, num_parallel_environments=2, vectorization=vectorization, seed=0)
    try:
        seen = env.reset().observation
        assert (seen.shape, seen.dtype) == ((2, 500), np.uint8)
        assert (seen.sum(1) == 1).all()
    finally:
        env.close()
