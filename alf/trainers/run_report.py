"""What a run tells while it goes on and when it ends: display, summaries, configuration, last lines."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience
from alf.drivers.base import Driver
from alf.environments.agents import slots_of
from alf.metrics.agent_episodes import AgentEpisodes
from alf.metrics.event_files import cut_events
from alf.metrics.goal_distance import goal_distance, has_goal
from alf.metrics.histogram import Histogram
from alf.metrics.metrics import EnvironmentSteps, check_reported
from alf.metrics.reporter import StatsReporter
from alf.metrics.tables import CsvFile, Value, read_csv
from alf.metrics.user_stats import Aggregation
from alf.metrics.writers import STEP, Row, TableWriter, Writers
from alf.trainers.agent_evaluation import behavior_scalars
from alf.trainers.checkpointing import Counters
from alf.trainers.config import TrainerConfig
from alf.trainers.evaluation_result import Evaluation
from alf.trainers.hparams import used_settings
from alf.trainers.learner_facts import LearnerFacts
from alf.trainers.optimizer_settings import name_of
from alf.trainers.progress import Progress, State, behavior_rows
from alf.trainers.report import write_report
from alf.trainers.run_facts import keep_earlier
from alf.trainers.run_index import CONFIG_FILE
from alf.trainers.worker_table import write_workers
from alf.utils import gin_utils

TRAIN_DIR = "train"
EVAL_DIR = "eval"


class RunReport:
    """Reports one run of a trainer; called by it, in its thread, between iterations."""

    def __init__(
        self,
        root_dir: str,
        config: TrainerConfig,
        counters: Counters,
        algorithm: OffPolicyAlgorithm,
        driver: Driver,
        random_seed: int,
        goal: Callable[[], str] = lambda: "",
        share_done: Callable[[], float | None] = lambda: None,
        frames_per_step: int = 1,
        workers: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        """Creates the report; files appear when there is something to write.

        Args:
          root_dir: of the run.
          config: of the trainer.
          counters: of the trainer.
          algorithm: whose losses are reported.
          driver: whose metrics and statistics are reported.
          random_seed: of the run, noted in the configuration.
          goal: what ends the run, for the display; asked again when `planned` tells of other ends.
          share_done: how much of the run is done, in [0, 1]; None where that cannot be told.
          frames_per_step: of the environments; where a step takes several, the steps are told in frames too.
          workers: what is known of those that collect in other processes, see `worker_table`; None without any.

        Raises:
          ValueError: a metric of the driver is none, or has no name, or that of another.
        """
        check_reported(driver.get_metrics())
        self._root_dir = root_dir
        self._share_done = share_done
        self._frames_per_step = frames_per_step
        self._workers = workers
        self._strict = config.strict
        self._counters = counters
        self._algorithm = algorithm
        self._facts = LearnerFacts(algorithm)
        self._driver = driver
        self._random_seed = random_seed
        self._configured = False
        self._reporter = StatsReporter(
            os.path.join(root_dir, TRAIN_DIR),
            summary_interval=config.summary_interval,
            flush_secs=config.summaries_flush_secs,
            max_queue=config.summary_max_queue,
        )
        self._agents: AgentEpisodes | None = None
        self._observe(driver)
        self._phase = "training"
        self._lags: np.ndarray | None = None
        # The iteration at which a learning rate was first found to be 0, by its name; those that were told of.
        self._zero_since: dict[str, int] = {}
        self._told_of_zero: set[str] = set()
        self._told: dict[str, Any] = {}
        eval_dir = os.path.join(root_dir, EVAL_DIR)
        self._evaluation_table = os.path.join(eval_dir, "stats.csv")
        tables = [TableWriter(CsvFile(self._evaluation_table)), *self._reporter.own_writers(eval_dir)]
        self._evaluations = Writers(tables, eval_dir)
        # Evaluation may run beside training, in a thread of its own.
        self._evaluated = threading.Lock()
        self._last_evaluation: tuple[float, float, int] | None = None
        self._best: float | None = None
        self._goal = goal
        self._progress = Progress(self.state, goal())

    def _observe(self, driver: Driver) -> None:
        observers: list[Any] = driver.observers
        for observer in (self._reporter.episodes, self._agents):
            if observer is not None and observer not in observers:
                observers.append(observer)

    @property
    def reporter(self) -> StatsReporter:
        """What user code adds statistics of its own to."""
        return self._reporter

    def enter(self, phase: str) -> None:
        """Tells what the run is doing from now on: "training", "heatup" or "evaluation"; shows it when it is another."""
        before, self._phase = self._phase, phase
        self._tell_episodes()
        if phase != before:
            self._progress.refresh()
        else:
            self._progress.update()

    def planned(self) -> None:
        """Tells that the ends of the run may be others from now on."""
        self._progress.plan(self._goal())

    def follow(self, driver: Driver) -> None:
        """Reports another driver from now on, which has adopted the one before."""
        self._driver = driver
        self._observe(driver)

    def follow_goals(self) -> None:
        """Reports the distance from the goal, `Goal/distance`, where observations tell one; see `has_goal`."""
        if not has_goal(self._algorithm.transformed_time_step_spec.observation):
            return
        signal = self._reporter.register_signal("Goal/distance")

        def observe(exp: Experience) -> None:
            signal.add(goal_distance(exp.observation, exp.step_type.shape.rank))

        self._algorithm.add_experience_observer(observe)

    def follow_agents(self, num_envs: int, batch_size: int) -> AgentEpisodes | None:
        """Reports the episodes of single agents, by behavior, where the environment has any.

        Args:
          num_envs: batched environments.
          batch_size: environments in each.

        Returns:
          what keeps them, to be saved; None without agents.
        """
        slots = slots_of(self._algorithm.observation_spec)
        if slots is None:
            return None
        log = self._reporter.episodes
        counts = {name: of_one.count for name, of_one in slots.items()}
        self._agents = AgentEpisodes(counts, num_envs, batch_size, (log.agents.write,) if log is not None else ())
        self._observe(self._driver)
        return self._agents

    def start(self, anew: bool = False) -> None:
        """Begins the display, and goes on in the files of the run where it resumes.

        Args:
          anew: nothing was restored: what the files tell of a run before is gone.
        """
        step = -1 if anew else self._counters.global_steps
        self._reporter.resume(step, self._counters.seconds)
        # What was evaluated here before anything was trained stays: its files are open.
        evaluated = step if self._last_evaluation is None else max(step, 0)
        try:
            cut_events(os.path.join(self._root_dir, EVAL_DIR), evaluated)
            self._evaluations.resume(evaluated)
            self._recall_evaluations()
        except OSError as e:
            logging.warning("The statistics of evaluation cannot be written: %s", e)
        self._tell_workers()
        self._tell_episodes()
        self._progress.start()

    def _recall_evaluations(self) -> None:
        """Takes the last evaluation, and the best, from what the run wrote before it was interrupted."""
        for row in read_csv(self._evaluation_table):
            # A row may be damaged, or of an evaluation in which no episode ended.
            with contextlib.suppress(KeyError, ValueError):
                mean, std = float(row["Metrics/AverageReturn"]), float(row["Metrics/AverageReturn_std"])
                self._last_evaluation = (mean, std, int(row["episodes"]))
                if row.get("complete") == "0":
                    continue
                self._best = mean if self._best is None else max(mean, self._best)

    def after_iteration(self) -> None:
        """Shows and writes what is due.

        Raises:
          GinConfigError: in strict mode, after the first iteration: bindings were not used.
        """
        self._phase = "training"
        due = self._reporter.due(self._counters.iterations)
        if due and self.record_config():
            self._check_bindings()
        self._tell_losses()
        self._tell_episodes()
        if due:
            self.summarize()
        self._progress.update()

    def summarize(self) -> None:
        """Writes a summary now."""
        self._add_learning_rates()
        self._add_frames()
        for tag, value in self._facts.scalars().items():
            self._reporter.add(tag, value, Aggregation.MOST_RECENT)
        self._reporter.write(
            self._counters.iterations,
            self._counters.global_steps,
            self._driver.get_metrics(),
            {name: value.numpy() for name, value in self._algorithm.last_train_metrics.items()},
            self._driver.stats(),
            self._counters.env_steps,
            timings=self._driver.timings(),
            histograms=self._new_lags(),
            agents=self._agents,
        )
        self._tell_workers()

    def _tell_workers(self) -> None:
        """Writes what is known of the workers; takes away what an earlier part of the run, which had some, has written."""
        try:
            write_workers(self._root_dir, self._workers())
        except OSError as e:
            logging.log_every_n_seconds(logging.WARNING, "The state of the workers cannot be written: %s", 60, e)

    def _new_lags(self) -> dict[str, Histogram]:
        """The lags of the acting steps since the last summary."""
        lags = self._driver.lag_histogram()
        if lags is None:
            return {}
        now = lags.copy()
        new, self._lags = now - (0 if self._lags is None else self._lags), now
        return {"staleness/lag": Histogram.of_counts(new)} if new.any() else {}

    def _add_learning_rates(self) -> None:
        """One for each optimiser: of its name where there are several."""
        optimizers = [optimizer for optimizer, _ in self._algorithm.optimized_variables()]
        for i, optimizer in enumerate(optimizers):
            name = "Train/learning_rate" if len(optimizers) == 1 else f"Train/learning_rate/{i}_{name_of(optimizer)}"
            rate = learning_rate(optimizer)
            self._reporter.add(name, rate, Aggregation.MOST_RECENT)
            begun = self._zero_since.setdefault(name, self._counters.iterations) if rate == 0.0 else None
            if begun is None:
                self._zero_since.pop(name, None)
            elif self._counters.iterations > begun and name not in self._told_of_zero:
                self._told_of_zero.add(name)
                logging.warning(
                    "%s has been 0 since the last summary: nothing more is learned with it. Where it falls over the run, "
                    "as PolynomialDecay does, its decay_steps go with the length of the run.",
                    name,
                )

    def _add_frames(self) -> None:
        """The environment steps in frames, for games of which a step takes several."""
        per_step = self._frames_per_step
        if per_step > 1:
            steps = next(m for m in self._driver.get_metrics() if isinstance(m, EnvironmentSteps))
            self._reporter.add("Metrics/EnvironmentFrames", per_step * int(steps.result()), Aggregation.MOST_RECENT)

    def _replay(self) -> dict[str, int]:
        """How many steps and ends of episodes a single agent has to learn from; empty where nothing is kept."""
        memory = self._algorithm.memories().get(None)
        if memory is None:
            return {}
        return {"replay_transitions": memory.total_steps, "replay_episodes": memory.num_episodes}

    def _tell_losses(self) -> None:
        """Tells the signals what was learned since they were told last: a behavior that waits has nothing new."""
        if self._reporter.episodes is None:
            return
        metrics = self._algorithm.last_train_metrics
        for name, value in metrics.items():
            if value is not self._told.get(name):
                self._reporter.register_signal(f"Train/{name}").add(float(value))
        self._told = metrics

    def _tell_episodes(self) -> None:
        """Tells the episode log where the run stands."""
        log = self._reporter.episodes
        if log is None:
            return
        log.at(
            global_step=self._counters.global_steps,
            iteration=self._counters.iterations,
            env_steps=self._counters.env_steps,
            seconds=self._reporter.seconds,
            in_heatup=int(self._phase == "heatup"),
            evaluation_return=float("nan") if self._last_evaluation is None else self._last_evaluation[0],
            **self._replay(),
        )

    def evaluated(self, result: Evaluation) -> None:
        """Takes in an evaluation: a row of `eval/stats.csv` and of users' own writers, and a line of the display; thread-safe."""
        with self._evaluated:
            if result.episodes:
                self._last_evaluation = (result.average_return, result.std_return, result.episodes)
            if result.episodes and result.complete:
                self._best = max(result.average_return, -float("inf") if self._best is None else self._best)
            counters = self._counters
            axes: dict[str, Value] = {
                STEP: result.step,
                # When the weights that played were reached, as far as the mean number of steps between two updates tells.
                "env_steps": round(counters.env_steps * result.step / max(1, counters.global_steps)),
                # Before acting begins, the reporter does not know of the parts before a resume.
                "seconds": max(self._reporter.seconds, self._counters.seconds),
                "wall_time": time.time(),
                "episodes": result.episodes,
                "complete": int(result.complete),
            }
            row: dict[str, Value] = {}
            if result.episodes:
                row["Metrics/AverageReturn"] = result.average_return
                row["Metrics/AverageReturn_std"] = result.std_return
                row["Metrics/AverageEpisodeLength"] = result.average_length
                if not math.isnan(result.success_rate):
                    row["Metrics/SuccessRate"] = result.success_rate
            if result.average_shaped_return is not None:
                row["Metrics/AverageShapedReturn"] = result.average_shaped_return
            row |= behavior_scalars(result.behaviors)
            self._evaluations.write(Row(axes, row))
            self._evaluations.flush()

    def state(self) -> State:
        """Where the run stands."""
        episodes, _, average_return, average_length = self._driver.get_metrics()[:4]
        returns = None
        if average_return.num_episodes():
            returns = (float(average_return.result()), average_return.std(), average_return.num_episodes())
        return State(
            self._counters.iterations,
            self._counters.env_steps,
            int(episodes.result()),
            returns,
            int(average_length.longest_open()),
            self._driver.stats(),
            self._driver.timings(),
            self._phase,
            self._share_done(),
            self._last_evaluation,
            self._best,
            {} if self._agents is None else self._agents.returns(),
        )

    def finish(self, why: str, checkpoint: str | None) -> None:
        """Ends the display and says what came of the run and where it is.

        Args:
          why: what ended it.
          checkpoint: path of the last checkpoint.
        """
        self._progress.stop()
        state, root = self.state(), self._root_dir
        ended = f"{why}; {_reached(state)}"
        quoted = shlex.quote(root)
        for line in (
            f"Training ended: {ended}.",
            *self._write_report(ended),
            f"Checkpoint: {checkpoint or 'none'}",
            f"Configuration: {os.path.join(root, CONFIG_FILE)}",
            f"Logs for TensorBoard: {os.path.join(root, TRAIN_DIR)}; see them with: tensorboard --logdir={quoted}",
            f"Watch it play: python -m alf.bin.play --root_dir={quoted}",
        ):
            logging.info("%s", line)

    def _write_report(self, ended: str) -> list[str]:
        """Writes it, unless nothing was trained; returns the lines that tell of it."""
        if not self._configured:
            return []
        self._reporter.flush()
        facts = [("Ended", ended), ("Seed", str(self._random_seed))]
        try:
            return [f"Report: {write_report(self._root_dir, facts=facts)}"]
        except (OSError, ValueError) as e:
            logging.warning("The report could not be written: %s", e)
            return []

    def close(self) -> None:
        """Ends the display and closes files; may be called any number of times."""
        self._progress.stop()
        self._reporter.close()
        self._evaluations.close()

    def record_config(self) -> bool:
        """Writes what the run has used of the configuration so far, once, on a disk that is not full; returns whether it did."""
        if self._configured:
            return False
        path = os.path.join(self._root_dir, CONFIG_FILE)
        keep_earlier(path, os.path.join(self._root_dir, TRAIN_DIR))
        gin_utils.tell_drawn(TrainerConfig, "random_seed", self._random_seed)
        try:
            # What workers use only as they step their environments is not known here.
            seed, has_workers = f"Seed of the run: {self._random_seed}", self._workers() is not None
            text = gin_utils.write_operative_config(path, [seed], has_workers)
        except OSError as e:
            logging.log_every_n_seconds(logging.WARNING, "The configuration cannot be written: %s", 60, e)
            return False
        self._configured = True
        block = "\n".join(f"    {line}" for line in text.splitlines())
        self._reporter.text("gin/operative_config", block, self._counters.global_steps)
        self._reporter.hparams(used_settings(), self._root_dir, self._counters.global_steps)
        return True

    def _check_bindings(self) -> None:
        unused = gin_utils.unused_bindings()
        if not unused:
            return
        message = f"Bindings that nothing has used: {', '.join(unused)}."
        if self._strict:
            raise gin_utils.GinConfigError(message + " Remove them, or run without strict.")
        logging.warning("%s", message)


def learning_rate(optimizer: object) -> float:
    """The rate of an optimiser's next step, schedules taken into account."""
    rate = getattr(optimizer, "learning_rate", float("nan"))
    return float(rate(optimizer.iterations) if callable(rate) else rate)  # type: ignore[attr-defined]


def _reached(state: State) -> str:
    """What came of a run, in a line."""
    reached = [f"iteration {state.iteration}", f"{state.env_steps:,} env steps"]
    if state.returns:
        mean, std, episodes = state.returns
        reached.append(f"return {mean:.2f} ± {std:.2f} over the last {episodes} episodes")
    elif state.env_steps:
        reached.append(f"0 episodes have ended, longest open episode {state.longest_open} steps")
    reached += [f"{name} {value}" for name, value in behavior_rows(state)]
    if state.evaluation is not None:
        mean, std, episodes = state.evaluation
        reached.append(f"evaluated at {mean:.2f} ± {std:.2f} over {episodes} episodes")
    return ", ".join(reached)
