"""MuJoCo environments by id, under the name that gin files have for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gin
import gymnasium

from alf.environments import suite_gym
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.vectorization import EnvironmentLoader

# Old files import TF-Agents' module of this name, whose loader needs a MuJoCo of ten years ago: as in `suite_gym`.
importlib.import_module("tf_agents.environments.suite_mujoco")
suite_gym.drop_tf_agents_loader("suite_mujoco")


@gin.configurable(module="alf.environments.suite_mujoco")
def load(
    environment_name: str,
    gym_env_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = (),
    max_episode_steps: int | None = None,
    **env_kwargs: Any,
) -> EnvironmentLoader:
    """`suite_gym.load` for MuJoCo: needs the extra `mujoco`, or `envpool` for vectorization "envpool".

    Args:
      environment_name: such as "Humanoid-v5" (Gymnasium) or "Humanoid-v4" (Gymnasium and EnvPool).
      gym_env_wrappers: as in `suite_gym.load`.
      env_wrappers: likewise.
      max_episode_steps: likewise.
      **env_kwargs: likewise.
    """
    return suite_gym.load(environment_name, gym_env_wrappers, env_wrappers, max_episode_steps, **env_kwargs)
