"""In each example of several agents, every behavior learns."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from alf.algorithms.behaviors import Behaviors
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SMALL = [
    "TrainerConfig.strict=True",
    "TrainerConfig.num_iterations=2",
    "TrainerConfig.unroll_length=8",
    "TrainerConfig.mini_batch_size=16",
    "TrainerConfig.num_updates_per_train_step=1",
    "TrainerConfig.export_saved_model=False",
    "TrainerConfig.random_seed=1",
    "create_environment.num_parallel_environments=2",
]
# The behaviors of each, and what makes it smaller still.
OF_EXAMPLES = {
    "multi_agent_pursuit": (["chaser", "runner"], ["runner/Behavior.mini_batch_size=4"]),
    "multi_agent_spread": (["agent"], []),
    "multi_agent_rock_paper_scissors": (["left", "right"], []),
    "multi_agent_tic_tac_toe": (["agent"], ["Behavior.unroll_length=2"]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if i else []) for i, name in enumerate(OF_EXAMPLES)]
)
def test_every_behavior_learns(name: str, tmp_path: pathlib.Path) -> None:
    if name == "multi_agent_tic_tac_toe":
        pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="alf[multiagent] is not installed")
    names, params = OF_EXAMPLES[name]
    gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], [*SMALL, *params])
    trainer = TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer()
    trainer.initialize()
    assert isinstance(trainer.algorithm, Behaviors)
    behaviors = trainer.algorithm.by_name
    first = {name: [v.numpy() for v in algorithm.trainable_variables] for name, algorithm in behaviors.items()}
    trainer.train()
    assert sorted(behaviors) == names
    for key, algorithm in behaviors.items():
        now = [v.numpy() for v in algorithm.trainable_variables]
        assert now
        assert all(np.isfinite(value).all() for value in now)
        assert not all(np.array_equal(old, new) for old, new in zip(first[key], now, strict=True)), key
