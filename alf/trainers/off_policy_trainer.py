"""Trains from a replayer, with collecting and learning in turns or side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from alf import _tf
from alf.algorithms import minibatch
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.normalization import LearnerStatistics
from alf.data_structures import ActionTimeStep, Nest
from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.pool import WorkerPool
from alf.distributed.remote_evaluator import RemoteEvaluator
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.base import Driver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.replay.dataset import DatasetReplayer
from alf.replay.experience_replayer import ReplayTooSmallError
from alf.replay.hindsight_replay import HindsightReplay
from alf.replay.memory_use import MemoryUse
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.trainers import remote, remote_environments
from alf.trainers.building import refuse_offline, tell_of_no_effect, tell_of_one_environment
from alf.trainers.config import TrainerConfig
from alf.trainers.counts import EnvironmentSteps
from alf.trainers.interrupts import Interrupted
from alf.trainers.phases import Phase
from alf.trainers.policy_trainer import Trainer
from alf.trainers.remote_evaluation import RemoteEvaluation
from alf.trainers.run_environments import evaluation_rows
from alf.trainers.run_report import EVAL_DIR
from alf.utils.common import is_stateless
from alf.utils.target_updater import TargetUpdater

# Steps of a sequence through which next to nothing can be remembered.
_TOO_SHORT = 2


class OffPolicyTrainer(Trainer):
    """What trainers over a replayer share: collect a batch, then train on it with the sizes of the configuration."""

    def __init__(self, config: TrainerConfig) -> None:
        """Creates the trainer; see `Trainer`."""
        super().__init__(config)
        self._num_updates = config.num_updates_per_train_step
        if not config.num_workers:
            why = "TrainerConfig.num_workers=0 has everything in one process"
            tell_of_no_effect(config, ["central_inference", "ray_address"], why, "a run with workers")

    def _name_replayer(self) -> None:
        """Says which replayer a driver takes that is not told."""
        self.algorithm.set_default_replayer(self._training())

    def _make_driver(self, envs: list[BatchedEnvironment]) -> Driver:
        driver = super()._make_driver(envs)
        config = self._config
        self._check_dataset()
        # Said now, not after the initial collecting.
        for use in self.algorithm.memory_uses(self._training()).values():
            if use.size is not None:
                use.memory.check_capacity(use.size, use.length)
            elif isinstance(use.memory, (PrioritizedReplay, HindsightReplay)):
                raise ValueError(
                    f"A {type(use.memory).__name__} chooses the samples that are learned from, and TrainerConfig."
                    "whole_replay_buffer_training=True learns from everything: set it to False."
                )
            else:
                use.memory.buffer.check_whole()
                if use.kept:
                    _check_cutting(use, config, self.algorithm.acts)
        if config.samples_per_insert is not None:
            self.algorithm.steps_of_an_update(self._training())
        self._check_segments()
        return driver

    def _tell_of_no_memory(self) -> None:
        """Warns where recurrent networks can learn nothing that takes a memory."""
        config, algorithm = self._config, self.algorithm
        length = config.mini_batch_length or config.unroll_length
        if isinstance(algorithm, Behaviors) or config.burn_in_length or length > _TOO_SHORT:
            return
        if is_stateless(algorithm.learning_state_spec):
            return
        if algorithm.need_full_rollout_state():
            what, remedy = "within which nothing is worth remembering", "some tens of steps for mini_batch_length"
        else:
            what = "each from an empty memory, and so learn to do without one"
            remedy = "TrainerConfig.use_rollout_state=True, or a longer mini_batch_length"
        logging.warning("Recurrent networks learn from sequences of %d steps, %s: set %s.", length, what, remedy)

    def _build(self) -> None:
        super()._build()
        self._tell_of_no_memory()
        if self.algorithm.acts and not self._config.unroll_length:
            self._check_offline()
        for use in self.algorithm.memory_uses(self._training()).values():
            if isinstance(use.memory, PrioritizedReplay):
                use.memory.priorities.check(use.length)

    def _check_offline(self) -> None:
        """Raises ValueError where nothing is collected, and the dataset does not do."""
        for part in self.algorithm.submodules:
            if isinstance(part, LearnerStatistics):
                raise ValueError(
                    f"{type(part).__name__} takes its statistics from what is collected, and TrainerConfig.unroll_length=0 "
                    "collects nothing: leave it out."
                )
            if isinstance(part, TargetUpdater) and part.by_env_steps:
                raise ValueError(
                    "Target networks that move every so many environment steps (target_update_unit='env_steps') never do "
                    "where TrainerConfig.unroll_length=0 collects none: set it to 'updates', and the period with it."
                )
        for use in self.algorithm.memory_uses(self._training()).values():
            there = use.memory.num_sequences(use.length)
            if use.size is not None and there < use.size:
                raise ValueError(
                    f"{self._config.load_memory_from_file_path} has {there} sequences of {use.length} steps, fewer than "
                    f"mini_batch_size={use.size}: record more, or set a smaller one."
                )

    def _check_segments(self) -> None:
        """Raises ValueError where segments that are learned from as a whole cannot be, with the sizes asked for."""
        config, algorithm = self._config, self.algorithm
        if isinstance(algorithm, Behaviors):
            algorithm.check_segments(self._training())
        elif config.whole_replay_buffer_training and config.clear_replay_buffer and algorithm.acts:
            sizes = config.unroll_length, config.mini_batch_length
            minibatch.check_segments(algorithm, *sizes, where="TrainerConfig.")

    def _check_dataset(self) -> None:
        """Raises ValueError where an algorithm that brings its data would not learn from all of it, in its sequences."""
        config, algorithm = self._config, self.algorithm
        if isinstance(algorithm.exp_replayer, DatasetReplayer):
            steps = int(algorithm.exp_replayer.replay_all().step_type.shape[1])
            if not config.whole_replay_buffer_training or steps % (config.mini_batch_length or steps):
                raise ValueError(
                    f"{type(algorithm).__name__} learns from its whole dataset, in sequences of {steps} steps "
                    "(BcAlgorithm.sequence_length): set TrainerConfig.whole_replay_buffer_training=True and "
                    f"TrainerConfig.mini_batch_length={steps}."
                )

    def _collect_initially(self, collect: Callable[[], int]) -> int:
        """Calls `collect` once, and again until there is enough to learn from; returns the steps. A signal may end it.

        At the start of a run that is `initial_collect_steps`, and where its memory was lost as many as its heat-up had; with a
        replayer of samples that they make a minibatch.

        Raises:
          ReplayTooSmallError: the memory never holds a minibatch.
        """
        begins = self._iterations_here == 0
        if self._config.exact_resume and self._counters.iterations and not self._saver.memory_lost:
            begins = False  # As the run that was not interrupted.
        steps = 0

        def more() -> int:
            nonlocal steps
            try:
                with self._signals.interruptible():
                    fresh = collect()
            except Interrupted:
                self._add_collected(steps)
                raise
            steps += fresh
            return fresh

        fresh = more()
        uses = self.algorithm.memory_uses(self._training())
        fillings = [_Filling(behavior, use) for behavior, use in uses.items()]
        least = self._steps_before_learning()
        if begins and not uses and steps < least:
            logging.warning(
                "TrainerConfig.initial_collect_steps=%d are collected, and the first update learns from the last %d of them "
                "only, since whole_replay_buffer_training with clear_replay_buffer keeps one batch: set it to 0, or one of these "
                "to False.",
                self._config.initial_collect_steps,
                fresh,
            )
        while (begins and _held(steps, uses.values()) < least) or not _all_filled(uses.values()):
            fresh = more()
            for filling in fillings:
                filling.check(fresh)
        # What there had to be before the first update is not made up for by a burst of updates.
        while not self._updates_due(steps - fresh, steps):
            fresh += more()
        self._num_updates = self._updates_due(steps - fresh, steps)
        return steps

    def _heatup_what_is_missing(self) -> None:
        # What a loss refuses is told now, not after the collecting.
        self.algorithm.prepare(self._training())
        if self._saver.memory_lost and not self._counters.iterations:
            # All of it: what it had collected before it was interrupted is gone.
            self.heatup(self.schedule.heatup_steps)
        else:
            super()._heatup_what_is_missing()

    def _steps_before_learning(self) -> int:
        config, counters = self._config, self._counters
        if not counters.iterations:
            return config.initial_collect_steps
        if self._saver.memory_lost:
            return max(config.initial_collect_steps, counters[Phase.HEATUP].of(EnvironmentSteps).value)
        # A memory that came back full holds no more.
        uses = self.algorithm.memory_uses(self._training()).values()
        return min([config.initial_collect_steps, *(use.capacity for use in uses)])

    def _updates_due(self, begin: int, end: int) -> int:
        """How many updates follow on environment steps `begin` to `end` of this iteration.

        With `samples_per_insert` it is a difference of rounded totals, which needs no memory of its own: a resumed run has
        nothing to catch up with, and whoever finds none due collects more, so that nobody waits for anybody.
        """
        config = self._config
        if config.samples_per_insert is None:
            return config.num_updates_per_train_step
        updates_per_step = config.samples_per_insert / self.algorithm.steps_of_an_update(self._training())
        before = self._counters.env_steps
        return math.floor((before + end) * updates_per_step) - math.floor((before + begin) * updates_per_step)

    def _training(self) -> dict[str, Any]:
        """The arguments of `train`, but for the number of updates."""
        config = self._config
        return {
            "mini_batch_size": config.mini_batch_size,
            "mini_batch_length": config.mini_batch_length,
            "whole_replay_buffer_training": config.whole_replay_buffer_training,
            "clear_replay_buffer": config.clear_replay_buffer,
            "update_counter_every_mini_batch": config.update_counter_every_mini_batch,
        }

    def _learn_only(self) -> None:
        self._learn()

    def _learn(self) -> int:
        try:
            return self.algorithm.train(num_updates=self._num_updates, **self._training())
        except tf.errors.InvalidArgumentError as error:
            self._saver.check_error(error)
            raise


def _check_cutting(use: MemoryUse, config: TrainerConfig, grows: bool) -> None:
    """Raises ValueError where all that a memory keeps cannot be cut into sequences, when full or, if it `grows`, before."""
    most = use.memory.buffer.max_length
    sizes = {"ReplayBuffer.max_length": most}
    if grows and config.initial_collect_steps * use.slots < most * use.memory.batch_size:
        sizes["TrainerConfig.unroll_length"] = config.unroll_length
    for name, size in sizes.items():
        if size % use.length:
            raise ValueError(
                f"A memory that is learned from as a whole, of {name}={size} steps, cannot be cut into sequences of "
                f"mini_batch_length={use.length}: make it a multiple."
            )


def _held(steps: int, uses: Collection[MemoryUse]) -> int:
    """How many steps there are, of which `steps` were made just now."""
    # In steps of the environments, of which agents that idle hold fewer; a memory that was lost is filled again.
    return max(steps, min((use.memory.total_steps // use.slots for use in uses), default=0))


def _all_filled(uses: Collection[MemoryUse]) -> bool:
    """Whether every memory has a minibatch, where one is drawn."""
    return all(use.has_minibatch for use in uses)


class _Filling:
    """Ends a collecting that brings a replay memory no nearer to a minibatch."""

    def __init__(self, behavior: str | None, use: MemoryUse) -> None:
        self._behavior, self._use = behavior, use
        self._most, self._since = self._held(), 0

    def _held(self) -> int:
        return self._use.memory.num_sequences(self._use.length)

    def check(self, steps: int) -> None:
        """Takes in that `steps` more were collected; raises ReplayTooSmallError when twice the memory's size was in vain."""
        use, held = self._use, self._held()
        self._since = 0 if held > self._most else self._since + steps
        self._most = max(held, self._most)
        if use.size is None or self._most >= use.size:
            return
        if self._since > 2 * use.capacity:
            whose, why = "", ""
            if self._behavior is not None:
                whose, why = f" of the behavior {self._behavior!r}", "its agents decide too seldom, or "
            if use.memory.buffer.waits_for_ends:
                why += "its episodes do not end (store_transitions_only_when_episodes_are_terminated), or "
            raise ReplayTooSmallError(
                f"The replay memory{whose} never holds mini_batch_size={use.size} sequences of mini_batch_length="
                f"{use.length} steps: it came to {self._most}, and {self._since} more steps, over twice the {use.capacity} that "
                f"it keeps, brought none, since {why}its streams have gaps (as where AsyncOffPolicyDriver.max_policy_lag "
                "drops segments, or a transform of steps draws random numbers). Raise unroll_length, max_policy_lag or "
                "ReplayBuffer.max_length, or lower mini_batch_length or mini_batch_size."
            )


