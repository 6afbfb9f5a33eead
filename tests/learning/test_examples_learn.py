"""The shipped examples reach the returns that their headers state, from every one of five seeds."""

from __future__ import annotations

import pathlib

import pytest

from tests.learning import runs

SEEDS = range(5)

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["async_ppo_cart_pole", "async_vtrace_cart_pole", "ppo_cart_pole"])
def test_cart_pole_is_solved(tmp_path: pathlib.Path, name: str, seed: int) -> None:
    outcome = runs.train(tmp_path, [name], seed, 475.0)
    assert outcome.best >= 475.0, outcome


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("name", ["ac_cart_pole", "off_policy_ac_cart_pole", "trac_cart_pole"])
def test_actor_critics_solve_cart_pole(tmp_path: pathlib.Path, name: str, seed: int) -> None:
    outcome = runs.train(tmp_path, [name], seed, 475.0)
    assert outcome.best >= 475.0, outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_pendulum_swings_up(tmp_path: pathlib.Path, seed: int) -> None:
    outcome = runs.train(tmp_path, ["async_ppo_pendulum"], seed, -250.0)
    assert outcome.best >= -250.0, outcome


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_curiosity_finds_the_flag_of_mountain_car(tmp_path: pathlib.Path, seed: int) -> None:
    outcome = runs.train(tmp_path, ["icm_mountain_car"], seed, -140.0)
    assert outcome.best >= -140.0, outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_task_needs_and_gets_memory(tmp_path: pathlib.Path, seed: int) -> None:
    # Of the best return 4, a policy that cannot remember gets 2 on average: an episode earns all or nothing of it.
    outcome = runs.train(tmp_path / "rnn", ["async_ppo_rnn_memory"], seed, 3.9, window=1000)
    assert outcome.best >= 3.9, outcome
    forgetful = ["async_ppo_rnn_memory", "mlp_networks"]
    outcome = runs.train(tmp_path / "mlp", forgetful, seed, 3.9, window=1000)
    assert outcome.best < 2.5, outcome


def test_every_example_states_the_return_that_is_tested_here() -> None:
    stated = {
        "async_ppo_cart_pole": 475,
        "async_vtrace_cart_pole": 475,
        "ppo_cart_pole": 475,
        "ac_cart_pole": 475,
        "off_policy_ac_cart_pole": 475,
        "trac_cart_pole": 475,
        "async_ppo_pendulum": -250,
        "async_ppo_rnn_memory": 3.9,
        "icm_mountain_car": -140,
    }
    wrong = [
        name
        for name, reached in stated.items()
        if f"# Return: at least {reached}" not in (runs.EXAMPLES / f"{name}.gin").read_text()
    ]
    assert not wrong, f"examples whose header states another return, or none: {wrong}"
