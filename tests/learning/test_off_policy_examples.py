"""The shipped off-policy examples reach the returns that their headers state."""

from __future__ import annotations

import pathlib

import pytest

from alf.utils import mixed_precision
from tests.learning import runs

STATED = {
    "sac_pendulum": -200,
    "ddpg_pendulum": -200,
    "td3_pendulum": -200,
    "sac_cart_pole": 195,
    "dqn_cart_pole": 450,
    "c51_cart_pole": 450,
    "sarsa_pendulum": -400,
}

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("name", STATED)
def test_example_reaches_its_return(tmp_path: pathlib.Path, name: str) -> None:
    outcome = runs.train(tmp_path, [name], 0, STATED[name], window=50 if "cart_pole" in name else 20)
    assert outcome.best >= STATED[name], outcome


@pytest.mark.skipif(not mixed_precision.supported(), reason="the processor has no bfloat16 arithmetic")
def test_sac_reaches_its_return_with_products_in_bfloat16(tmp_path: pathlib.Path) -> None:
    try:
        outcome = runs.train(
            tmp_path, ["sac_pendulum"], 0, STATED["sac_pendulum"], ["TrainerConfig.mixed_precision=True"], 20
        )
        assert mixed_precision.in_force()
    finally:
        mixed_precision.use(False)
    assert outcome.best >= STATED["sac_pendulum"], outcome


def test_every_example_states_the_return_that_is_tested_here() -> None:
    wrong = [
        name
        for name, reached in STATED.items()
        if f"# Return: at least {reached} " not in (runs.EXAMPLES / f"{name}.gin").read_text()
    ]
    assert not wrong, f"examples whose header states another return, or none: {wrong}"
