"""PettingZoo's environments, as far as they are installed; what is missing is named."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest

from alf.environments import agents, create_environment, suite_pettingzoo
from alf.environments.checker import FAIL, check_environment
from alf.environments.random_actions import sample_actions

_LAST, _IDLE = 2, 3


def _play(name: str, steps: int, load: Any = suite_pettingzoo.load) -> list[Any]:
    env = create_environment(name, load, num_parallel_environments=2, seed=0)
    rng = np.random.default_rng(0)
    played = [env.reset()]
    for _ in range(steps):
        played.append(env.step(sample_actions(env.action_spec(), 2, rng)))
    env.close()
    return played


def test_simple_spread() -> None:
    pytest.importorskip("mpe2", reason="mpe2 (alf[mpe]) is not installed")
    loader = suite_pettingzoo.load("mpe2.simple_spread_v3", done_condition="any", N=2, max_cycles=10)
    assert not [finding for finding in check_environment(loader, 60) if finding.level == FAIL]
    env = loader(2, 0)
    assert agents.slots_of(env.observation_spec()) == {"agent": agents.Slots(2, False)}
    assert env.observation_spec()["agent"]["observation"].shape == (2, 12)
    env.close()


def test_a_game_of_both_at_once() -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo (alf[multiagent]) is not installed")
    played = _play("pettingzoo.classic.rps_v2", 20)
    assert [step.step_type[0] == _LAST for step in played].index(True) == 15
    for step in played:
        reward = step.observation["agent"]["reward"]
        assert (reward[:, 0] == -reward[:, 1]).all()


def test_a_game_of_turns_asks_who_is_next() -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo (alf[multiagent]) is not installed")
    env = create_environment("pettingzoo.classic.tictactoe_v3", suite_pettingzoo.load, 1, seed=0)
    step, moves = env.reset(), []
    while step.step_type[0] != _LAST:
        part = step.observation["agent"]
        [slot] = np.flatnonzero(part["step_type"][0] != _IDLE)
        assert slot == len(moves) % 2
        legal = np.flatnonzero(part["observation"]["action_mask"][0, slot])
        assert legal.tolist() == [square for square in range(9) if square not in moves]
        moves.append(int(legal[0]))
        action = np.zeros((1, 2), np.int64)
        action[0, slot] = legal[0]
        step = env.step({"agent": action})
    # Squares are counted down the columns: the first player has 0, 2, 4, 6, a diagonal, after seven moves.
    assert moves == list(range(7))
    assert step.observation["agent"]["reward"][0].tolist() == [1.0, -1.0]
    assert step.observation["agent"]["step_type"][0].tolist() == [_LAST, _LAST]
    assert step.observation["agent"]["discount"][0].tolist() == [0.0, 0.0]
    env.close()


def test_an_environment_that_is_not_there() -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo (alf[multiagent]) is not installed")
    with pytest.raises(ValueError, match="check the spelling"):
        suite_pettingzoo.load("pettingzoo.classic.rps_v99")
    with pytest.raises(ValueError, match="no parallel_env or env"):
        suite_pettingzoo.load("pettingzoo.utils")
    with pytest.raises(ValueError, match="no Nobody"):
        suite_pettingzoo.load("pettingzoo.utils:Nobody")


@pytest.mark.parametrize(
    ("module", "name", "install"),
    [
        ("pettingzoo", "pettingzoo.classic.rps_v2", ".[multiagent]"),
        ("pettingzoo", "mpe2.simple_spread_v3", ".[multiagent]"),
    ],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, module: str, name: str, install: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match="needs a package that is not installed") as raised:
        suite_pettingzoo.load(name)
    assert f'pip install "{install}"' in str(raised.value)


def test_a_missing_package_of_environments_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        if name.startswith("mpe2"):
            raise ModuleNotFoundError("No module named 'mpe2'", name="mpe2")

    monkeypatch.setattr(importlib, "import_module", find)
    with pytest.raises(ValueError, match=r'pip install "\.\[mpe\]"'):
        suite_pettingzoo.load("mpe2.simple_spread_v3")
