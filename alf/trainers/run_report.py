"""What a run tells while it goes on and when it ends: display, summaries, configuration, last lines."""

from __future__ import annotations

import os

from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.drivers.base import Driver
from alf.metrics.reporter import StatsReporter
from alf.trainers.checkpointing import Counters
from alf.trainers.config import TrainerConfig
from alf.trainers.progress import Progress, State
from alf.utils import gin_utils

CONFIG_FILE = "configured.gin"
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
    ) -> None:
        """Creates the report; files appear when there is something to write.

        Args:
          root_dir: of the run.
          config: of the trainer.
          counters: of the trainer.
          algorithm: whose losses are reported.
          driver: whose metrics and statistics are reported.
          random_seed: of the run, noted in the configuration.
        """
        self._root_dir = root_dir
        self._strict = config.strict
        self._counters = counters
        self._algorithm = algorithm
        self._driver = driver
        self._random_seed = random_seed
        self._configured = False
        self._reporter = StatsReporter(os.path.join(root_dir, TRAIN_DIR), summary_interval=config.summary_interval)
        self._progress = Progress(self.state, _goal(config))

    def start(self) -> None:
        """Begins the display."""
        self._progress.start()

    def after_iteration(self) -> None:
        """Shows and writes what is due.

        Raises:
          GinConfigError: in strict mode, after the first iteration: bindings were not used.
        """
        if self.record_config():
            self._check_bindings()
        if self._reporter.due(self._counters.iterations):
            self.summarize()
        self._progress.update()

    def summarize(self) -> None:
        """Writes a summary now."""
        self._reporter.write(
            self._counters.iterations,
            self._counters.global_steps,
            self._driver.get_metrics(),
            {name: value.numpy() for name, value in self._algorithm.last_train_metrics.items()},
            self._driver.stats(),
            self._counters.env_steps,
        )

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
        )

    def finish(self, why: str, checkpoint: str | None) -> None:
        """Ends the display and says what came of the run and where it is.

        Args:
          why: what ended it.
          checkpoint: path of the last checkpoint.
        """
        self._progress.stop()
        state, root = self.state(), self._root_dir
        if state.returns:
            mean, std, episodes = state.returns
            reached = f"return {mean:.2f} ± {std:.2f} over the last {episodes} episodes"
        else:
            reached = f"0 episodes have ended, longest open episode {state.longest_open} steps"
        for line in (
            f"Training ended: {why}; iteration {state.iteration}, {state.env_steps:,} env steps, {reached}.",
            f"Checkpoint: {checkpoint or 'none'}",
            f"Configuration: {os.path.join(root, CONFIG_FILE)}",
            f"Logs for TensorBoard: {os.path.join(root, TRAIN_DIR)}; see them with: tensorboard --logdir={root}",
            f"Watch it play: python -m alf.bin.play --root_dir={root}",
        ):
            logging.info("%s", line)

    def close(self) -> None:
        """Ends the display and closes files; may be called any number of times."""
        self._progress.stop()
        self._reporter.close()

    def record_config(self) -> bool:
        """Writes what the run has used of the configuration so far, once; returns whether it did."""
        if self._configured:
            return False
        self._configured = True
        path = os.path.join(self._root_dir, CONFIG_FILE)
        text = gin_utils.write_operative_config(path, [f"Seed of the run: {self._random_seed}"])
        block = "\n".join(f"    {line}" for line in text.splitlines())
        self._reporter.text("gin/operative_config", block, self._counters.global_steps)
        return True

    def _check_bindings(self) -> None:
        unused = gin_utils.unused_bindings()
        if not unused:
            return
        message = f"Bindings that nothing has used: {', '.join(unused)}."
        if self._strict:
            raise gin_utils.GinConfigError(message + " Remove them, or run without strict.")
        logging.warning("%s", message)


def _goal(config: TrainerConfig) -> str:
    limits = [(config.num_iterations, "iterations"), (config.num_env_steps, "env steps")]
    return "until " + " or ".join(f"{n:,} {what}" for n, what in limits if n)
