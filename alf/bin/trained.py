"""The policy of a run and an environment to play it in; nothing here writes into the run's directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from absl import logging

from alf.bin import command_line
from alf.bin.command_line import UsageError
from alf.bin.run_view import state_of
from alf.utils.files import absolute

_T = TypeVar("_T")
# States of a run that somebody must resume before it saves again.
_STOPPED = {"failed": "has failed", "interrupted": "was interrupted", "killed": "was killed"}
# What names a checkpoint of the run, whatever lies in the working directory.
_NAMED = re.compile(r"latest|periodic|best|final|(ckpt-)?[0-9]+")


class Restored(NamedTuple):
    """A checkpoint whose weights are in place: its path without suffix, its name, and the number in that.

    `created` is when it was written, an ISO 8601 time; None for one of another directory.
    """

    path: str
    name: str
    step: int
    created: str | None = None


def make_environment(seed: int | None, pictures: bool = False, batch_size: int = 1) -> Any:
    """The run's environment, by gin.

    Args:
      seed: of its rows; None draws one.
      pictures: make `render` work without a display.
      batch_size: B.

    Raises:
      UsageError: it cannot be made.
    """
    from alf.bin.video import render_without_display
    from alf.environments import suite_agents, suite_atari, suite_gym
    from alf.environments.utils import create_environment
    from alf.utils.gin_utils import bind

    arguments: dict[str, Any] = {"num_parallel_environments": batch_size, "nonparallel": batch_size == 1, "seed": seed}
    if pictures:
        render_without_display()
        for load in (suite_gym.load, suite_atari.load, suite_agents.load):
            bind(load, "render_mode", "rgb_array")
        arguments["vectorization"] = "auto"
    try:
        with command_line.told_as_usage():
            env = create_environment(**arguments)
    except UsageError as e:
        if not pictures:
            raise
        raise UsageError(f"--record_file: the environment cannot be made with pictures. {e}") from e
    env.enter_phase("test")
    return env


def make_algorithm(root_dir: str, env: Any) -> Any:
    """The run's algorithm, by gin, with new weights.

    Raises:
      UsageError: it cannot be built.
    """
    from alf.trainers.building import build_algorithm
    from alf.trainers.config import TrainerConfig

    with command_line.told_as_usage():
        return build_algorithm(TrainerConfig(root_dir=root_dir), env)


def make_algorithm_alone(root_dir: str, seed: int = 0) -> Any:
    """As `make_algorithm`, by the specs of an environment that is closed again.

    Args:
      root_dir: of the run.
      seed: of the environment.

    Raises:
      UsageError: one of them cannot be made.
    """
    env = make_environment(seed)
    try:
        return make_algorithm(root_dir, env)
    finally:
        env.close()


def restore(root_dir: str, algorithm: Any, which: str = "latest") -> Restored:
    """Fills the algorithm from a checkpoint.

    Args:
      root_dir: of the run.
      algorithm: as trained.
      which: "latest", "best", "final", a number of steps, "ckpt-<number>", the path of a checkpoint, or a directory
        with checkpoints, of which it is the newest.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the algorithm.
      UsageError: there is no checkpoint at all.
    """
    from alf.trainers.checkpointing import Checkpointer
    from alf.trainers.run_index import CHECKPOINT_DIR

    if os.path.isdir(absolute(which)) and not _NAMED.fullmatch(which):
        which = os.path.join(absolute(which), "")  # a path, not a name
    checkpointer = Checkpointer(os.path.join(root_dir, CHECKPOINT_DIR), {"algorithm": algorithm}, acts_only=True)
    path = checkpointer.restore(which)
    if path is None:
        what = "periodic checkpoint" if which == "periodic" else "checkpoint"
        place = checkpointer.directory if which in ("latest", "periodic") else which
        raise UsageError(f"There is no {what} in {place}: train first, with the same --root_dir.")
    algorithm.after_restore()
    directory, name = os.path.split(path)
    own = os.path.abspath(directory) == os.path.abspath(checkpointer.directory)
    record = checkpointer.index.find(name) if own else None
    return Restored(path, name, int(name.rpartition("-")[2]), None if record is None else record.created)


def restore_listed(root_dir: str, algorithm: Any, name: str) -> Restored | None:
    """As `restore`, of a checkpoint that the index lists; None, with a warning, where it is damaged, or gone meanwhile.

    Raises:
      CheckpointError: it does not fit the algorithm.
    """
    from alf.trainers.checkpointing import CheckpointError, damage_of
    from alf.trainers.run_index import CHECKPOINT_DIR, RunIndex

    try:
        return restore(root_dir, algorithm, name)
    except CheckpointError as e:
        if RunIndex.load(root_dir).find(name) and damage_of(os.path.join(root_dir, CHECKPOINT_DIR, name)) is None:
            raise
        logging.warning("%s is left out: %s", name, e)
        return None


def replace_behaviors(algorithm: Any, given: Sequence[str]) -> None:
    """Has behaviors act by the weights of other checkpoints.

    Args:
      algorithm: as `restore` has filled it.
      given: for each `TARGET=[BEHAVIOR@]SOURCE`, as `initialize_from` takes it.

    Raises:
      CheckpointError: there is no such checkpoint, or nothing in it fits.
      UsageError: the run has a single agent, or no such behavior.
    """
    from alf.algorithms.behaviors import Behaviors
    from alf.trainers.initializing import load_weights

    for text in given:
        if not isinstance(algorithm, Behaviors):
            raise UsageError(f"--behavior_from={text}: this run has a single agent; leave the flag out.")
        names = list(algorithm.by_name)
        if text.partition("=")[0] not in names:
            raise UsageError(
                f"--behavior_from={text} must begin with a behavior, as in {names[0]}=RUN: there are "
                f"{', '.join(map(repr, names))}."
            )
        load_weights(algorithm, text, "--behavior_from")
    if given:
        algorithm.after_restore()


def wait_for(
    root_dir: str, wanted: Callable[[Any], _T | None], poll_secs: float = 1.0, max_wait_secs: float = 0.0
) -> _T | None:
    """Reads the run's index again and again until there is what is wanted.

    Args:
      root_dir: of the run, which need not exist yet.
      wanted: from a `RunIndex` to what is waited for, or None.
      poll_secs: between two looks.
      max_wait_secs: the longest wait; 0 sets no limit.

    Returns:
      what `wanted` gave; None when the run is finished, or the time is over.
    """
    from alf.trainers.run_index import RunIndex

    began, told = time.monotonic(), None
    while True:
        index = RunIndex.load(root_dir, warn=told is None)
        found = wanted(index)
        if found is not None:
            return found
        state, why = state_of(root_dir, index.run)
        if state == "finished":
            logging.info("The run is finished: %s", index.run.get("why", "it has reached its end."))
            return None
        left = max_wait_secs - (time.monotonic() - began) if max_wait_secs else poll_secs
        if left <= 0.0:
            logging.info("No new checkpoint came within %g s.", max_wait_secs)
            return None
        if state != told:
            nobody = f" The run {_STOPPED[state]} ({why}): nobody trains there now." if state in _STOPPED else ""
            logging.info("Waiting for the next checkpoint; Ctrl-C ends.%s", nobody)
            told = state
        time.sleep(min(poll_secs, left))
