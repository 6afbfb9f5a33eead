"""What a run goes on from, when it saves, what it does when that fails, and what it must not save."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

from alf.algorithms.behaviors import Behaviors
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.stored_steps import fill_memory
from alf.replay.replay_files import ReplayFilesError, load_replay, save_replay
from alf.trainers import run_facts
from alf.trainers.checkpoint_files import CHECKPOINT_DIR, REPLAY_DIR
from alf.trainers.checkpointing import Checkpointer
from alf.trainers.counters import Counters
from alf.trainers.initializing import load_weights
from alf.trainers.models import model_exporter
from alf.trainers.optimizer_settings import OptimizerSettings
from alf.trainers.phases import Phase
from alf.trainers.run_index import RunIndex
from alf.trainers.run_lock import RunLock, RunLockedError
from alf.utils.files import folder_name

if TYPE_CHECKING:
    from alf.trainers.config import TrainerConfig

# After this many failures in a row to write a checkpoint, training ends.
MAX_FAILURES = 3

# Without `checkpoint_save_secs`.
_SAVE_SECS = 600.0


class NonFiniteError(ArithmeticError):
    """The loss or the weights are NaN or infinite: what was learned is lost since the last checkpoint."""


class Saver:
    """The checkpoints of a run, for its trainer; it bears with a disk that fails now and then.

    Attributes:
      checkpointer: writes and reads, after `restore`.
      path: the newest checkpoint, without suffix; None while there is none.
      memory_lost: a replay memory that there was at the restored checkpoint is not there any more.
      given: the behaviors that `initialize_from` names, where a new run has begun with it.
      lacks_evaluation: an evaluation beside training has ended since the newest checkpoint.
    """

    checkpointer: Checkpointer
    path: str | None
    memory_lost = False
    given: Collection[str] = ()
    lacks_evaluation = False

    def __init__(self, root_dir: str, config: TrainerConfig, counters: Counters, lock: RunLock) -> None:
        """Creates the saver of a run; `restore` comes next.

        Args:
          root_dir: of the run.
          config: has the triggers, and what to keep.
          counters: of the run.
          lock: of the directory: once another run has it, nothing more is written there.
        """
        self._root_dir = root_dir
        self._lock = lock
        self._config = config
        self._counters = counters
        self._failures = 0

    def expected_iteration(self) -> int:
        """The iteration that the run will go on from, as far as its index tells; 0 for a new one."""
        records = RunIndex.load(self._root_dir).records()
        if self._config.exact_resume:
            records = [r for r in records if "periodic" in r.kinds] or records
        return records[-1].iterations if records else 0

    def restore(self, algorithm: OffPolicyAlgorithm, objects: dict[str, Any], is_finished: Callable[[], bool]) -> None:
        """Restores what the run goes on from; a new one may begin with the weights of another.

        Args:
          algorithm: whose variables exist.
          objects: of the checkpoints, by name.
          is_finished: asked after a restore, whether the run has come to its end.

        Raises:
          CheckpointError: there are checkpoints, and none can be used.
        """
        config, counters = self._config, self._counters
        self._algorithm = algorithm
        self.checkpointer = Checkpointer(
            os.path.join(self._root_dir, CHECKPOINT_DIR),
            objects,
            config.checkpoint_max_to_keep,
            milestones=config.checkpoint_milestones,
            keep_periodic=config.exact_resume,
            exporter=model_exporter(config, algorithm, counters),
            replay_saver=self._save_replay if config.checkpoint_replay else None,
            replays_to_keep=config.checkpoint_replay_max_to_keep,
        )
        if not algorithm.trainable_variables:
            logging.warning(
                "%s has no weights to train: the checkpoints of this run hold counters and metrics only.",
                type(algorithm).__name__,
            )
        settings = OptimizerSettings(algorithm)
        path = None if self._begins_anew() else self.checkpointer.restore()
        if path is not None and config.exact_resume and not is_finished():
            path = self.checkpointer.restore("periodic") or path
        if path is not None:
            settings.put_back()
            logging.info("Resumed from %s: iteration %d, %d env steps.", path, counters.iterations, counters.env_steps)
            run_facts.warn_of_other_versions(self.checkpointer.index.run)
            if config.exact_resume:
                run_facts.warn_of_another_seed(self.checkpointer.index.run, config.random_seed)
        elif config.initialize_from:
            self.given = {o.target for o in load_weights(algorithm, config.initialize_from) if o.target is not None}
        if path is not None or config.initialize_from:
            algorithm.after_restore()
        if path is not None:
            self.checkpointer.complete()
        self.path = path
        self._began_at = counters.iterations
        self._saved_iterations = counters.iterations
        self._saved_steps, self._saved_collected = counters.env_steps, self.collected
        self._saved_secs = time.monotonic()

    def check_alone(self) -> None:
        """Raises RuntimeError where the run has other checkpoints than this object knows: its own would replace them."""
        known, found = (
            [r.name for r in index.records()] for index in (self.checkpointer.index, RunIndex.load(self._root_dir))
        )
        if found != known:
            raise RuntimeError(
                f"Since this trainer was closed another one has gone on with {self._root_dir}, whose newest checkpoint is "
                f"{found[-1] if found else None}: make a new trainer of the same configuration, which goes on from there."
            )

    def restore_replay(self) -> None:
        """Fills the replay memory as it was at the restored checkpoint, where it was saved, else with a dataset if there is one.

        Raises:
          DatasetError: the dataset cannot be read, or is of other observations or actions.
          ValueError: there is no memory for it, or it is too small.
        """
        self._load_replay()
        path, memories = self._config.load_memory_from_file_path, self._algorithm.memories()
        if path is None or any(memory.total_steps for memory in memories.values()):
            return
        if any(behavior is not None for behavior in memories):
            raise ValueError(
                f"TrainerConfig.load_memory_from_file_path={path!r} is for a single agent, and each behavior has a memory of "
                "its own: call alf.algorithms.stored_steps.fill_memory for the algorithm of one."
            )
        logging.info("The replay memory holds %d steps of %s.", fill_memory(self._algorithm, path), path)

    def _load_replay(self) -> None:
        memories = self._algorithm.memories()
        if self.path is None or not memories:
            return
        directory = os.path.join(self._root_dir, REPLAY_DIR, os.path.basename(self.path))
        if not self._config.checkpoint_replay or not os.path.isdir(directory):
            self.memory_lost = True
            tell = logging.error if self._config.exact_resume else logging.info
            how = "collects before it learns" if self._config.unroll_length else "begins with its dataset again"
            tell("The checkpoint has no replay memory: the run %s.", how)
            return
        for behavior, replayer in memories.items():
            place = directory if behavior is None else os.path.join(directory, folder_name(behavior))
            whose = "The run" if behavior is None else f"The behavior {behavior!r}"
            try:
                steps = load_replay(replayer, place)
            except ReplayFilesError as e:
                self.memory_lost = True
                logging.error("%s goes on with an empty replay memory and collects before it learns: %s", whose, e)
            else:
                logging.info("The replay memory holds %d steps of %s.", steps, place)

    def _save_replay(self, directory: str) -> None:
        begin, size = time.monotonic(), 0
        memories = self._algorithm.memories()
        for behavior, replayer in memories.items():
            size += save_replay(
                replayer, directory if behavior is None else os.path.join(directory, folder_name(behavior))
            )
        if memories:
            logging.log_every_n_seconds(
                logging.INFO, "Saving %.1f MB of replay memory took %.1f s.", 60, size / 1e6, time.monotonic() - begin
            )

    def check_exact_resume(self, collecting_is_reproducible: bool) -> None:
        """Raises ValueError when a resumed run could not be the same."""
        if not collecting_is_reproducible:
            raise ValueError(
                "TrainerConfig.exact_resume needs collecting that follows from the seed: set "
                "AsyncOffPolicyDriver.mode = 'lockstep' or 'sync', or use @sync_off_policy_trainer."
            )
        if not self._algorithm.reproducible:
            raise ValueError(
                "TrainerConfig.exact_resume needs an algorithm whose random numbers can be gone on with, which an agent of "
                "TF-Agents (TFAgentsAlgorithm) is not: set it to False, or use an algorithm of alf."
            )
        for name in self._algorithm.memories():
            if name is not None and not self._config.checkpoint_replay:
                raise ValueError(
                    f"TrainerConfig.exact_resume needs checkpoint_replay=True: the behavior {name!r} learns from a replay "
                    "memory, with which a resumed run goes on."
                )

    def _begins_anew(self) -> bool:
        """Whether only a new beginning is exact: no checkpoint holds what was collected before the first iteration."""
        records = self.checkpointer.index.records()
        anew = self._config.exact_resume and bool(records) and not records[-1].iterations
        if anew:
            logging.info("The run was interrupted before its first iteration: with exact_resume it begins anew.")
        return anew

    @property
    def outdated(self) -> bool:
        """Whether the run has done or collected more than the newest checkpoint tells, maybe at the same step.

        Collecting before the first iteration makes no step, nor, with `update_counter_every_mini_batch`, an iteration that
        has nothing to learn from.
        """
        counters = self._counters
        gained = counters.iterations != self._saved_iterations
        return gained or self.lacks_evaluation or (not counters.iterations and self.collected != self._saved_collected)

    def _goes_on_from_it(self, kinds: Sequence[str]) -> bool:
        """Whether this step has a periodic checkpoint, which with `exact_resume` no other kind may replace."""
        record = self.checkpointer.index.find(str(self._counters.global_steps))
        exact = self._config.exact_resume and "periodic" not in kinds and bool(self._counters.iterations)
        return exact and record is not None and "periodic" in record.kinds

    @property
    def collected(self) -> int:
        """Steps that the learner got so far, the heat-up's included."""
        return self._counters.env_steps + int(self._counters[Phase.HEATUP].environment_steps.numpy())

    def due(self) -> bool:
        """Whether the iteration that has just ended is one to save after."""
        config, counters = self._config, self._counters
        if config.checkpoint_interval and counters.iterations % config.checkpoint_interval == 0:
            return True
        every = config.checkpoint_env_steps
        if every and counters.env_steps // every > self._saved_steps // every:
            return True
        secs = config.checkpoint_save_secs
        if secs is None:
            secs = 0.0 if config.exact_resume else _SAVE_SECS
        return bool(secs) and time.monotonic() - self._saved_secs >= secs

    def save(self, kinds: Sequence[str] = ("periodic",), reward: float | None = None, reward_episodes: int = 0) -> None:
        """Writes a checkpoint of this moment; a failure is logged, the third in a row is raised.

        Args:
          kinds: why it is written.
          reward: mean return of an evaluation of these weights, if there was one.
          reward_episodes: its episodes.

        Raises:
          NonFiniteError: some weights are not finite.
          RunLockedError: the directory is another run's by now.
          Exception: the third failure in a row.
        """
        try:
            self.save_now(kinds, reward, reward_episodes)
        except (NonFiniteError, RunLockedError):
            raise
        except Exception as e:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                e.add_note(f"It is the failure number {self._failures} in a row.")
                raise
            logging.error(
                "%s Training goes on; failure number %d in a row ends it, and this is number %d.",
                " ".join(e.__notes__),
                MAX_FAILURES,
                self._failures,
            )

    def save_now(
        self, kinds: Sequence[str] = ("periodic",), reward: float | None = None, reward_episodes: int = 0
    ) -> None:
        """Writes a checkpoint of this moment; arguments as in `save`, every failure is raised, with a note on what is lost."""
        self._saved_steps, self._saved_secs = self._counters.env_steps, time.monotonic()
        self._lock.check()
        try:
            self.check_weights()
            if self.outdated and not self._goes_on_from_it(kinds):
                self.checkpointer.outdate()
            record = self.checkpointer.save(
                self._counters.global_steps, reward=reward, reward_episodes=reward_episodes, kinds=kinds
            )
        except NonFiniteError:
            raise
        except Exception as e:
            reason = (str(e).splitlines() or [""])[0]
            e.add_note(
                f"The checkpoint after iteration {self._counters.iterations} could not be written "
                f"({type(e).__name__}: {reason}); the last one is {self.path or 'none'}."
            )
            raise
        self._failures, self._saved_collected, self._saved_iterations = 0, self.collected, self._counters.iterations
        self.lacks_evaluation = False
        self.path = os.path.join(self.checkpointer.directory, record.name)
        logging.log_every_n_seconds(
            logging.INFO, "Saved %s (%s).", 10, self.path, ", ".join(record.kinds) or "evaluated"
        )

    def save_after(self, error: BaseException) -> None:
        """Saves what was learned or collected before `error`, unless that is what it destroyed, and notes it in the index."""
        kind = type(error).__name__
        gained = self._counters.iterations > self._began_at or self.outdated
        if gained and not isinstance(error, NonFiniteError):
            try:
                self.save_now(("final",))
            except Exception as e:
                logging.error("After %s no checkpoint could be written: %s", kind, e)
            else:
                logging.info("Wrote %s after %s.", self.path, kind)
        self.note(**run_facts.failure(error))

    def judge(self, step: int, reward: float, reward_episodes: int) -> None:
        """Gives the checkpoint of a step what its weights were found to be worth; a failure is logged.

        Args:
          step: number of the checkpoint.
          reward: mean return of an evaluation.
          reward_episodes: how many episodes that mean is over.
        """
        try:
            self._lock.check()
            self.checkpointer.judge(step, reward, reward_episodes)
        except (OSError, RunLockedError) as e:
            logging.error("The run index could not be written: %s", e)

    def judge_by(self, what: str | None) -> None:
        """Names what judges the checkpoints from now on; rewards that something else gave them are forgotten.

        Args:
          what: `RATING`, the name of a behavior, or None for the return of the environment as a whole.
        """
        index = self.checkpointer.index
        before = index.run.get("judged_by", what)
        if before != what and any(record.reward is not None for record in index.records()):
            names = ["the return as a whole" if name is None else repr(name) for name in (before, what)]
            logging.warning("Checkpoints were judged by %s, and are by %s now: the best so far is forgotten.", *names)
            index.forget_rewards()
        index.run["judged_by"] = what

    def is_best(self, reward: float | None = None, reward_episodes: int = 0) -> bool:
        """Whether the present weights are better than those of every checkpoint; arguments as in `save`."""
        if reward is None or not reward_episodes:
            return False
        best = self.checkpointer.index.best()
        return best is None or best.reward is None or reward > best.reward

    def begin(self, judged_by: str | None, random_seed: int) -> None:
        """Notes that the run goes on from now.

        Args:
          judged_by: see `judge_by`.
          random_seed: of which its random numbers are derived.
        """
        self.judge_by(judged_by)
        self.note(**run_facts.facts(random_seed))

    def end_loop(self) -> None:
        """Notes that a loop of one's own has closed the trainer, unless an error ended it."""
        if self.checkpointer.index.run.get("status") == "running":
            self.note(status="finished", why="the program that trains it has closed it")

    def note(self, **facts: Any) -> None:
        """Writes facts about the run into its index; a failure is logged."""
        index = self.checkpointer.index
        index.run.update(facts)
        try:
            self._lock.check()
            index.save()
        except (OSError, RunLockedError) as e:
            logging.error("The run index could not be written: %s", e)

    def outdate(self) -> None:
        """Has the checkpoint of this step written anew.

        Raises:
          RunLockedError: the directory is another run's by now.
        """
        self._lock.check()
        self.checkpointer.outdate()

    def check_loss(self) -> None:
        """Raises NonFiniteError when the loss of the last iteration is not finite, ValueError for what is no priority."""
        for whose, one in self._learners():
            loss = one.last_train_metrics.get("loss")
            if loss is not None and not math.isfinite(float(loss)):
                raise NonFiniteError(self._complaint(f"the loss{whose} is {float(loss)}"))
        for memory in self._algorithm.memories().values():
            memory.check_learned()

    def check_error(self, error: tf.errors.OpError) -> None:
        """Raises NonFiniteError when an update has failed with TF-Agents' `error` for a loss that is not finite."""
        found = re.search(r"\w* ?loss is inf or nan", error.message, re.IGNORECASE)
        if found:
            # The iteration is not counted before it has ended.
            raise NonFiniteError(self._complaint(found[0], self._counters.iterations + 1)) from error

    def check_weights(self) -> None:
        """Raises NonFiniteError when a weight is not finite."""
        for whose, one in self._learners():
            for variable in one.variables:
                if variable.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(variable))):
                    raise NonFiniteError(self._complaint(f"{variable.name}{whose} is not finite"))

    def _learners(self) -> Iterator[tuple[str, OffPolicyAlgorithm]]:
        """The algorithm, or that of each behavior, with words that tell of which it is."""
        if not isinstance(self._algorithm, Behaviors):
            yield "", self._algorithm
            return
        for name, one in self._algorithm.by_name.items():
            yield f" of the behavior {name!r}", one

    def _complaint(self, what: str, iteration: int | None = None) -> str:
        iteration = self._counters.iterations if iteration is None else iteration
        return (
            f"Iteration {iteration}: {what}. The last good checkpoint is {self.path or 'none'}. Lower the "
            "learning rate, clip gradients (gradient_clipping), or look for huge rewards and observations."
        )
