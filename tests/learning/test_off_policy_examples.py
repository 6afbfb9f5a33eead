"""The shipped off-policy examples reach the returns that their headers state."""

from __future__ import annotations

import pathlib

import pytest

from tests.learning import runs

STATED = {
    "sac_pendulum": -200,
    "ddpg_pendulum": -200,
    "td3_pendulum": -250,
    "sac_cart_pole": 195,
    "dqn_cart_pole": 450,
    "sarsa_pendulum": -400,
}

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("name", STATED)
def test_example_reaches_its_return(tmp_path: pathlib.Path, name: str) -> None:
    outcome = runs.train(tmp_path, [name], 0, STATED[name], window=50 if "cart_pole" in name else 20)
    assert outcome.best >= STATED[name], outcome


def test_every_example_states_the_return_that_is_tested_here() -> None:
    wrong = [
        name
        for name, reached in STATED.items()
        if f"# Return: at least {reached} " not in (runs.EXAMPLES / f"{name}.gin").read_text()
    ]
    assert not wrong, f"examples whose header states another return, or none: {wrong}"
