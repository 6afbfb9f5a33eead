"""Trains from a replayer, with collecting and learning in turns or side by side."""

from __future__ import annotations

from collections.abc import Callable

import gin

from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.base import Driver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.trainers.policy_trainer import Trainer


class OffPolicyTrainer(Trainer):
    """What trainers over a replayer share: collect a batch, then train on it with the sizes of the configuration."""

    def _collect_initially(self, collect: Callable[[], int]) -> int:
        """Calls `collect` once, at the start of a run until it has made `initial_collect_steps`; returns the steps."""
        begins = self._counters.iterations == 0 if self._config.exact_resume else self._iterations_here == 0
        steps = collect()
        while begins and steps < self._config.initial_collect_steps:
            steps += collect()
        return steps

    def _learn(self) -> int:
        config = self._config
        return self.algorithm.train(
            num_updates=config.num_updates_per_train_step,
            mini_batch_size=config.mini_batch_size,
            mini_batch_length=config.mini_batch_length,
            whole_replay_buffer_training=config.whole_replay_buffer_training,
            clear_replay_buffer=config.clear_replay_buffer,
            update_counter_every_mini_batch=config.update_counter_every_mini_batch,
        )


@gin.configurable("sync_off_policy_trainer", module="alf")
class SyncOffPolicyTrainer(OffPolicyTrainer):
    """Collects `unroll_length` steps of one batched environment and learns, in turns."""

    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        self._steps_per_run = self._config.unroll_length * envs[0].batch_size
        return SyncOffPolicyDriver(
            envs[0], self.algorithm, unroll_length=self._config.unroll_length, random_seed=random_seed
        )

    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        driver = self.driver
        assert isinstance(driver, SyncOffPolicyDriver)
        position = (time_step, policy_state)

        def collect() -> int:
            nonlocal position
            position = driver.run(self._steps_per_run, *position)
            return self._steps_per_run

        with self._signals.interruptible():
            steps = self._collect_initially(collect)
        self._learn()
        return (*position, steps)

    def _collect(self, at_random: bool) -> int:
        driver = self.driver
        assert isinstance(driver, SyncOffPolicyDriver)
        return driver.gather(at_random)


@gin.configurable("async_off_policy_trainer", module="alf")
class AsyncOffPolicyTrainer(OffPolicyTrainer):
    """Learns from `num_envs` environment threads that collect meanwhile; `AsyncOffPolicyDriver` has the settings."""

    def _num_environments(self) -> int:
        return self._config.num_envs

    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        return AsyncOffPolicyDriver(
            envs, self.algorithm, unroll_length=self._config.unroll_length, random_seed=random_seed
        )

    def _describe_driver(self) -> str:
        driver = self.driver
        assert isinstance(driver, AsyncOffPolicyDriver)
        return driver.describe()

    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        driver = self.driver
        assert isinstance(driver, AsyncOffPolicyDriver)
        with self._signals.interruptible():
            steps = self._collect_initially(driver.run_async)
        self._learn()
        return None, (), steps

    def _collect(self, at_random: bool) -> int:
        if at_random:
            raise ValueError(
                "The asynchronous driver cannot act at random: set Schedule.heatup_using_network_decisions=True, or use "
                "@sync_off_policy_trainer."
            )
        driver = self.driver
        assert isinstance(driver, AsyncOffPolicyDriver)
        return driver.run_async()
