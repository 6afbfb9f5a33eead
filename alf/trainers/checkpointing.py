"""Checkpoints of a run: written whole or not at all, read back even when the newest one is damaged."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from alf.metrics.metrics import Resumable
from alf.trainers.checkpoint_files import CHECKPOINT_DIR, MODELS_DIR, REPLAY_DIR, checkpoint_name, files_of, leftovers
from alf.trainers.checkpoint_objects import lacking, left_out, unfit_behaviors
from alf.trainers.counters import Counters as Counters
from alf.trainers.optimizer_settings import are_settings, clocks
from alf.trainers.retention import Retention, delete_files, delete_leftovers, replay_files
from alf.trainers.run_index import Record, RunIndex, now
from alf.utils.files import absolute, is_pattern, sync

# What is wrong with a checkpoint whose files somebody has removed.
GONE = "its files are gone"
# How many variables are named that nothing takes.
_SHOWN = 5
# What checkpoints of earlier versions do not hold.
_ADDED_LATER = {"phases", "evaluations", "self_play"}


class CheckpointError(RuntimeError):
    """No checkpoint can be read, or it was written by a run of another kind."""


class MetricsState(tf.train.experimental.PythonState):
    """The state of metrics as part of a checkpoint; what was restored before `attach` is kept for it."""

    def __init__(self) -> None:
        self._metrics: Sequence[Resumable] = ()
        self._restored: dict[str, dict[str, Any]] = {}

    def attach(self, metrics: Sequence[Any]) -> None:
        """Saves `metrics` from now on, and gives them what was restored under their names; those without state are left out."""
        self._metrics = [m for m in metrics if isinstance(m, Resumable)]
        self._load()

    def serialize(self) -> str:
        """The state of all metrics, as JSON text."""
        state = {m.name: {k: np.asarray(v).tolist() for k, v in m.state_dict().items()} for m in self._metrics}
        return json.dumps(state or self._restored)

    def deserialize(self, string_value: bytes) -> None:
        """Takes over what `serialize` gave."""
        self._restored = json.loads(string_value)
        self._load()

    def _load(self) -> None:
        for metric in self._metrics:
            if metric.name in self._restored:
                metric.load_state_dict({k: np.array(v) for k, v in self._restored[metric.name].items()})


class Checkpointer:
    """Saves objects as DIR/ckpt-<step>, keeps the run index, and restores what is asked for.

    A checkpoint exists once the index lists it, which is written after its files: a crash at any instant of saving
    leaves the earlier ones as they were and no record of the new one. Exported models, which take seconds, are added to
    a checkpoint that is complete without them. Restoring writes nothing.
    """

    def __init__(
        self,
        directory: str,
        objects: dict[str, Any],
        max_to_keep: int | None = 20,
        *,
        milestones: int = 0,
        keep_periodic: bool = False,
        exporter: Callable[[str], Any] | None = None,
        replay_saver: Callable[[str], Any] | None = None,
        replays_to_keep: int | None = 1,
        acts_only: bool = False,
    ) -> None:
        """Creates the checkpointer.

        Args:
          directory: of the files, made at the first save; ROOT/train/algorithm for a run whose index is in ROOT, any
            other directory has its own index.
          objects: trackable TensorFlow objects by name. Their variables must exist before `restore`. Those called
            "counters" are written into the records.
          max_to_keep: how many checkpoints stay, beside the best and milestones; None or 0 for all.
          milestones: every k-th checkpoint stays for ever; 0 for none.
          keep_periodic: the newest "periodic" checkpoint stays in any case, since a run goes on from such ones.
          exporter: called with a directory that it makes and fills with files of the same moment, such as models. What
            it raises is logged, and the checkpoint goes without them.
          replay_saver: called likewise, for the files of a replay memory.
          replays_to_keep: how many of the newest checkpoints keep theirs; None or 0 for all.
          acts_only: what is restored is not trained: nobody misses what the optimisers had.

        Raises:
          ValueError: a number is negative.
        """
        self._directory = directory
        self._root_dir, self._folder = _split(directory)
        self._objects = dict(objects)
        self._checkpoint = tf.train.Checkpoint(**objects)
        self._counters = objects.get("counters")
        self._retention = Retention(max_to_keep, milestones, keep_periodic, replays_to_keep)
        self.exporter = exporter
        self._replay_saver = replay_saver
        self._acts_only = acts_only
        self._index: RunIndex | None = None
        # The step whose checkpoint holds what the objects hold.
        self._at: int | None = None
        # The step whose checkpoint stays until it is judged, or another is awaited.
        self.awaited: int | None = None
        self._damaged: set[int] = set()
        self._tidy = False

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    @property
    def index(self) -> RunIndex:
        """The run index as this object knows it, read at first use; only one that saves may change it."""
        if self._index is None:
            self._index = RunIndex.load(self._root_dir, self._folder)
        return self._index

    def save(
        self,
        step: int,
        *,
        reward: float | None = None,
        reward_episodes: int = 0,
        kinds: Sequence[str] = ("periodic",),
    ) -> Record:
        """Writes a checkpoint, then its record, then removes what retention lets go.

        Where this object has just saved or restored the same step, only the record changes.

        Args:
          step: number of the checkpoint; one that exists is replaced.
          reward: mean return of what is saved, which decides about the best one; None where it is not known.
          reward_episodes: how many episodes that mean is over.
          kinds: why it is saved: "periodic", "final".

        Returns:
          its record.

        Raises:
          ValueError: there are no objects to save.
          Exception: OSError or an error of TensorFlow: it could not be written, and the earlier ones are as they were.
        """
        if not self._objects:
            raise ValueError(f"There is nothing to save in {self._directory}: give the checkpointer its objects.")
        index = self.index
        if reward is not None and not math.isfinite(reward):
            reward = None
        record = index.find(str(step))
        new = record is None or step != self._at
        if record is not None and not new:
            record = record.with_kinds(kinds)
            if reward is not None:
                record = dataclasses.replace(record, reward=float(reward), reward_episodes=reward_episodes)
            self._commit(record)
        else:
            self._discard_damaged()
            replaced = index.find(str(step))
            record = self._write(step, sorted(kinds), reward, reward_episodes)
            self._commit(record, replaced)
        self._at = step
        return self._with_models(record) if new else record

    def outdate(self) -> None:
        """Has the next `save` write what the objects hold, also where its step is that of the last checkpoint."""
        self._at = None

    def judge(self, step: int, reward: float, reward_episodes: int) -> Record | None:
        """Gives the record of a step its reward; returns it, or None where there is no such checkpoint.

        Args:
          step: number of the checkpoint.
          reward: mean return of an evaluation of its weights.
          reward_episodes: how many episodes that mean is over.

        Raises:
          OSError: the index cannot be written.
        """
        self.awaited = None
        record = self.index.find(str(step))
        if record is None:
            logging.warning("The evaluation of step %d is of a checkpoint that is gone: it cannot be the best.", step)
            return None
        if math.isfinite(reward):
            record = dataclasses.replace(record, reward=float(reward), reward_episodes=reward_episodes)
            self._commit(record)
        return record

    def complete(self) -> None:
        """Exports the models of the checkpoint restored or saved last, where its save was cut off before them."""
        record = None if self._at is None else self.index.find(str(self._at))
        if record is not None and not any(f.startswith(MODELS_DIR + os.sep) for f in record.files):
            self._with_models(record)

    def available(self) -> list[str]:
        """Paths without suffix of the recorded checkpoints, the newest last."""
        return [os.path.join(self._root_dir, r.prefix()) for r in self.index.records()]

    def restore(self, which: str | None = "latest") -> str | None:
        """Restores a checkpoint.

        Args:
          which: "latest" (or None): the newest that can be read; "periodic": the newest of that kind; "best", "final",
            "<step>" or "ckpt-<step>": that one. Otherwise the path of a checkpoint, with or without suffix, or of a
            directory with some.

        Returns:
          its path without suffix; None when the latest, or latest periodic, is asked for and there is none at all.

        Raises:
          CheckpointError: it is not there or damaged, all are damaged, or it was written by another kind of run.
        """
        which = which or "latest"
        if os.sep in which:
            source, name = locate(which)
            if source is not None:
                return Checkpointer(source, self._objects, acts_only=self._acts_only).restore(name)
        if which in ("latest", "periodic"):
            return self._restore_newest([r for r in self.index.records() if which == "latest" or which in r.kinds])
        record = self.index.find(which)
        if record is None:
            there = ", ".join(r.name for r in self.index.records()) or "none"
            raise CheckpointError(f"There is no checkpoint {which!r} in {self._directory}; there are: {there}.")
        path = os.path.join(self._root_dir, record.prefix())
        damage = damage_of(path)
        if damage is not None:
            raise CheckpointError(f"Checkpoint {path} cannot be read: {damage}")
        return self._restore(record)

    def _restore_newest(self, records: list[Record]) -> str | None:
        for record in reversed(records):
            path = os.path.join(self._root_dir, record.prefix())
            damage = damage_of(path)
            if damage is None:
                return self._restore(record)
            self._damaged.add(record.step)
            if damage == GONE:
                logging.warning("Checkpoint %s is gone.", path)
            else:
                logging.warning("Checkpoint %s is damaged and was skipped: %s", path, damage)
        if records:
            raise CheckpointError(
                f"No checkpoint in {self._directory} can be read: train with --force to start anew, which keeps the run as "
                "ROOT_DIR-1."
            )
        return None

    def _restore(self, record: Record) -> str:
        path = os.path.join(self._root_dir, record.prefix())
        try:
            self._take_all_of(path)
        except tf.errors.OpError as e:
            # A run that goes on beside this program may have let it go since it was looked at.
            raise CheckpointError(f"Checkpoint {path} cannot be read any more: {damage_of(path) or e.message}.") from e
        self._at = record.step
        return path

    def _take_all_of(self, path: str) -> None:
        try:
            self._read(path)
        except (AssertionError, ValueError) as e:
            unfit = unfit_behaviors(self._objects.get("algorithm"), path)
            whose = f" (of the behavior {', '.join(map(repr, unfit))})" if unfit else ""
            parts = "networks, optimisers, explorations or SelfPlay.window"
            if "self_play" not in self._objects:
                parts = "networks, optimisers or explorations"
            raise CheckpointError(
                f"Checkpoint {path} does not fit this run, whose {parts} are others{whose}: use the gin file it was made "
                f"with, or another root_dir. ({str(e).splitlines()[0]})"
            ) from e
        self._tell_left_out(path)

    def _read(self, path: str) -> None:
        """Raises AssertionError or ValueError where the run has what the checkpoint lacks, but for settings."""
        present = self._present(path)
        try:
            tf.train.Checkpoint(**present).read(path).assert_existing_objects_matched()
        except AssertionError:
            algorithm = present.pop("algorithm", None)
            lacks = [] if algorithm is None else lacking(algorithm, path)
            if algorithm is None or not are_settings(lacks, algorithm):
                raise
            tf.train.Checkpoint(**present).read(path).assert_existing_objects_matched()
            if {id(clock) for clock in clocks(algorithm)} & {id(variable) for variable in lacks}:
                logging.info("This run goes on from %s, that holds no schedule of exploration: it begins now.", path)

    def _tell_left_out(self, path: str) -> None:
        """Raises CheckpointError where networks were larger at the checkpoint; warns of what else the run has no more."""
        if "algorithm" not in self._objects:
            return
        inside, elsewhere = left_out(self._objects["algorithm"], path, self._acts_only)
        if inside:
            raise CheckpointError(
                f"Checkpoint {path} does not fit this run, whose networks are others: use the gin file it was made with, or "
                f"another root_dir. (It also holds {_some(inside)}.)"
            )
        if elsewhere:
            logging.warning(
                "Checkpoint %s also holds what this run has not and goes on without: %s.", path, _some(elsewhere)
            )

    def _present(self, path: str) -> dict[str, Any]:
        """The objects to restore from `path`: checkpoints of earlier versions have none of some."""
        there = {key.split("/")[0] for key, _ in tf.train.list_variables(path)}
        missing = (_ADDED_LATER & set(self._objects)) - there
        if missing:
            logging.warning(
                "Checkpoint %s is of an earlier version and holds no %s.", path, " and no ".join(sorted(missing))
            )
        return {name: value for name, value in self._objects.items() if name not in missing}

    # ---- saving ----

    def _discard_damaged(self) -> None:
        """Takes records out that were found damaged, and removes files that belong to no record."""
        index = self.index
        void = [r for r in index.records() if r.step in self._damaged]
        for record in void:
            index.remove(record)
        if void:
            index.save()
        self._damaged.clear()
        if void or not self._tidy:
            records = index.records()
            delete_leftovers(self._root_dir, leftovers(self._root_dir, [r.step for r in records], self._folder))
            memories = [os.path.join(REPLAY_DIR, r.name) for r in records if not replay_files(r)]
            delete_leftovers(self._root_dir, [path for path in memories if os.path.isdir(self._place(path))])
            self._tidy = True

    def _write(self, step: int, kinds: list[str], reward: float | None, reward_episodes: int) -> Record:
        name = checkpoint_name(step)
        # Beside one of the same step, which stays until this one is whole.
        folder, memory = (
            os.path.join(place, f"{name}.new-partial") for place in (self._directory, self._place(REPLAY_DIR))
        )
        os.makedirs(folder, exist_ok=True)
        try:
            self._checkpoint.write(os.path.join(folder, name))
            self._add(self._replay_saver, memory, name, "its replay memory")
            self._put_in_place(folder, memory, name)
            files = self._files_on_disk(step)
        except BaseException:
            # The next save tries to tidy up: a disk that is full gets its space back.
            self._tidy = False
            raise
        counters = self._counters if isinstance(self._counters, Counters) else None
        if self._retention.is_milestone(self.index.saves() + 1):
            kinds = sorted({*kinds, "milestone"})
        return Record(
            name=name,
            step=step,
            env_steps=counters.env_steps if counters else 0,
            iterations=counters.iterations if counters else 0,
            files=files,
            reward=None if reward is None else float(reward),
            reward_episodes=reward_episodes,
            created=now(),
            kinds=kinds,
        )

    def _put_in_place(self, folder: str, memory: str, name: str) -> None:
        """Moves what was written into `folder` and `memory` to where the files of a checkpoint are, over older ones."""
        files = os.listdir(folder)
        for file in files:
            sync(os.path.join(folder, file))
        # At once: a kill between two of them takes the older one of this step away.
        for file in files:
            os.replace(os.path.join(folder, file), os.path.join(self._directory, file))
        os.rmdir(folder)
        for place in (MODELS_DIR, REPLAY_DIR):
            shutil.rmtree(self._place(place, name), ignore_errors=True)
        if os.path.isdir(memory):
            os.rename(memory, self._place(REPLAY_DIR, name))

    def _place(self, *parts: str) -> str:
        return os.path.join(self._root_dir, *parts)

    def _with_models(self, record: Record) -> Record:
        """The record of a checkpoint that has just been saved, with exported models where there is an exporter."""
        if self.exporter is None:
            return record
        if "final" in record.kinds:
            logging.info("%s is saved; exporting its model.", record.name)
        self._add(self.exporter, self._place(MODELS_DIR, record.name), record.name, "exported models")
        record = dataclasses.replace(record, files=self._files_on_disk(record.step))
        self._commit(record)
        return record

    def _files_on_disk(self, step: int) -> list[str]:
        """The files of a step, relative to the run's directory, once they are on disk."""
        files = files_of(self._root_dir, step, self._folder)
        for place in {os.path.dirname(f) for f in files} | set(files):
            sync(self._place(place))
        return files

    def _add(self, writer: Callable[[str], Any] | None, directory: str, name: str, what: str) -> None:
        if writer is None:
            return
        try:
            writer(directory)
        # Whatever goes wrong with them, what was learned is saved.
        except Exception as e:
            logging.error("%s goes without %s: %s: %s", name, what, type(e).__name__, e)
            shutil.rmtree(directory, ignore_errors=True)

    def _commit(self, record: Record, replaced: Record | None = None) -> None:
        """Writes the index with `record`, without `replaced` and those that retention lets go, whose files go after that."""
        index = self.index
        before, saves = index.records(), index.saves()
        if replaced is not None:
            index.remove(replaced)
        index.add(record)
        gone = [r for r in self._retention.superfluous(index.records()) if r.step != self.awaited]
        for old in gone:
            index.remove(old)
        thinned = {r.name: r for r in self._retention.without_replays(index.records())}
        if thinned:
            index.reset([thinned.get(r.name, r) for r in index.records()], index.saves())
        try:
            index.save()
        except BaseException:
            index.reset(before, saves)
            self._tidy = False
            raise
        for old in [*gone, *(r for r in before if r.name in thinned)]:
            delete_files(self._root_dir, old, index.records())


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:_SHOWN]) + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")


