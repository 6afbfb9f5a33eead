"""The trainer: builds a run from its configuration, iterates, saves, and leaves nothing behind."""

from __future__ import annotations

import abc
import os
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.base import Driver
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.utils import create_environment
from alf.metrics.reporter import StatsReporter
from alf.trainers.checkpointing import Checkpointer, MetricsState
from alf.trainers.config import TrainerConfig as TrainerConfig
from alf.trainers.evaluation import Evaluation, Evaluator
from alf.trainers.interrupts import Interrupted, StopSignals
from alf.trainers.progress import Progress, State
from alf.utils import common, gin_utils

CONFIG_FILE = "configured.gin"
CHECKPOINT_DIR = os.path.join("train", "algorithm")


class _Seeds(NamedTuple):
    """Independent streams of one seed."""

    init: np.random.SeedSequence
    environments: np.random.SeedSequence
    acting: np.random.SeedSequence
    learning: np.random.SeedSequence
    evaluation: np.random.SeedSequence


def _algorithm_ctor(config: TrainerConfig) -> Callable[..., OffPolicyAlgorithm]:
    if config.algorithm_ctor is None:
        raise ValueError("TrainerConfig.algorithm_ctor is not set: bind it to an algorithm, such as @Agent.")
    return config.algorithm_ctor


