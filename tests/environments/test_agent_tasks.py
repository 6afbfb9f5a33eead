"""The tasks of several agents that come with alf: known rewards and observations, seeds, pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from alf.environments import create_environment, suite_agents
from alf.environments.agent_tasks import ParallelTask, Pursuit, RockPaperScissors, Spread
from alf.environments.agents_env import AgentsEnv
from alf.environments.checker import FAIL, check_environment
from alf.environments.counting_agents import CountingAgents

TASKS = ("spread", "pursuit", "rock_paper_scissors", "counting")


@pytest.mark.parametrize("name", TASKS)
def test_each_keeps_to_the_interface(name: str) -> None:
    findings = check_environment(suite_agents.load(name), 120)
    assert not [finding for finding in findings if finding.level == FAIL]
    assert {finding.check for finding in findings} >= {"run", "seed", "batch"}


def _random_steps(task: ParallelTask, steps: int, seed: int) -> list[tuple[dict[str, int], Any]]:
    rng = np.random.default_rng(seed)
    played: list[tuple[dict[str, int], Any]] = [({}, (task.reset(seed=seed)[0],))]
    while len(played) <= steps and task.agents:
        actions = {name: int(rng.integers(task.action_space(name).n)) for name in task.agents}
        played.append((actions, task.step(actions)))
    return played


@pytest.mark.parametrize("num_agents", [1, 2, 4])
def test_spread_pays_by_the_distance_of_the_nearest(num_agents: int) -> None:
    task = Spread(num_agents)
    names = task.possible_agents
    played = _random_steps(task, 30, seed=1)
    assert len(played) == 26
    for _, (seen, rewards, terminations, _, _) in played[1:]:
        total = 0.0
        for mark in range(num_agents):
            nearest = math.inf
            for name in names:
                x, y = seen[name][4 + 2 * mark : 6 + 2 * mark]
                nearest = min(nearest, math.hypot(x, y))
            total -= nearest
        assert all(rewards[name] == pytest.approx(total, abs=1e-4) for name in names)
        assert not any(terminations.values())
        for i, name in enumerate(names):
            others = [other for j, other in enumerate(names) if j != i]
            for k, other in enumerate(others):
                at = 4 + 2 * num_agents + 2 * k
                assert seen[name][at : at + 2] == pytest.approx(seen[other][2:4] - seen[name][2:4], abs=1e-5)
    assert all(played[-1][1][3].values())
    assert task.agents == []


def test_spread_moves_as_it_is_pushed() -> None:
    task = Spread(1)
    place = task.reset(seed=3)[0]["agent"][2:4].copy()
    velocity = np.zeros(2)
    for action, push in ((1, (-1, 0)), (2, (1, 0)), (3, (0, -1)), (4, (0, 1)), (0, (0, 0))):
        seen = task.step({"agent": action})[0]["agent"]
        velocity = 0.75 * velocity + 0.5 * np.array(push)
        place = place + 0.1 * velocity
        assert seen[:2] == pytest.approx(velocity, abs=1e-5)
        assert seen[2:4] == pytest.approx(place, abs=1e-5)


def test_pursuit_shows_and_pays_by_the_distances() -> None:
    task = Pursuit(3)
    chasers, caught, escaped = task.possible_agents[:-1], 0, 0
    for seed in range(12):
        played = _random_steps(task, 200, seed)
        for step, (_, (seen, rewards, terminations, truncations, _)) in enumerate(played[1:], 1):
            assert max(np.abs(seen[name][2:4]).max() for name in task.possible_agents) <= 1.0
            distances = [math.dist(seen[name][2:4], seen["runner"][2:4]) for name in chasers]
            over = min(distances) < 0.1
            for i, name in enumerate(chasers):
                assert seen[name].shape == (10,)
                assert seen[name][4:6] == pytest.approx(seen["runner"][2:4] - seen[name][2:4], abs=1e-5)
                others = [seen[other][2:4] - seen[name][2:4] for other in chasers if other != name]
                assert seen[name][6:] == pytest.approx(np.concatenate(others), abs=1e-5)
                assert rewards[name] == pytest.approx(-0.1 * distances[i] + 10 * over, abs=1e-4)
            around = [seen[name][2:4] - seen["runner"][2:4] for name in chasers]
            fast = [seen[name][:2] for name in chasers]
            assert seen["runner"][4:] == pytest.approx(np.concatenate(around + fast), abs=1e-5)
            assert rewards["runner"] == pytest.approx(0.1 * min(distances) - 10 * over, abs=1e-4)
            assert set(terminations.values()) == {over}
            assert set(truncations.values()) == {step == 100 and not over}
        caught += over
        escaped += not over
    assert caught
    assert escaped


def test_nobody_is_caught_at_the_begin() -> None:
    task = Pursuit(6)
    for seed in range(50):
        seen, _ = task.reset(seed=seed)
        assert min(np.linalg.norm(seen["runner"][4:16].reshape(6, 2), axis=1)) > 0.3


def test_rock_paper_scissors_knows_who_beats_whom() -> None:
    beats = {("rock", "scissors"), ("paper", "rock"), ("scissors", "paper")}
    hands = ("rock", "paper", "scissors")
    task = RockPaperScissors(steps=9)
    seen, _ = task.reset()
    assert not any(value.any() for value in seen.values())
    for i in range(9):
        mine, its = divmod(i, 3)
        seen, rewards, _, truncations, _ = task.step({"player_0": mine, "player_1": its})
        won = ((hands[mine], hands[its]) in beats) - ((hands[its], hands[mine]) in beats)
        assert rewards == {"player_0": won, "player_1": -won}
        assert seen["player_0"].tolist() == [*np.eye(3)[mine], *np.eye(3)[its]]
        assert seen["player_1"].tolist() == [*np.eye(3)[its], *np.eye(3)[mine]]
        assert set(truncations.values()) == {i == 8}


@pytest.mark.parametrize("name", ["spread", "pursuit", "rock_paper_scissors"])
def test_pictures(name: str) -> None:
    env = create_environment(
        name, lambda name: suite_agents.load(name, render_mode="rgb_array"), num_parallel_environments=1
    )
    env.reset()
    picture = env.render()
    assert picture is not None
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)
    silent = create_environment(name, suite_agents.load, num_parallel_environments=1)
    silent.reset()
    with pytest.raises(NotImplementedError, match="render_mode"):
        silent.render()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spread(0), "num_agents"),
        (lambda: Spread(steps=0), "steps"),
        (lambda: Pursuit(0), "num_chasers"),
        (lambda: CountingAgents(birth=1.5), "probabilities"),
        (lambda: CountingAgents(max_agents=0), "max_agents"),
        (lambda: suite_agents.load("sprea"), "one of"),
        (lambda: suite_agents.load("alf.environments.agent_tasks:Sprea"), "no task"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_counting_agents_refuse_the_actions_of_others() -> None:
    task = CountingAgents(idle=0.0)
    seen, _ = task.reset(seed=0)
    [name] = seen
    with pytest.raises(ValueError, match="takes actions of"):
        task.step({name: 0, "agent_99": 0})
    with pytest.raises(ValueError, match="takes actions of"):
        task.step({name: 5})


def test_a_path_or_a_callable_makes_any_environment() -> None:
    loader = suite_agents.load("alf.environments.agent_tasks:Spread", num_agents=2, done_condition="any")
    made = loader.make_one(0)
    assert isinstance(made, AgentsEnv)
    assert made.action_space["agent"].shape == (2,)
    assert suite_agents.load(RockPaperScissors).make_one(0).observation_space["agent"]["step_type"].high.max() == 3
