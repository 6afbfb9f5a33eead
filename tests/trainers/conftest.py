"""A small run: CartPole, four rows, PPO with tiny networks."""

from __future__ import annotations

import gin
import pytest

from alf.drivers import async_off_policy_driver as async_off_policy_driver
from alf.environments import utils as utils
from alf.trainers.config import TrainerConfig
from tests.trainers.small_run import make_algorithm


@pytest.fixture(autouse=True)
def _small_bindings(_clean_gin):
    gin.bind_parameter("create_environment.num_parallel_environments", 4)
    gin.bind_parameter("AsyncOffPolicyDriver.num_actor_queues", 0)
    gin.bind_parameter("AsyncOffPolicyDriver.learn_queue_cap", 2)


@pytest.fixture
def small_config(tmp_path):
    """Makes a configuration under tmp_path/run; keywords win."""

    def make(trainer, **kwargs):
        settings = {
            "root_dir": str(tmp_path / "run"),
            "algorithm_ctor": make_algorithm,
            "random_seed": 1,
            "num_iterations": 3,
            "unroll_length": 4,
            "num_updates_per_train_step": 2,
            "mini_batch_length": 1,
            "mini_batch_size": 16,
            "num_steps_per_iter": 32,
            "num_envs": 2,
            "export_saved_model": False,
            **kwargs,
        }
        return TrainerConfig(trainer=trainer, **settings)

    return make
