"""The examples that need more than classic control train where it is installed, and say what is missing."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from alf.environments import create_environment
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
# What each needs: a module and the package that installs it.
NEEDS = {
    "sac_bipedal_walker": ("Box2D", "alf[box2d]"),
    "sac_humanoid": ("mujoco", "alf[mujoco]"),
    "ppo_humanoid": ("mujoco", "alf[mujoco]"),
    "ppo_bullet_humanoid": ("pybullet_envs_gymnasium", "pybullet_envs_gymnasium"),
    "async_ppo_bullet_humanoid": ("pybullet_envs_gymnasium", "pybullet_envs_gymnasium"),
    "ppo_minigrid": ("minigrid", "alf[minigrid]"),
    "trac_ddpg_pendulum": None,
    "trac_sac_pendulum": None,
}
SMALL = [
    "TrainerConfig.strict=True",
    "TrainerConfig.num_iterations=2",
    "TrainerConfig.unroll_length=8",
    "TrainerConfig.mini_batch_size=8",
    "TrainerConfig.num_updates_per_train_step=2",
    "TrainerConfig.export_saved_model=False",
    "TrainerConfig.random_seed=1",
    "create_environment.num_parallel_environments=2",
]


def _parse(name: str) -> None:
    small = [*SMALL, *(["FC_LAYERS=(8,)"] if NEEDS[name] else [])]
    small += [] if "ppo" in name else ["TrainerConfig.initial_collect_steps=32"]
    gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], small)


@pytest.mark.parametrize("name", NEEDS)
def test_trains(name: str, tmp_path: pathlib.Path) -> None:
    module, package = NEEDS[name] or ("alf", "alf")
    pytest.importorskip(module, reason=f"{package} is not installed")
    _parse(name)
    trainer = TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer()
    trainer.train()
    assert trainer.counters.iterations == 2
    assert trainer.counters.env_steps >= 32


@pytest.mark.parametrize("name", ["ppo_bullet_humanoid", "async_ppo_bullet_humanoid"])
def test_a_missing_bullet_is_named(name: str) -> None:
    if importlib.util.find_spec("pybullet_envs_gymnasium"):
        pytest.skip("pybullet_envs_gymnasium is installed")
    _parse(name)
    with pytest.raises(ValueError, match=r"'HumanoidBulletEnv-v0' needs .*pip install pybullet_envs_gymnasium"):
        create_environment()
