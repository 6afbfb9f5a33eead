"""Checkpoints of a run: written whole or not at all, read back even when the newest one is damaged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from alf.metrics.metrics import StepMetric

_NAME = "ckpt"


class CheckpointError(RuntimeError):
    """No checkpoint can be read, or it was written by a run of another kind."""


class Counters(tf.Module):
    """How far a run is, as variables, so that a resumed run counts on."""

    def __init__(self) -> None:
        super().__init__(name="Counters")
        self.global_counter = _counter("global_counter")
        self.iteration = _counter("iteration")
        self.env_step = _counter("env_step")

    @property
    def global_steps(self) -> int:
        """Iterations, or minibatches with update_counter_every_mini_batch; numbers checkpoints and summaries."""
        return int(self.global_counter.numpy())

    @property
    def iterations(self) -> int:
        """Iterations done."""
        return int(self.iteration.numpy())

    @property
    def env_steps(self) -> int:
        """Environment steps that the learner has got."""
        return int(self.env_step.numpy())


def _counter(name: str) -> tf.Variable:
    return tf.Variable(0, dtype=tf.int64, trainable=False, name=name)


class MetricsState(tf.train.experimental.PythonState):
    """The state of metrics as part of a checkpoint; what was restored before `attach` is kept for it."""

    def __init__(self) -> None:
        self._metrics: Sequence[StepMetric] = ()
        self._restored: dict[str, dict[str, Any]] = {}

    def attach(self, metrics: Sequence[Any]) -> None:
        """Saves `metrics` from now on, and gives them what was restored under their names; other kinds are left out."""
        self._metrics = [m for m in metrics if isinstance(m, StepMetric)]
        self._load()

    def serialize(self) -> str:
        """The state of all metrics, as JSON text."""
        state = {m.name: {k: v.tolist() for k, v in m.state_dict().items()} for m in self._metrics}
        return json.dumps(state or self._restored)

    def deserialize(self, string_value: bytes) -> None:
        """Takes over what `serialize` gave."""
        self._restored = json.loads(string_value)
        self._load()

    def _load(self) -> None:
        for metric in self._metrics:
            if metric.name in self._restored:
                metric.load_state_dict({k: np.array(v) for k, v in self._restored[metric.name].items()})


def checkpoint_numbers(directory: str) -> list[int]:
    """The numbers of the checkpoints in a directory, in order."""
    found = [re.fullmatch(rf"{_NAME}-(\d+)\.index", path.name) for path in Path(directory).glob(f"{_NAME}-*.index")]
    return sorted(int(match[1]) for match in found if match)


class Checkpointer:
    """Saves objects as DIR/ckpt-<number>, keeps the newest few, and restores the newest that can be read."""

    def __init__(self, directory: str, objects: dict[str, Any], max_to_keep: int) -> None:
        """Creates the checkpointer.

        Args:
          directory: of the files; created at the first save.
          objects: trackable TensorFlow objects by name. Their variables must exist before `restore`.
          max_to_keep: how many checkpoints stay.
        """
        self._directory = directory
        self._checkpoint = tf.train.Checkpoint(**objects)
        self._max_to_keep = max_to_keep
        self._manager: tf.train.CheckpointManager | None = None

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    def save(self, number: int) -> str:
        """Writes a checkpoint; returns its path, without suffix."""
        if self._manager is None:
            self._manager = tf.train.CheckpointManager(
                self._checkpoint, self._directory, max_to_keep=self._max_to_keep, checkpoint_name=_NAME
            )
        return self._manager.save(checkpoint_number=number)

    def available(self) -> list[str]:
        """Paths without suffix of the checkpoints in the directory, by number, the newest last."""
        return [os.path.join(self._directory, f"{_NAME}-{n}") for n in checkpoint_numbers(self._directory)]

    def restore(self, name: str | None = None) -> str | None:
        """Restores the newest checkpoint that can be read, or the one called `name`.

        Returns:
          its path; None when there is none at all.

        Raises:
          CheckpointError: `name` is not there or damaged, all are damaged, or one was written by another kind of run.
        """
        paths = self.available()
        if name is not None:
            named = [p for p in paths if os.path.basename(p) == os.path.basename(name)]
            if not named:
                there = ", ".join(os.path.basename(p) for p in paths) or "none"
                raise CheckpointError(f"There is no checkpoint {name!r} in {self._directory}; there are: {there}.")
            paths = named
        for path in reversed(paths):
            damage = _damage(path)
            if damage is None:
                self._restore(path)
                return path
            logging.warning("Checkpoint %s is damaged and was skipped: %s", path, damage)
        if paths:
            raise CheckpointError(f"No checkpoint in {self._directory} can be read; delete them to start anew.")
        return None

    def _restore(self, path: str) -> None:
        try:
            self._checkpoint.restore(path).assert_existing_objects_matched()
        except (AssertionError, ValueError) as e:
            raise CheckpointError(
                f"Checkpoint {path} does not fit this run, whose networks or optimisers are others: use the gin file "
                f"it was made with, or another root_dir. ({str(e).splitlines()[0]})"
            ) from e


def _damage(path: str) -> str | None:
    """What is wrong with the files of a checkpoint, found by reading them whole; None when all is well."""
    try:
        reader = tf.train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    # TensorFlow reports damage as OpError, IndexError, ValueError and more, by where it stumbles.
    except Exception as e:
        return (str(e).splitlines() or [type(e).__name__])[0]
    return None
