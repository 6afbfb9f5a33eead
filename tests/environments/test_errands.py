"""Errands: the order of the corners, walls, ends; and corners as goals."""

from __future__ import annotations

import numpy as np
import pytest

from alf.environments import suite_gym
from alf.environments.checker import FAIL, check_environment
from alf.environments.errands import CORNERS, CornerGoals, Errands

_LEFT, _RIGHT, _DOWN, _UP = range(4)


def _walk(env: Errands, moves: list[int]) -> list[tuple[list[float], float, bool, bool]]:
    env.reset()
    played = []
    for move in moves:
        observation, reward, terminated, truncated, info = env.step(move)
        assert info["success"] == terminated
        played.append((observation.tolist(), reward, terminated, truncated))
    return played


def test_the_last_corner_in_order_is_rewarded() -> None:
    moves = [_LEFT, _DOWN, _UP, _UP, _RIGHT, _RIGHT, _LEFT, _LEFT, _DOWN, _DOWN, _RIGHT, _RIGHT]
    played = _walk(Errands(reach=1), moves)
    # The third corner is passed on the way to the second, when it does not count.
    following = [int(np.argmax(observation[2:])) for observation, *_ in played[:-1]]
    assert following == [0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3]
    assert [reward for _, reward, _, _ in played] == [0.0] * 11 + [1.0]
    assert played[-1][2:] == (True, False)
    assert played[3][0][:2] == [-1.0, 1.0]


def test_walls_and_the_limit() -> None:
    played = _walk(Errands(reach=2, steps=4), [_RIGHT] * 4)
    assert [observation[0] for observation, *_ in played] == [0.5, 1.0, 1.0, 1.0]
    assert [(terminated, truncated) for _, _, terminated, truncated in played] == [(False, False)] * 3 + [(False, True)]


def test_corners_as_goals() -> None:
    goals, env = CornerGoals(), Errands(reach=2)
    here = env.reset()[0]
    there = env.step(_UP)[0]
    for goal, corner in enumerate(CORNERS):
        assert goals.view(here, goal).tolist() == corner.tolist()
        assert goals.view_space(env).contains(goals.view(there, goal))
        assert goals.reward(here, goal, there) == (0.5 if corner[1] > 0 else -0.5)
        assert not goals.reached(there, goal)
        assert goals.reached(np.concatenate([corner, np.zeros(4)]), goal)
    assert goals.space(env).n == len(CORNERS)


def test_it_keeps_to_the_interface() -> None:
    findings = check_environment(suite_gym.load("alf.environments.errands:Errands"), 300)
    assert not [finding for finding in findings if finding.level == FAIL]
    with pytest.raises(ValueError, match="reach >= 1 and steps >= 1; got 0 and 5"):
        Errands(0, 5)