def build_algorithm(config: TrainerConfig, env: BatchedEnvironment) -> OffPolicyAlgorithm:
    """The algorithm of `config` for the specs of `env`, which becomes the one that gin's spec functions speak of.

    Raises:
      ValueError: no algorithm is set.
    """
    common.set_global_env(env)
    algorithm = _algorithm_ctor(config)(
        observation_spec=tensor_spec.from_spec(env.observation_spec()),
        action_spec=tensor_spec.from_spec(env.action_spec()),
        debug_summaries=config.debug_summaries,
    )
    algorithm.use_rollout_state = config.use_rollout_state
    algorithm.set_summary_settings(
        summarize_grads_and_vars=config.summarize_grads_and_vars,
        summarize_action_distributions=config.summarize_action_distributions,
    )
    return algorithm


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
        _algorithm_ctor(config)
        self._config = config
        self._root_dir = os.path.expanduser(config.root_dir)
        self._envs: list[BatchedEnvironment] = []
        self._driver: Driver | None = None
        self._evaluator: Evaluator | None = None
        self._reporter: StatsReporter | None = None
        self._signals = StopSignals()
        self._initialized = False
        self._closed = False
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
        """The algorithm that is trained."""
        return self._algorithm

    @property
    def driver(self) -> Driver:
        """The driver that collects."""
        assert self._driver is not None, "initialize() makes the driver"
        return self._driver

    @property
    def global_counter(self) -> tf.Variable:
        """int64 []: iterations, or minibatches with update_counter_every_mini_batch; numbers the checkpoints."""
        return self._global_counter

    @property
    def iterations(self) -> int:
        """Iterations done, resumed ones included."""
        return int(self._iteration.numpy())

    @property
    def env_steps(self) -> int:
        """Environment steps that the learner has got, resumed ones included."""
        return int(self._env_steps.numpy())

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
        self.initialize()
        with StopSignals() as self._signals:
            try:
                self._progress.start()
                self._loop()
                self.driver.stop()
                self._finish()
            except BaseException as e:
                self._progress.stop()
                self._save_after(e)
                raise
            finally:
                self._close()

    # ---- building ----

    def _build(self) -> None:
        config = self._config
        seeds = self._seed()
        if not config.use_tf_functions:
            tf.config.run_functions_eagerly(True)
        for seed in seeds.environments.spawn(self._num_environments()):
            self._envs.append(self._create_environment(random_seed=seed))
        self._algorithm = build_algorithm(config, self._envs[0])
        # The driver reads the algorithm's version, so the checkpoint comes first.
        self._algorithm.acting_variables()
        self._algorithm.build_optimizers()
        self._restore()
        self._driver = self._init_driver(self._envs, _integer(seeds.acting))
        self._algorithm.set_seed(_integer(seeds.learning))
        self._metrics_state.attach(self._driver.get_metrics())
        train_dir = os.path.join(self._root_dir, "train")
        self._reporter = StatsReporter(train_dir, summary_interval=config.summary_interval)
        self._progress = Progress(self._state, self._goal())
        if config.evaluate:
            self._evaluator = self._make_evaluator(seeds.evaluation)

    def _seed(self) -> _Seeds:
        seed = self._config.random_seed
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
            logging.info("random_seed is not set; this run uses %d.", seed)
        self._random_seed = seed
        seeds = _Seeds(*np.random.SeedSequence(seed).spawn(len(_Seeds._fields)))
        init = _integer(seeds.init)
        # Initialisers of networks and environments of users draw from the process's generators.
        random.seed(init)
        np.random.seed(init)
        tf.random.set_seed(init)
        return seeds

    @gin.configurable("_create_environment", module="alf.trainers.Trainer", denylist=["self"])
    def _create_environment(
        self, nonparallel: bool = False, random_seed: Any = None, register: bool = True
    ) -> BatchedEnvironment:
        """Makes a batched environment; one of a single row with `nonparallel`."""
        del register
        return create_environment(nonparallel=nonparallel, seed=random_seed)

    def _make_evaluator(self, seeds: np.random.SeedSequence) -> Evaluator:
        env_seed, acting_seed = seeds.spawn(2)
        env = self._create_environment(nonparallel=True, random_seed=env_seed)
        return Evaluator(
            env,
            self._algorithm,
            self._config.num_eval_episodes,
            self._config.epsilon_greedy,
            _integer(acting_seed),
            os.path.join(self._root_dir, "eval"),
        )

    # ---- iterating ----

    def _loop(self) -> None:
        if self._reached():
            return
        self.driver.start()
        logging.info("Training: %s", self._describe_driver())
        policy_state, time_step = None, None
        try:
            while not self._reached() and not self._signals.requested:
                time_step, policy_state, steps = self._train_iter(self.iterations, policy_state, time_step)
                self._count(steps)
                self._after_iteration()
        except Interrupted:
            pass

    def _count(self, steps: int) -> None:
        self._iterations_here += 1
        self._iteration.assign_add(1)
        self._env_steps.assign_add(steps)
        if self._config.update_counter_every_mini_batch:
            optimizer = self._algorithm.optimized_variables()[0][0]
            self._global_counter.assign(tf.cast(optimizer.iterations, tf.int64))
        else:
            self._global_counter.assign_add(1)

    def _after_iteration(self) -> None:
        config, iteration = self._config, self.iterations
        if self._iterations_here == 1:
            self._record_config()
        if self._reporter is not None and self._reporter.due(iteration):
            self._summarize()
        self._progress.update()
        if config.checkpoint_interval and iteration % config.checkpoint_interval == 0:
            self._save()
        if self._evaluator is not None and iteration % config.eval_interval == 0:
            self._evaluate()

    def _reached(self) -> str | None:
        """Which limit is reached."""
        config = self._config
        if config.num_iterations and self.iterations >= config.num_iterations:
            return f"num_iterations={config.num_iterations} is reached"
        if config.num_env_steps and self.env_steps >= config.num_env_steps:
            return f"num_env_steps={config.num_env_steps} is reached"
        return None

    def _goal(self) -> str:
        config = self._config
        limits = [(config.num_iterations, "iterations"), (config.num_env_steps, "env steps")]
        return "until " + " or ".join(f"{n:,} {what}" for n, what in limits if n)

    # ---- reporting ----

    def _record_config(self) -> None:
        """Writes what the first iteration used of the configuration, and warns of what it did not."""
        path = os.path.join(self._root_dir, CONFIG_FILE)
        text = gin_utils.write_operative_config(path, [f"Seed of the run: {self._random_seed}"])
        assert self._reporter is not None
        self._reporter.text("gin/operative_config", _markdown(text), int(self._global_counter.numpy()))
        unused = gin_utils.unused_bindings()
        if not unused:
            return
        message = f"Bindings that nothing has used: {', '.join(unused)}."
        if self._config.strict:
            raise gin_utils.GinConfigError(message + " Remove them, or run without strict.")
        logging.warning("%s", message)

    def _summarize(self) -> None:
        assert self._reporter is not None
        self._reporter.write(
            self.iterations,
            int(self._global_counter.numpy()),
            self.driver.get_metrics(),
            {name: value.numpy() for name, value in self._algorithm.last_train_metrics.items()},
            self.driver.stats(),
            self.env_steps,
        )

    def _state(self) -> State:
        episodes, _, average_return, average_length = self.driver.get_metrics()[:4]
        returns = None
        if average_return.num_episodes():
            returns = (float(average_return.result()), average_return.std(), average_return.num_episodes())
        return State(
            self.iterations,
            self.env_steps,
            int(episodes.result()),
            returns,
            int(average_length.longest_open()),
            self.driver.stats(),
        )

    def _evaluate(self) -> Evaluation:
        assert self._evaluator is not None
        result = self._evaluator.evaluate(int(self._global_counter.numpy()))
        logging.info(
            "Evaluation at iteration %d: return %.2f ± %.2f over %d episodes.",
            self.iterations,
            result.average_return,
            result.std_return,
            result.episodes,
        )
        return result

    # ---- saving ----

    def _restore(self) -> None:
        self._global_counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_counter")
        self._iteration = tf.Variable(0, dtype=tf.int64, trainable=False, name="iteration")
        self._env_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="env_steps")
        self._metrics_state = MetricsState()
        self._checkpointer = Checkpointer(
            os.path.join(self._root_dir, CHECKPOINT_DIR),
            {
                "algorithm": self._algorithm,
                "metrics": self._metrics_state,
                "global_step": self._global_counter,
                "iteration": self._iteration,
                "env_steps": self._env_steps,
            },
            self._config.checkpoint_max_to_keep,
        )
        path = self._checkpointer.restore()
        if path is not None:
            self._saved_at = path
            logging.info("Resumed from %s: iteration %d, %d env steps.", path, self.iterations, self.env_steps)

    def _save(self) -> None:
        self._saved_at = self._checkpointer.save(int(self._global_counter.numpy()))

    def _save_after(self, error: BaseException) -> None:
        """A checkpoint of what was learned before `error`, unless that is what it destroyed."""
        if not self._iterations_here:
            return
        finite = [tf.reduce_all(tf.math.is_finite(v)) for v in self._algorithm.variables if v.dtype.is_floating]
        if not tf.reduce_all(finite):
            logging.error("%s: no checkpoint was written, since some weights are not finite.", type(error).__name__)
            return
        try:
            self._save()
        except Exception as e:
            logging.error("The checkpoint after %s could not be written: %s", type(error).__name__, e)
        else:
            logging.info("Saved %s after %s.", self._saved_at, type(error).__name__)

    # ---- ending ----

    def _finish(self) -> None:
        if self._iterations_here:
            self._save()
            self._summarize()
        self._progress.stop()
        for line in self._last_lines():
            logging.info("%s", line)

    def _last_lines(self) -> list[str]:
        why = f"{self._signals.requested} received" if self._signals.requested else self._reached()
        state = self._state()
        reached = (
            f"return {state.returns[0]:.2f} ± {state.returns[1]:.2f} over the last {state.returns[2]} episodes"
            if state.returns
            else f"no episode has ended (longest open episode {state.longest_open} steps)"
        )
        root = self._root_dir
        return [
            f"Training ended: {why}; iteration {state.iteration}, {state.env_steps:,} env steps, {reached}.",
            f"Checkpoint: {self._saved_at or 'none'}",
            f"Configuration: {os.path.join(root, CONFIG_FILE)}",
            f"Logs for TensorBoard: {os.path.join(root, 'train')}; tensorboard --logdir={root}",
            f"Watch it play: python -m alf.bin.play --root_dir={root}",
        ]

    def _close(self) -> None:
        """Ends the driver and closes all environments and files, whatever state they are in."""
        if self._closed:
            return
        self._closed = True
        closers = [env.close for env in self._envs] if self._driver is None else [self._driver.stop]
        if self._evaluator is not None:
            closers.append(self._evaluator.close)
        if self._reporter is not None:
            closers.append(self._reporter.close)
        for close in closers:
            try:
                close()
            except Exception as e:
                logging.warning("While closing: %s: %s", type(e).__name__, e)
        if not self._config.use_tf_functions:
            tf.config.run_functions_eagerly(False)


def _integer(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1)[0] >> 1)


def _markdown(text: str) -> str:
    """Gin text as a Markdown code block."""
    return "\n".join(f"    {line}" for line in text.splitlines())
