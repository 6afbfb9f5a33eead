"""Wrappers stand where their kind belongs, or are refused in a sentence."""

from __future__ import annotations

import functools
from typing import Any

import gin
import gymnasium
import pytest

from alf.environments import create_environment, suite_atari, suite_gym
from alf.environments.batch_wrappers import BatchWrapper, NonEpisodicAgent
from alf.environments.wrappers import FrameStack, RandomFirstEpisodeLength
from tests.environments.toy_environments import ToyEnv


def _layers(env: Any) -> list[str]:
    """The names of the wrappers around each row, from the inside."""
    found: list[str] = []
    while isinstance(env, gymnasium.Wrapper):
        found.insert(0, type(env).__name__)
        env = env.env
    return found


def test_gymnasium_wrappers_among_those_of_batches_wrap_single_environments() -> None:
    gin.parse_config(
        [
            "suite_gym.load.gym_env_wrappers = (@FrameStack,)",
            "suite_gym.load.env_wrappers = (@RandomFirstEpisodeLength, @NonEpisodicAgent, @here/FrameStack)",
            "RandomFirstEpisodeLength.random_length_range = 5",
            "here/FrameStack.stack_size = 2",
        ]
    )
    env = create_environment(ToyEnv, num_parallel_environments=2)
    batched: Any = env.env  # type: ignore[attr-defined]
    assert type(batched) is NonEpisodicAgent
    for row in batched._env._env.unwrapped.envs:
        assert _layers(row) == ["FrameStack", "RandomFirstEpisodeLength", "FrameStack", "ToldInfo"]
    assert env.observation_spec().shape == (4 * 4 * 2,)
    env.close()


def test_partials_of_gymnasium_wrappers_are_moved_too() -> None:
    cut = functools.partial(RandomFirstEpisodeLength, random_length_range=5)
    made = suite_gym.load(ToyEnv, env_wrappers=[cut]).make_one(0)
    assert _layers(made) == ["RandomFirstEpisodeLength"]


def _gives_nothing(env: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"gym_env_wrappers": [NonEpisodicAgent]},
            "NonEpisodicAgent in gym_env_wrappers wraps no gymnasium.Env: put it into suite_gym.load.env_wrappers.",
        ),
        (
            {"gym_env_wrappers": ["FrameStack"]},
            "'FrameStack' in gym_env_wrappers is neither a class nor a function that wraps a gymnasium.Env",
        ),
        ({"gym_env_wrappers": [FrameStack(ToyEnv())]}, "in gym_env_wrappers is neither a class nor a function"),
        ({"gym_env_wrappers": [dict]}, "dict in gym_env_wrappers is neither a class nor a function"),
        ({"env_wrappers": [dict]}, "dict in env_wrappers is neither a class nor a function that wraps a Batched"),
        ({"env_wrappers": BatchWrapper}, "env_wrappers must be a list; got BatchWrapper: put it in brackets."),
        (
            {"gym_env_wrappers": [_gives_nothing]},
            "_gives_nothing in gym_env_wrappers must return a gymnasium.Env; it returned a NoneType: correct it.",
        ),
        (
            {"env_wrappers": [_gives_nothing]},
            "_gives_nothing in env_wrappers must return a BatchedEnvironment; it returned a NoneType: correct it.",
        ),
    ],
)
def test_what_is_no_wrapper_is_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as told:
        create_environment(ToyEnv, functools.partial(suite_gym.load, **arguments), num_parallel_environments=2)
    assert message in str(told.value)


def test_a_suite_that_wraps_no_single_environments_says_where_they_are_wrapped() -> None:
    with pytest.raises(ValueError, match=r"wraps no BatchedEnvironment: put it into suite_gym.load.gym_env_wrappers"):
        suite_atari.load("Pong", env_wrappers=[FrameStack])


def test_a_batch_is_closed_where_its_wrapper_fails() -> None:
    closed = []

    class Closes(ToyEnv):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ValueError, match="must return a BatchedEnvironment"):
        suite_gym.load(Closes, env_wrappers=[_gives_nothing])(2)
    assert len(closed) == 2
