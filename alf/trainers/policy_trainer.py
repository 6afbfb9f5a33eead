"""The trainer: builds a run from its configuration, iterates, saves, and leaves nothing behind."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.base import Driver
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.utils import create_environment
from alf.trainers import seeds as run_seeds
from alf.trainers.building import algorithm_ctor, build_algorithm
from alf.trainers.checkpointing import Checkpointer, Counters, MetricsState, checkpoint_numbers
from alf.trainers.config import TrainerConfig as TrainerConfig
from alf.trainers.evaluation import Evaluator
from alf.trainers.interrupts import Interrupted, StopSignals
from alf.trainers.run_report import EVAL_DIR, TRAIN_DIR, RunReport

CHECKPOINT_DIR = os.path.join(TRAIN_DIR, "algorithm")


class Trainer(abc.ABC):
    """Runs a `TrainerConfig`: environments, algorithm, driver, iterations, checkpoints, summaries, evaluation.

    Subclasses make the driver and define one iteration. Everything is written below `config.root_dir`: `train/` and
    `eval/` event files, `train/algorithm/ckpt-<global counter>`, `configured.gin`. A run with the same root_dir goes on
    from the newest checkpoint.
    """

    def __init__(self, config: TrainerConfig) -> None:
        """Creates the trainer; `initialize` does the work.

        Args:
          config: the settings.

        Raises:
          ValueError: no algorithm is set.
        """
        algorithm_ctor(config)
        self._config = config
        self._root_dir = os.path.expanduser(config.root_dir)
        self._counters = Counters()
        self._signals = StopSignals()
        self._algorithm: OffPolicyAlgorithm | None = None
        self._driver: Driver | None = None
        # How to end what has been built so far, in this order.
        self._closers: list[Callable[[], None]] = []
        self._initialized = False
        self._iterations_here = 0
        self._saved_at: str | None = None

    # ---- what subclasses define ----

    @abc.abstractmethod
    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        """Makes the driver, which owns `envs` from then on."""

    @abc.abstractmethod
    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        """Collects and learns once.

        Args:
          iter_num: iterations done before, resumed ones included.
          policy_state: what the last call returned; None at first.
          time_step: likewise.

        Returns:
          the time step and policy state to go on from, and the environment steps that the learner got.
        """

    def _num_environments(self) -> int:
        """How many batched environments the driver needs."""
        return 1

    def _describe_driver(self) -> str:
        """How the driver works, for the log."""
        return type(self.driver).__name__

    # ---- public ----

    @property
    def algorithm(self) -> OffPolicyAlgorithm:
        """The algorithm that is trained, once initialised."""
        assert self._algorithm is not None, "initialize() makes the algorithm"
        return self._algorithm

    @property
    def driver(self) -> Driver:
        """The driver that collects, once initialised."""
        assert self._driver is not None, "initialize() makes the driver"
        return self._driver

    @property
    def counters(self) -> Counters:
        """How far the run is, resumed parts included."""
        return self._counters

    @property
    def global_counter(self) -> tf.Variable:
        """int64 []: iterations, or minibatches with update_counter_every_mini_batch; numbers the checkpoints."""
        return self._counters.global_counter

    def initialize(self) -> None:
        """Builds environments, algorithm and driver, and restores the newest checkpoint; once only.

        Raises:
          CheckpointError: the root_dir holds checkpoints of another kind of run, or damaged ones only.
        """
        if self._initialized:
            return
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        self._initialized = True

    def train(self) -> None:
        """Trains until a limit of the configuration is reached or a signal asks to stop; then saves and closes.

        Raises:
          Exception: whatever ended training early. A checkpoint is written before, where the weights are finite.
        """
        with StopSignals() as self._signals:
            self.initialize()
            try:
                self._report.start()
                self._loop()
                self.driver.stop()
                self._finish()
            except BaseException as e:
                self._save_after(e)
                raise
            finally:
                self._close()

    # ---- building ----

    def _build(self) -> None:
        config = self._config
        if not config.use_tf_functions:
            tf.config.run_functions_eagerly(True)
            self._closers.append(lambda: tf.config.run_functions_eagerly(False))
        seeds = run_seeds.spawn(config.random_seed)
        envs = self._make_environments(seeds.environments)
        self._algorithm = build_algorithm(config, envs[0])
        # The driver reads the version of the weights, so the checkpoint comes first.
        metrics = self._restore()
        self._driver = self._init_driver(envs, run_seeds.integer(seeds.acting))
        self._closers.insert(0, self._driver.stop)
        self._algorithm.set_seed(run_seeds.integer(seeds.learning))
        metrics.attach(self._driver.get_metrics())
        self._report = RunReport(self._root_dir, config, self._counters, self._algorithm, self._driver, seeds.run)
        self._closers.append(self._report.close)
        self._evaluator = self._make_evaluator(seeds.evaluation) if config.evaluate else None

    def _make_environments(self, seed: np.random.SeedSequence) -> list[BatchedEnvironment]:
        # A resumed run goes on with other random numbers than those that it began with.
        resumed_at = checkpoint_numbers(os.path.join(self._root_dir, CHECKPOINT_DIR))[-1:]
        seed = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *resumed_at))
        envs = []
        for child in seed.spawn(self._num_environments()):
            env = self._create_environment(random_seed=child)
            envs.append(env)
            self._closers.append(env.close)
        return envs

    @gin.configurable("_create_environment", module="alf.trainers.Trainer", denylist=["self"])
    def _create_environment(
        self, nonparallel: bool = False, random_seed: Any = None, register: bool = True
    ) -> BatchedEnvironment:
        """Makes a batched environment, of a single row with `nonparallel`; `register` is accepted and has no effect."""
        del register
        return create_environment(nonparallel=nonparallel, seed=random_seed)

    def _make_evaluator(self, seeds: np.random.SeedSequence) -> Evaluator:
        config = self._config
        env_seed, acting_seed = seeds.spawn(2)
        evaluator = Evaluator(
            self._create_environment(nonparallel=True, random_seed=env_seed),
            self.algorithm,
            config.num_eval_episodes,
            config.epsilon_greedy,
            run_seeds.integer(acting_seed),
            os.path.join(self._root_dir, EVAL_DIR),
        )
        self._closers.append(evaluator.close)
        return evaluator

    # ---- iterating ----

    def _loop(self) -> None:
        if self._reached() or self._signals.requested:
            return
        self.driver.start()
        policy_state, time_step = None, None
        try:
            while not self._reached() and not self._signals.requested:
                time_step, policy_state, steps = self._train_iter(self._counters.iterations, policy_state, time_step)
                self._count(steps)
                self._after_iteration()
        except Interrupted:
            pass

    def _count(self, steps: int) -> None:
        counters = self._counters
        self._iterations_here += 1
        counters.iteration.assign_add(1)
        counters.env_step.assign_add(steps)
        if self._config.update_counter_every_mini_batch:
            optimizer = self.algorithm.optimized_variables()[0][0]
            counters.global_counter.assign(tf.cast(optimizer.iterations, tf.int64))
        else:
            counters.global_counter.assign_add(1)

    def _after_iteration(self) -> None:
        config, iteration = self._config, self._counters.iterations
        if self._iterations_here == 1:
            logging.info("Training: %s", self._describe_driver())
        self._report.after_iteration()
        if config.checkpoint_interval and iteration % config.checkpoint_interval == 0:
            self._save()
        if self._evaluator is not None and iteration % config.eval_interval == 0:
            self._evaluate(self._evaluator)

    def _reached(self) -> str | None:
        """Which limit is reached."""
        config = self._config
        if config.num_iterations and self._counters.iterations >= config.num_iterations:
            return f"num_iterations={config.num_iterations} is reached"
        if config.num_env_steps and self._counters.env_steps >= config.num_env_steps:
            return f"num_env_steps={config.num_env_steps} is reached"
        return None

    def _evaluate(self, evaluator: Evaluator) -> None:
        result = evaluator.evaluate(self._counters.global_steps)
        logging.info(
            "Evaluation after iteration %d: return %.2f ± %.2f over %d episodes.",
            self._counters.iterations,
            result.average_return,
            result.std_return,
            result.episodes,
        )

    # ---- saving ----

    def _restore(self) -> MetricsState:
        """Restores the newest checkpoint, if there is one; returns what it holds of the metrics."""
        self.algorithm.acting_variables()
        self.algorithm.build_optimizers()
        metrics = MetricsState()
        self._checkpointer = Checkpointer(
            os.path.join(self._root_dir, CHECKPOINT_DIR),
            {"algorithm": self.algorithm, "metrics": metrics, "counters": self._counters},
            self._config.checkpoint_max_to_keep,
        )
        self._saved_at = self._checkpointer.restore()
        if self._saved_at is not None:
            counters = self._counters
            logging.info(
                "Resumed from %s: iteration %d, %d env steps.", self._saved_at, counters.iterations, counters.env_steps
            )
        return metrics

    def _save(self) -> None:
        self._saved_at = self._checkpointer.save(self._counters.global_steps)

    def _save_after(self, error: BaseException) -> None:
        """A checkpoint of what was learned before `error`, unless that is what it destroyed."""
        if not self._iterations_here:
            return
        weights = [v for v in self.algorithm.variables if v.dtype.is_floating]
        if not all(bool(tf.reduce_all(tf.math.is_finite(w))) for w in weights):
            logging.error("%s: no checkpoint was written, since some weights are not finite.", type(error).__name__)
            return
        try:
            self._save()
        except Exception as e:
            logging.error("The checkpoint after %s could not be written: %s", type(error).__name__, e)
        else:
            logging.info("Wrote %s after %s.", self._saved_at, type(error).__name__)

    # ---- ending ----

    def _finish(self) -> None:
        if self._iterations_here or self._saved_at is None:
            self._save()
            self._report.summarize()
            self._report.record_config()
        signal = self._signals.requested
        self._report.finish(f"{signal} received" if signal else str(self._reached()), self._saved_at)

    def _close(self) -> None:
        """Ends the driver and closes all environments and files, whatever state they are in."""
        closers, self._closers = self._closers, []
        for close in closers:
            try:
                close()
            except Exception as e:
                logging.warning("While closing: %s: %s", type(e).__name__, e)
