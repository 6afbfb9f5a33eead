"""Wrappers stand where their kind belongs, or are refused in a sentence."""

from __future__ import annotations

import functools
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest

from alf.environments import create_environment, suite_agents, suite_atari, suite_gym
from alf.environments.batch_wrappers import BatchWrapper, NonEpisodicAgent
from alf.environments.grouped_rows import GroupedRows
from alf.environments.testing import CountingEnvironment
from alf.environments.wrappers import FrameResize, FrameStack, RandomFirstEpisodeLength
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


class _Telling(CountingEnvironment):
    """Tells of everything what no other environment does, and keeps what it is told."""

    told: tuple[str, ...] = ()

    def before_building(self) -> None:
        self.told += ("before_building",)

    def after_building(self) -> None:
        self.told += ("after_building",)

    def enter_phase(self, phase: str) -> None:
        self.told += (phase,)


def test_a_wrapper_of_batches_passes_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tells = {
        "restarts": 3,
        "cuts": 5,
        "successes": np.array([True, False]),
        "lives": np.array([2, 1]),
        "waited_until": 11.0,
        "frames_per_step": 7,
    }
    for name, value in tells.items():
        monkeypatch.setattr(_Telling, name, value)
    inner = _Telling(2)
    env = BatchWrapper(inner)
    assert {name: getattr(env, name) for name in tells} == tells
    env.before_building()
    env.after_building()
    env.enter_phase("test")
    assert inner.told == ("before_building", "after_building", "test")


def test_a_group_of_rows_earns_what_they_do_and_never_ends() -> None:
    rows = CountingEnvironment(4, episode_lengths=(1, 2))
    env = GroupedRows(CountingEnvironment(4, episode_lengths=(1, 2)), 2)
    rows.reset()
    env.reset()
    for _ in range(5):
        row = rows.step(np.arange(4))
        group = env.step({"agent": np.arange(4).reshape(2, 2)})
        agents = group.observation["agent"]
        for field in ("step_type", "reward", "discount"):
            np.testing.assert_array_equal(agents[field], getattr(row, field).reshape(2, 2))
        np.testing.assert_array_equal(group.reward, row.reward.reshape(2, 2).sum(1))
        assert (group.step_type == 1).all()
        assert (group.discount == 1).all()


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
    with pytest.raises(
        ValueError,
        match=r"^FrameResize in env_wrappers wraps no BatchedEnvironment: load the game by its id, such as "
        r"'PongNoFrameskip-v4', with suite_gym.load, and put it into suite_gym.load.gym_env_wrappers\.",
    ):
        suite_atari.load("Pong", env_wrappers=[FrameResize])


@pytest.mark.parametrize(
    "load",
    [
        functools.partial(suite_atari.load, "Pong"),
        functools.partial(suite_atari.load, "Pong", episodic_life=False),
        functools.partial(suite_agents.load, "counting"),
        functools.partial(suite_gym.load, ToyEnv),
    ],
)
@pytest.mark.parametrize("wrapper", [NonEpisodicAgent, "NonEpisodicAgent"])
def test_wrappers_are_in_lists_in_all_suites(load: Any, wrapper: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^env_wrappers must be a list; got '?NonEpisodicAgent'?: put it in brackets\."
    ):
        load(env_wrappers=wrapper)


def test_a_batch_is_closed_where_its_wrapper_fails() -> None:
    closed = []

    class Closes(ToyEnv):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ValueError, match="must return a BatchedEnvironment"):
        suite_gym.load(Closes, env_wrappers=[_gives_nothing])(2)
    assert len(closed) == 2