def _split(directory: str) -> tuple[str, str]:
    """The run's directory, and the place of `directory` in it."""
    path = os.path.normpath(directory)
    if path == CHECKPOINT_DIR or path.endswith(os.sep + CHECKPOINT_DIR):
        return os.path.dirname(os.path.dirname(path)) or ".", CHECKPOINT_DIR
    return path, "."


def locate(path: str) -> tuple[str | None, str]:
    """The directory of checkpoints that a path means, and which one of them: "latest" or a name.

    Args:
      path: of a run, of a directory of checkpoints, or of one checkpoint with or without suffix.

    Returns:
      (directory, which); the directory is None where there is nothing of the kind.
    """
    path = absolute(path)
    if os.path.isdir(path):
        below = os.path.join(path, CHECKPOINT_DIR)
        return (below if os.path.isdir(below) else path), "latest"
    directory, name = os.path.split(path)
    name = name.removesuffix(".index").partition(".data-")[0]
    return (directory, name) if os.path.isfile(os.path.join(directory, f"{name}.index")) else (None, name)


def damage_of(path: str) -> str | None:
    """What is wrong with the files of a checkpoint, found by reading them whole; None when all is well."""
    if not os.path.exists(f"{path}.index"):
        return GONE
    if is_pattern(path):
        return "TensorFlow finds no checkpoint whose path has a [ or \\: rename its directory"
    try:
        reader = tf.train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    # TensorFlow reports damage as OpError, IndexError, ValueError and more, by where it stumbles.
    except Exception as e:
        return (str(e).splitlines() or [type(e).__name__])[0]
    return None
