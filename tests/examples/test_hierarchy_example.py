"""The example of two levels trains both."""

from __future__ import annotations

import pathlib

import gin
import numpy as np

from alf.algorithms.behaviors import Behaviors
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "multi_agent_hierarchy.gin"
SMALL = [
    "TrainerConfig.strict=True",
    "TrainerConfig.num_iterations=3",
    "TrainerConfig.unroll_length=24",
    "TrainerConfig.num_updates_per_train_step=1",
    "lower/Behavior.unroll_length=8",
    "upper/Behavior.unroll_length=4",
    "TrainerConfig.export_saved_model=False",
    "TrainerConfig.random_seed=1",
    "suite_gym.load.reach=1",
    "Hierarchy.steps_limit=4",
    "create_environment.num_parallel_environments=4",
    "create_environment.vectorization='sync'",
]


def test_both_levels_are_trained(tmp_path: pathlib.Path) -> None:
    gin_utils.parse_gin([str(EXAMPLE)], SMALL)
    trainer = TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer()
    trainer.initialize()
    algorithm = trainer.algorithm
    assert isinstance(algorithm, Behaviors)
    before = {name: [v.numpy() for v in child.trainable_variables] for name, child in algorithm.by_name.items()}
    assert set(before) == {"lower", "upper"}
    trainer.train()
    assert trainer.counters.iterations == 3
    for name, child in algorithm.by_name.items():
        after = [v.numpy() for v in child.trainable_variables]
        assert not any(np.array_equal(a, b) for a, b in zip(before[name], after, strict=True)), name


def test_the_flat_policy_of_the_comparison_is_another_setting_of_it() -> None:
    gin_utils.parse_gin([str(EXAMPLE)], ["suite_gym.load.gym_env_wrappers=()", "TrainerConfig.algorithm_ctor=@Agent"])
    assert gin.query_parameter("suite_gym.load.gym_env_wrappers") == ()
