"""Trains on what was just collected, in turns."""

from __future__ import annotations

import gin

from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.base import Driver
from alf.drivers.on_policy_driver import OnPolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.trainers.policy_trainer import Trainer


@gin.configurable("on_policy_trainer", module="alf")
class OnPolicyTrainer(Trainer):
    """An iteration makes `num_steps_per_iter` environment steps, with an update every `unroll_length` batched ones."""

    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        return OnPolicyDriver(
            envs[0], self.algorithm, train_interval=self._config.unroll_length, random_seed=random_seed
        )

    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        driver = self.driver
        assert isinstance(driver, OnPolicyDriver)
        return driver.run(self._config.num_steps_per_iter, time_step, policy_state)

    def _collect(self, at_random: bool) -> int:
        driver = self.driver
        assert isinstance(driver, OnPolicyDriver)
        return driver.gather(at_random)
