"""Trains on what was just collected, in turns."""

from __future__ import annotations

import gin

from alf import _tf
from alf.algorithms.behaviors import Behaviors
from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.base import Driver
from alf.drivers.on_policy_driver import OnPolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.trainers.building import refuse_offline, tell_of_no_effect, tell_of_one_environment
from alf.trainers.config import TrainerConfig
from alf.trainers.interrupts import Interrupted
from alf.trainers.policy_trainer import Trainer

# Settings of training in passes, or on samples, and of what comes before it.
_OF_OTHERS = (
    "num_updates_per_train_step",
    "mini_batch_length",
    "mini_batch_size",
    "whole_replay_buffer_training",
    "initial_collect_steps",
    "clear_replay_buffer",
)


@gin.configurable("on_policy_trainer", module="alf")
class OnPolicyTrainer(Trainer):
    """An iteration makes `num_steps_per_iter` environment steps, with an update every `unroll_length` batched ones.

    A signal ends it at the update, or in the collecting, that it comes in.
    """

    def __init__(self, config: TrainerConfig) -> None:
        """Creates the trainer; see `Trainer`."""
        _tf.leave_no_thread_free()
        super().__init__(config)

    def _make_driver(self, envs: list[BatchedEnvironment]) -> Driver:
        if not self.algorithm.acts:
            raise ValueError(
                f"{type(self.algorithm).__name__} takes no action, and on_policy_trainer learns from what it has just "
                "collected: set TrainerConfig.trainer = @sync_off_policy_trainer."
            )
        return super()._make_driver(envs)

    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        tell_of_no_effect(
            self._config,
            _OF_OTHERS,
            "on_policy_trainer makes one update of all that it has collected",
            "sync_off_policy_trainer",
        )
        tell_of_one_environment(self._config)
        refuse_offline(self._config, "on_policy_trainer")
        if isinstance(self.algorithm, Behaviors) and self.algorithm.sampling:
            raise ValueError(
                f"The behavior {self.algorithm.sampling[0]!r} learns from samples (whole_replay_buffer_training=False), and "
                "on_policy_trainer from what it has just collected: set TrainerConfig.trainer = @sync_off_policy_trainer."
            )
        return OnPolicyDriver(
            envs[0], self.algorithm, train_interval=self._config.unroll_length, random_seed=random_seed
        )

    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        driver, steps = self.driver, 0
        assert isinstance(driver, OnPolicyDriver)
        while steps < self._config.num_steps_per_iter:
            try:
                with self._signals.interruptible():
                    steps += driver.gather()
            except Interrupted:
                # A shorter iteration, but for a run that is to be repeated exactly: that one makes it again.
                if not steps or self._config.exact_resume:
                    raise
                break
            self.algorithm.train()
        return None, (), steps

    def _collect(self, at_random: bool) -> int:
        driver = self.driver
        assert isinstance(driver, OnPolicyDriver)
        return driver.gather(at_random)
