"""Time limits that differ from environment to environment."""

from __future__ import annotations

import functools
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest

from alf.environments import BatchedEnvironment, create_environment, suite_gym
from alf.environments.random_limits import RandomTimeLimit, load_with_random_max_episode_steps
from alf.environments.wrappers import FrameSkip, RandomFirstEpisodeLength


def _lengths(env: BatchedEnvironment, steps: int) -> list[list[int]]:
    """Of each row, how many actions each of its episodes took."""
    lengths: list[list[int]] = [[] for _ in range(env.batch_size)]
    taken = np.zeros(env.batch_size, int)
    env.reset()
    for _ in range(steps):
        step = env.step(np.ones(env.batch_size, np.int64))
        taken = np.where(step.step_type == 0, 0, taken + 1)
        for row in np.flatnonzero(step.step_type == 2):
            assert step.discount[row] == 1, "a time limit is no end"
            lengths[row].append(int(taken[row]))
    env.close()
    return lengths


def test_each_row_has_a_limit_of_its_own() -> None:
    gin.parse_config(
        [
            "create_environment.env_name = 'MountainCar-v0'",
            "create_environment.env_load_fn = @load_with_random_max_episode_steps",
            "create_environment.num_parallel_environments = 8",
            "load_with_random_max_episode_steps.min_steps = 3",
            "load_with_random_max_episode_steps.max_steps = 6",
        ]
    )
    rows = _lengths(create_environment(seed=1), 40)
    assert all(len(set(row)) == 1 and len(row) >= 5 for row in rows), rows
    found = {row[0] for row in rows}
    assert found <= {3, 4, 5, 6}
    assert {3, 6} <= found, "both ends are drawn"
    assert rows == _lengths(create_environment(seed=1), 40)


def test_the_limit_takes_the_place_of_the_registered_one() -> None:
    load = functools.partial(load_with_random_max_episode_steps, min_steps=210, max_steps=210)
    assert gymnasium.spec("MountainCar-v0").max_episode_steps == 200
    assert _lengths(create_environment("MountainCar-v0", load, 1, seed=0), 220) == [[210]]


def test_bad_arguments_are_explained() -> None:
    load = functools.partial(load_with_random_max_episode_steps, min_steps=5, max_steps=4)
    with pytest.raises(ValueError, match="1 <= min_steps <= max_steps; got min_steps=5, max_steps=4"):
        create_environment("CartPole-v1", load, 2)
    with pytest.raises(ValueError, match=r"must give an EnvironmentLoader, as suite_gym.load does; got TimeLimit"):
        load_with_random_max_episode_steps("CartPole-v1", lambda name, max_episode_steps: gymnasium.make(name))
    with pytest.raises(ValueError, match="as load_with_random_max_episode_steps does"):
        create_environment("CartPole-v1", load_with_random_max_episode_steps, 2, vectorization="envpool")
    with pytest.raises(ValueError, match="numpy-vectorised"):
        create_environment("CartPole-v1", load_with_random_max_episode_steps, 2, vectorization="vector_entry_point")


def test_the_limit_of_what_a_callable_makes_is_replaced_as_that_of_an_id_is() -> None:
    def limits(make: Any, max_episode_steps: int) -> list[int]:
        env: Any = suite_gym.load(make, max_episode_steps=max_episode_steps).make()
        found = []
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.wrappers.TimeLimit):
                found.append(env._max_episode_steps)
            env = env.env
        return found

    make = functools.partial(gymnasium.make, "MountainCar-v0")
    assert [limits(make, n) for n in (0, 50, 500)] == [[], [50], [500]]

    def below() -> gymnasium.Env:
        return gymnasium.wrappers.TransformReward(make(), lambda reward: reward)

    assert limits(below, 50) == [50, 200]
    for longer in (0, 500):
        with pytest.raises(
            ValueError, match=rf"max_episode_steps={longer} cannot lift the limit of 200 steps below the"
        ):
            limits(below, longer)


class _FlagsInLists(gymnasium.Wrapper):
    """Tells the ends of CartPole in lists of one, as some environments do."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, [terminated], [truncated], info


@pytest.mark.parametrize(
    ("wrap", "actions"),
    [
        (lambda env: RandomTimeLimit(env, 4, 4), 4),
        (lambda env: RandomFirstEpisodeLength(env, 1), 1),
        (lambda env: RandomTimeLimit(FrameSkip(env, 2), 2, 2), 2),
    ],
)
def test_flags_may_be_lists_of_one(wrap: Any, actions: int) -> None:
    env = wrap(_FlagsInLists(gymnasium.make("CartPole-v1", disable_env_checker=True)))
    env.reset(seed=1)
    ends = [bool(np.reshape(env.step(i % 2)[3], ())) for i in range(actions)]
    assert ends == [False] * (actions - 1) + [True]


def test_skipped_frames_go_on_beside_flags_in_lists() -> None:
    env = FrameSkip(_FlagsInLists(gymnasium.make("CartPole-v1", disable_env_checker=True)), 3)
    env.reset(seed=1)
    assert env.step(0)[1] == 3.0
