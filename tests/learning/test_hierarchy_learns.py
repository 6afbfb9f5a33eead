"""Two levels solve what one does not with the same budget, from every one of three seeds."""

from __future__ import annotations

import pathlib

import pytest

from tests.learning import runs

pytestmark = pytest.mark.learning

NAME, STATED, WITHIN = "multi_agent_hierarchy", 0.9, 150_000
# With the settings of the upper level, which explores longer.
FLAT = (
    "suite_gym.load.gym_env_wrappers=()",
    "TrainerConfig.algorithm_ctor=@Agent",
    "PPOLoss.normalize_advantages=False",
    "PPOLoss.entropy_regularization=0.02",
)


@pytest.mark.parametrize("seed", range(3))
def test_two_levels_do_errands(tmp_path: pathlib.Path, seed: int) -> None:
    outcome = runs.train(tmp_path, [NAME], seed, STATED)
    assert outcome.best >= STATED, outcome
    assert outcome.env_steps <= WITHIN, outcome


@pytest.mark.parametrize("seed", range(3))
def test_one_level_does_not(tmp_path: pathlib.Path, seed: int) -> None:
    """The same algorithm with the same networks, and steps that choose goals are steps of the environment for it."""
    outcome = runs.train(tmp_path, [NAME], seed, STATED, FLAT)
    assert outcome.best < 0.1, outcome
    assert outcome.env_steps >= WITHIN, outcome


def test_the_example_states_the_return_that_is_tested_here() -> None:
    text = (runs.EXAMPLES / f"{NAME}.gin").read_text()
    assert f"# Return: at least {STATED} within {WITHIN:,} env steps." in text