@gin.configurable("sync_off_policy_trainer", module="alf")
class SyncOffPolicyTrainer(OffPolicyTrainer):
    """Collects `unroll_length` steps of one batched environment and learns, in turns."""

    def __init__(self, config: TrainerConfig) -> None:
        """Creates the trainer; see `Trainer`."""
        _tf.leave_no_thread_free()
        super().__init__(config)

    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        self._name_replayer()
        tell_of_one_environment(self._config)
        if not self._config.unroll_length:
            why = "TrainerConfig.unroll_length=0 collects nothing"
            tell_of_no_effect(self._config, ["initial_collect_steps"], why, "a run that collects")
        # Where it is 0, what is collected is a heat-up, if anything.
        length = self._config.unroll_length or 1
        self._steps_per_run = length * envs[0].batch_size
        return SyncOffPolicyDriver(envs[0], self.algorithm, unroll_length=length, random_seed=random_seed)

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

        steps = self._collect_initially(collect)
        self._learn()
        return (*position, steps)

    def _collect(self, at_random: bool) -> int:
        driver = self.driver
        assert isinstance(driver, SyncOffPolicyDriver)
        return driver.gather(at_random)


@gin.configurable("async_off_policy_trainer", module="alf")
class AsyncOffPolicyTrainer(OffPolicyTrainer):
    """Learns from `num_envs` environment threads that collect meanwhile; `AsyncOffPolicyDriver` has the settings.

    With `num_workers` there are so many threads in each of these processes and none in this one, which has an environment
    that tells what all are like and is never stepped. With `central_inference` too all threads are in this process, and
    their environments in the workers.
    """

    _takes_workers = True

    def __init__(self, config: TrainerConfig) -> None:
        """Creates the trainer; see `Trainer`."""
        super().__init__(config)
        self._pool: WorkerPool | None = None
        self._host: EnvironmentPool | None = None

    def _workers_act(self) -> bool:
        return self._config.num_workers > 0 and not self._config.central_inference

    def _num_environments(self) -> int:
        return 1 if self._workers_act() else self._num_threads()

    def _num_threads(self) -> int:
        return (self._config.num_workers or 1) * self._config.num_envs

    def _make_driver(self, envs: list[BatchedEnvironment]) -> Driver:
        driver = super()._make_driver(envs)
        whole = any(use.size is None and use.kept for use in self.algorithm.memory_uses(self._training()).values())
        if whole and self.algorithm.acts and self._num_threads() > 1 and not driver.reproducible:
            raise ValueError(
                f"{self._num_threads()} environment threads (TrainerConfig.num_envs) bring more segments the one than the other, "
                "so that what a memory keeps cannot be learned from as a whole: train on samples (TrainerConfig."
                "whole_replay_buffer_training=False), or on the newest batch alone (TrainerConfig.clear_replay_buffer=True), or "
                "set AsyncOffPolicyDriver.mode='lockstep'."
            )
        return driver

    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        refuse_offline(self._config, "async_off_policy_trainer")
        self._name_replayer()
        run = self._config, self._seeds.run, self._place
        rows = evaluation_rows(self.schedule.evaluation_steps, envs[0].batch_size)
        if self._host is not None and self._config.evaluation_worker:
            evaluator = remote_environments.start_evaluator(self._host, *run, rows)
            self._leave_evaluations_to(evaluator, envs[0])
        if self._workers_act():
            self._pool = remote.make_pool(*run, rows)
            self._stream_closers.append(self._pool.stop)
            self._leave_evaluations_to(self._pool.evaluator, envs[0])
        return AsyncOffPolicyDriver(
            envs,
            self.algorithm,
            unroll_length=self._config.unroll_length,
            random_seed=random_seed,
            workers=self._pool,
            host=self._host,
        )

    def _make_environments(self, place: tuple[int, int]) -> list[BatchedEnvironment]:
        if not self._config.num_workers or self._workers_act():
            return super()._make_environments(place)
        self._host = remote_environments.make_pool(self._config, self._seeds.run, place)
        self._stream_closers.append(self._host.stop)
        self._envs = [*self._host.start()]
        return self._envs

    def _leave_evaluations_to(self, evaluator: RemoteEvaluator | None, env: BatchedEnvironment) -> None:
        if evaluator is not None:
            log_dir = os.path.join(self._root_dir, EVAL_DIR)
            self._evaluations.leave_to(
                RemoteEvaluation(evaluator, self.algorithm, env, self._config.epsilon_greedy, log_dir)
            )

    def _worker_facts(self) -> Mapping[str, Any] | None:
        pool = self._pool or self._host
        if pool is None:
            return None
        version, rows = int(self.algorithm.iterations), pool.facts()
        for row in rows:
            acting = row["policy_version"]
            row["lag"] = None if acting is None else version - acting
        return {"pool": pool.describe(), "policy_version": version, "workers": rows}

    def _describe_driver(self) -> str:
        driver = self.driver
        return driver.describe() if isinstance(driver, AsyncOffPolicyDriver) else super()._describe_driver()

    def _start(self) -> None:
        driver = self.driver
        if isinstance(driver, AsyncOffPolicyDriver):
            driver.act_at_random(self._acts_at_random())
        super()._start()

    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        driver = self.driver
        assert isinstance(driver, AsyncOffPolicyDriver)
        driver.act_at_random(False)
        steps = self._collect_initially(driver.run_async)
        self._learn()
        return None, (), steps

    def _collect(self, at_random: bool) -> int:
        driver = self.driver
        assert isinstance(driver, AsyncOffPolicyDriver)
        driver.act_at_random(at_random)
        return driver.run_async()
