"""The trainer: builds a run from its configuration, iterates, saves, and leaves nothing behind."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.drivers.arguments import closed_if_it_fails
from alf.drivers.base import Driver
from alf.environments.agents import behavior_names
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.reporter import StatsReporter
from alf.trainers import run_facts
from alf.trainers import seeds as run_seeds
from alf.trainers.behavior_targets import check_behavior
from alf.trainers.building import algorithm_ctor, build_algorithm, check_workers, idle_driver, made
from alf.trainers.checkpoint_files import CHECKPOINT_DIR as CHECKPOINT_DIR
from alf.trainers.checkpointing import MetricsState
from alf.trainers.config import TrainerConfig as TrainerConfig
from alf.trainers.configurations import Configuration
from alf.trainers.counts import Count
from alf.trainers.evaluation import Evaluation, Evaluator
from alf.trainers.improving import Improver
from alf.trainers.interrupts import StopSignals
from alf.trainers.phases import Phase
from alf.trainers.run_environments import create_evaluation_environment, create_training_environment, evaluation_rows
from alf.trainers.run_index import RATING
from alf.trainers.run_lock import RunLock
from alf.trainers.run_report import EVAL_DIR, RunReport
from alf.trainers.saving import Saver
from alf.trainers.self_play import Versions
from alf.trainers.stopping import check_targets
from alf.utils import common, files
from alf.utils.closing import close_all

# What the index calls the step of the evaluation that a signal has cut.
_CUT = "cut_evaluation"


class Trainer(Improver):
    """Runs a `TrainerConfig`: environments, algorithm, driver, iterations, checkpoints, summaries, evaluation.

    `train()` does all of it. Its parts can also be called one by one, in one thread: `heatup`, `act`, `train_and_act`,
    `evaluate`, `improve`; `close()` ends what they have begun, and so does leaving a `with` block.
    From `initialize`, which all of them call, to `close` the run holds its directory.

    Subclasses make the driver and define one iteration. Below `config.root_dir` are `train/` and `eval/` event files,
    `train/algorithm/ckpt-<global counter>` and `configured.gin`. The same root_dir goes on from the newest checkpoint.
    """

    # Whether workers can collect for it (`TrainerConfig.num_workers`).
    _takes_workers = False

    def __init__(self, config: TrainerConfig) -> None:
        """Creates the trainer; `initialize` does the work.

        Args:
          config: the settings.

        Raises:
          ValueError: no algorithm is set, or `num_workers` of a trainer that has none.
        """
        algorithm_ctor(config)
        check_workers(config, type(self).__name__, self._takes_workers)
        super().__init__(config)
        self._root_dir = files.full_path(config.root_dir, "root_dir")
        self._paths_begin = files.beginning()
        self._configuration = Configuration()
        self._lock = RunLock(self._root_dir)
        self._saver = Saver(self._root_dir, config, self._counters, self._lock)
        self._algorithm: OffPolicyAlgorithm | None = None
        self._driver: Driver | None = None
        self._self_play: Versions | None = None
        self._envs: list[BatchedEnvironment] = []
        # How to end what has been built so far, in this order.
        self._closers: list[Callable[[], None]] = []
        # The same of the present driver and its environments.
        self._stream_closers: list[Callable[[], None]] = []
        self._initialized = self._streams_over = self._trains = False
        self._rows_of_evaluations: int | None = None

    # ---- what subclasses define ----

    @abc.abstractmethod
    def _init_driver(self, envs: list[BatchedEnvironment], random_seed: int) -> Driver:
        """Makes the driver, which owns `envs` from then on."""

    def _num_environments(self) -> int:
        """How many batched environments the driver needs here."""
        return 1

    def _num_threads(self) -> int:
        """How many batched environments collect, wherever they are."""
        return self._num_environments()

    def _worker_facts(self) -> Mapping[str, Any] | None:
        """What is known of the workers that collect, as JSON values; None where none do."""
        return None

    def _describe_driver(self) -> str:
        """How the driver works, for the log."""
        return type(self.driver).__name__

    # ---- public ----

    @property
    def algorithm(self) -> OffPolicyAlgorithm:
        """The algorithm that is trained, once initialised; RuntimeError before."""
        return made(self._algorithm, "algorithm")

    @property
    def driver(self) -> Driver:
        """The driver that collects, once initialised; RuntimeError before."""
        return made(self._driver, "driver")

    @property
    def initialized(self) -> bool:
        """Whether everything has been built."""
        return self._initialized

    @property
    def reporter(self) -> StatsReporter:
        """What statistics of your own are added to, once initialised; RuntimeError before."""
        return made(self._report.reporter if self._initialized else None, "reporter")

    @property
    def global_counter(self) -> tf.Variable:
        """int64 []: iterations, or minibatches with update_counter_every_mini_batch; numbers the checkpoints."""
        return self._counters.global_counter

    def initialize(self) -> None:
        """Takes the directory, builds environments, algorithm and driver, restores the newest checkpoint; once only.

        Raises:
          RunLockedError: another live run writes to the root_dir.
          CheckpointError: the root_dir holds checkpoints of another kind of run, or damaged ones only.
          RuntimeError: it is closed, and another trainer has gone on with the run.
        """
        # Before the checkpoint is chosen, so that nobody adds one meanwhile; and again after `close`, to evaluate.
        self._lock.acquire()
        try:
            if not self._initialized:
                with files.relative_to(self._paths_begin):
                    self._build()
            elif self._ended:
                self._saver.check_alone()
        except BaseException:
            self.close()
            raise
        self._initialized = True

    def train(self) -> None:
        """Initialises, then trains until a limit of the configuration is reached or a signal asks to stop; saves and closes.

        Raises:
          RunLockedError: another live run writes to the root_dir.
          RuntimeError: it is closed, and the run has not come to its end.
          NonFiniteError: the loss or the weights became NaN or infinite; the last good checkpoint stays.
          Exception: whatever ended training early. A checkpoint is written before, where the weights are finite.
        """
        self.initialize()
        if self._ended:
            self._plan()
            if self._reached() is None:
                self._refuse_if_ended()  # before the index tells of another part of the run
        self._trains = True
        with StopSignals() as self._signals:
            try:
                cut = self._evaluation_was_cut
                if self._saver.path is None or cut or self._reached() is None:
                    self._saver.begin(self._judged_by, self._seeds.run)
                if cut:
                    self._evaluate_what_was_cut()
                self.improve()
                self.driver.stop()
                self._finish()
            except BaseException as e:
                self._close_streams()  # with that, all that was collected so far is in the metrics
                self._saver.save_after(e)
                raise
            finally:
                self.close()

    def save(self, kinds: Sequence[str] = ()) -> None:
        """Writes a checkpoint of what was learned so far, for a loop of your own: `close` writes none.

        Raises:
          Exception: weights are not finite, or it is the third failure in a row; those before are logged.
        """
        self.initialize()
        self.driver.catch_up()
        self.reporter.flush()  # so that after a kill no table lacks what the checkpoint counts
        self._saver.save(kinds, *self._reward())

    def close(self) -> None:
        """Ends the driver and closes environments and files, whatever state they are in; any number of times."""
        self._ended = self._initialized
        closers, self._closers = self._closers, []
        close_all([self._close_streams, self._evaluations.close, *closers, self._lock.release])

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._begun and not self._trains and not self._ended:
            self._saver.note(**run_facts.failure(error))
        self.close()

    # ---- building ----

    def _build(self) -> None:
        self._configuration.check(self._root_dir)
        config = self._config
        if not config.use_tf_functions:
            tf.config.run_functions_eagerly(True)
            self._closers.append(lambda: tf.config.run_functions_eagerly(False))
        seeds = self._seeds = run_seeds.spawn(config.random_seed)
        begins_at = (self._saver.expected_iteration(), 0)
        envs = self._make_environments(begins_at)
        behaviors = behavior_names(envs[0].observation_spec())
        check_targets(config.stop_conditions, config.reward_success_threshold, behaviors)
        check_behavior("TrainerConfig.best_by", config.best_by, behaviors)
        self._algorithm = build_algorithm(config, envs[0])
        self._algorithm.set_learners(config.num_learners)
        # The driver reads the version of the weights, so the checkpoint comes first.
        metrics = self._restore()
        if self._place != begins_at:
            self._close_streams()
            envs = self._make_environments(self._place)
        self._driver = self._make_driver(envs)
        self._saver.restore_replay()
        self._report = RunReport(
            self._root_dir,
            config,
            self._counters,
            self._algorithm,
            self._driver,
            seeds.run,
            lambda: f"until {self.schedule.goal() or 'a stop condition holds'}",
            self.share_done,
            envs[0].frames_per_step,
            self._worker_facts,
        )
        self._closers.append(self._report.close)
        agents = self._report.follow_agents(self._num_threads(), envs[0].batch_size)
        metrics.attach([*self._driver.get_metrics(), agents, self._report.reporter.episodes])
        self._num_rows = self._num_threads() * envs[0].batch_size
        self._train_batch_size = envs[0].batch_size
        self._algorithm.add_experience_observer(self._episodes)
        self._report.follow_goals()
        self._evaluation_seeds = seeds.evaluation
        if self.schedule.period is not None and not self._evaluations.left_to_others:
            self._evaluations.prepare(self._config.evaluate_beside)

    @property
    def _place(self) -> tuple[int, int]:
        """Where the run stands, which seeds depend on: iterations, and what an interrupted heat-up collected before any."""
        iterations = self._counters.iterations
        return iterations, 0 if iterations or self._config.exact_resume else self._saver.collected

    def _make_environments(self, place: tuple[int, int]) -> list[BatchedEnvironment]:
        """Environments for what begins at a `_place`: later ones have other seeds."""
        run_seeds.reseed_process(self._seeds.init, *place)
        envs = []
        for child in run_seeds.at_iteration(self._seeds.environments, *place).spawn(self._num_environments()):
            env = self._create_environment(random_seed=child)
            envs.append(env)
            self._stream_closers.append(env.close)
            env.before_building()
        self._envs = envs
        return envs

    def _make_driver(self, envs: list[BatchedEnvironment]) -> Driver:
        common.set_global_env(envs[0])
        if self.algorithm.acts:
            seed = run_seeds.at_iteration(self._seeds.acting, 0, self._place[1])  # a driver adds the iteration
            driver: Driver = self._init_driver(envs, run_seeds.integer(seed))
        else:
            driver = idle_driver(self._config, envs, self.algorithm)
        self._stream_closers.insert(0, driver.stop)
        self.algorithm.set_seed(run_seeds.integer(self._seeds.learning))
        if self._config.exact_resume:
            self._saver.check_exact_resume(driver.reproducible)
            run_seeds.reseed_process(self._seeds.init, self._counters.iterations)
        for env in envs:
            env.after_building()
        self._phase_changed()
        return driver

    def _phase_changed(self) -> None:
        """Tells algorithm and environments of training, which stand still, or run ahead, while others are evaluated in."""
        phase = self.phase
        if phase is Phase.TEST or self._algorithm is None:
            return
        self._algorithm.exploration_stands = phase is Phase.HEATUP
        for env in self._envs:
            env.enter_phase(phase.value)

    def _begin_new_streams(self) -> None:
        """Ends all episodes and makes environments and driver anew, as a run resumed at this iteration does."""
        previous = self.driver
        self._close_streams()
        # A seed sequence counts what it has spawned: these are fresh, as in a resumed run.
        self._seeds = run_seeds.split(self._seeds.run)
        self._driver = self._make_driver(self._make_environments(self._place))
        self._driver.adopt(previous)
        self._report.follow(self._driver)
        self._position = (None, None)
        self._streams_over = False
        self._driver.start()

    def _create_environment(self, **kwargs: Any) -> BatchedEnvironment:
        """Makes a batched environment; see `create_training_environment`."""
        return create_training_environment(**kwargs)

    def _make_evaluator(self) -> Evaluator:
        self._configuration.check(self._root_dir)
        config = self._config
        env_seed, acting_seed = run_seeds.at_iteration(self._evaluation_seeds, *self._place).spawn(2)
        env = self._create_evaluation_environment(env_seed)
        with closed_if_it_fails([env]):
            return Evaluator(
                env,
                self.algorithm,
                config.epsilon_greedy,
                run_seeds.integer(acting_seed),
                os.path.join(self._root_dir, EVAL_DIR),
                config.reward_success_threshold,
            )

    def _create_evaluation_environment(self, seed: np.random.SeedSequence) -> BatchedEnvironment:
        if self._rows_of_evaluations is None:
            # The evaluator is for as many, also where a later schedule has other evaluations.
            self._rows_of_evaluations = evaluation_rows(self.schedule.evaluation_steps, self._train_batch_size)
        with run_seeds.apart(seed):
            return create_evaluation_environment(self._rows_of_evaluations, seed, self._create_environment)

    def _refresh_evaluator(self, evaluator: Evaluator, step: int) -> None:
        # An evaluation follows from the seed and its step alone, so that it is the same after a resume.
        if self._config.exact_resume:
            env_seed, acting_seed = run_seeds.at_iteration(self._evaluation_seeds, step + 1).spawn(2)
            evaluator.restart(self._create_evaluation_environment(env_seed), run_seeds.integer(acting_seed))

    # ---- iterating ----

    def _plan(self) -> None:
        super()._plan()
        self._report.planned()

    def _begin(self) -> None:
        if self._streams_over and not self._ended:
            self._begin_new_streams()
        super()._begin()
        self._report.enter("heatup" if self.phase is Phase.HEATUP else "training")

    def _start(self) -> None:
        if self._config.exact_resume and self._saver.path is None:
            # What an interruption before the first periodic checkpoint goes back to.
            self._saver.save(("periodic",))
        if not self._trains:
            self._saver.begin(self._judged_by, self._seeds.run)
            self._closers.insert(0, self._end_loop)
        self._report.start(anew=not self._counters.iterations and not self._saver.collected)
        self.driver.start()

    def _act_once(self) -> None:
        super()._act_once()
        self._report.enter("heatup" if self.phase is Phase.HEATUP else "acting")

    def _evaluate(self, count: Count) -> None:
        self._report.enter("evaluation")
        try:
            with run_seeds.apart(self._evaluation_seeds, self._counters.global_steps + 1):
                super()._evaluate(count)
        finally:
            self._report.enter("training")

    def _record(self, result: Evaluation, beside: bool) -> bool:
        self._report.evaluated(result)
        self._saver.lacks_evaluation |= beside
        return super()._record(result, beside)

    def _after_iteration(self) -> None:
        if self._iterations_here == 1:
            logging.info("Training: %s", self._describe_driver())
        self._saver.check_loss()
        if self._self_play is not None:
            self._self_play.report(self._report.reporter)
        self._report.after_iteration()
        due, exact = self._saver.due(), self._config.exact_resume  # asked before an evaluation saves
        if due and exact:
            self.driver.stop()  # with that, all that was collected so far is in the metrics
        self._evaluate_if_due()
        # A run that goes on exactly does so from where nothing is missing.
        if (due or self._saver.due()) and not (exact and self._evaluation_cut):
            self.save(("periodic",))
            self._streams_over = exact

    def _save_evaluated(self, best: bool) -> None:
        best = best or self._saver.is_best(*self._reward())  # where saving a better one has failed
        if (best and self._rating is None) or self._config.checkpoint_at_evaluation:
            self.save()

    def _save_to_be_judged(self) -> None:
        self._saver.checkpointer.awaited = self._counters.global_steps
        self.save()

    def _judge(self, result: Evaluation) -> None:
        score, episodes = result.score(self._config.best_by)
        if episodes and self._rating is None:
            self._saver.judge(result.step, score, episodes)

    @property
    def _rating(self) -> Versions | None:
        """The self-play whose rating, which every checkpoint has, tells the best one; None where evaluations do."""
        return self._self_play if self._config.best_by is None else None

    @property
    def _judged_by(self) -> str | None:
        return self._config.best_by if self._rating is None else RATING

    @property
    def _evaluation_was_cut(self) -> bool:
        """Whether a signal has cut the evaluation of the weights that the run goes on from."""
        last, step = self._evaluations.history.last, self._counters.global_steps
        cut = self.schedule.period is not None and self._saver.checkpointer.index.run.get(_CUT) == step
        return cut and (last is None or last.step != step)

    def _evaluate_what_was_cut(self) -> None:
        self.evaluate(self.schedule.evaluation_steps)
        record = self._saver.checkpointer.index.find(str(self._counters.global_steps))
        if record is not None and not self._evaluation_cut:
            self._saver.outdate()  # it holds the evaluations too
            self.save([kind for kind in record.kinds if kind != "best"])

    # ---- saving ----

    def _restore(self) -> MetricsState:
        """Restores the checkpoint to go on from, if there is one; returns what it holds of the metrics."""
        self.algorithm.build_optimizers()
        metrics = MetricsState()
        objects: dict[str, Any] = {
            "algorithm": self.algorithm,
            "metrics": metrics,
            "counters": self._counters,
            "phases": self._counters.phases,
            "evaluations": self._evaluations.history,
        }
        settings = self._config.self_play
        if settings is not None:
            self._self_play = objects["self_play"] = Versions(settings, self.algorithm, self._seeds.run)
        self._saver.restore(self.algorithm, objects, lambda: self._reached() is not None)
        if self._self_play is not None:
            # Its hook runs before that of a driver, which publishes what it has set.
            self._self_play.begin(self._saver.given)
        return metrics

    def _reward(self) -> tuple[float, int] | tuple[()]:
        """What the present weights are judged by, and over how many episodes or matches; () where nothing tells."""
        if self._rating is not None:
            return (self._rating.elo, self._rating.matches) if self._rating.matches else ()
        last = self._evaluations.history.last
        if last is None or last.step != self._counters.global_steps:
            return ()
        score, episodes = last.score(self._config.best_by)
        return (score, episodes) if episodes else ()

    # ---- ending ----

    def _end_loop(self) -> None:
        """Tells of a loop of one's own what `train` tells of the schedule's."""
        if not self._trains:
            self._saver.end_loop()
            self._report.summarize()

    def _finish(self) -> None:
        if self._iterations_here or self._saver.outdated or self._saver.path is None:
            self._report.summarize()  # Before the last save, whose time is none of the training's.
            self._saver.save_now(("final",), *self._reward())
            self._report.record_config()
        cut = {_CUT: self._counters.global_steps} if self._evaluation_cut else {}
        reached = None if cut else self._reached()  # counts also where a signal came during the last save
        why = reached or f"{self._signals.requested} received"
        self._saver.note(status="finished" if reached else "interrupted", why=why, **cut)
        if reached and not self._iterations_here:
            logging.info("This run was finished already: %s. To extend it, raise that limit in the same command.", why)
        self._report.finish(why, self._saver.path)

    def _close_streams(self) -> None:
        closers, self._stream_closers, self._envs = self._stream_closers, [], []
        close_all(closers)
