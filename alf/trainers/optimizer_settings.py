"""Numbers that the configuration gives to optimisers and explorations, which checkpoints hold too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from alf.algorithms.exploration import LinearSchedule

_LEGACY = tf.keras.optimizers.legacy.Optimizer


class OptimizerSettings:
    """The learning rates, momenta and the like of all optimisers, as they are configured.

    Those that are plain numbers are variables of the optimisers, so that a restored checkpoint sets them to those of the
    run that wrote it, whatever this one is configured with.
    """

    def __init__(self, root: Any) -> None:
        """Notes the settings of the optimisers below `root`, whose variables exist and were not restored yet."""
        self._noted = [
            (f"{name_of(optimizer)}.{name}", variable, variable.numpy())
            for optimizer, name, variable in _settings_below(root)
        ]

    def put_back(self) -> None:
        """Sets them to what was noted, and tells what they were where that differs."""
        for name, variable, value in self._noted:
            if variable.numpy() != value:
                logging.info("%s was %g at the checkpoint and is %g from now on.", name, variable.numpy(), value)
                variable.assign(value)


def are_settings(variables: Iterable[tf.Variable], root: Any) -> bool:
    """Whether a checkpoint may lack all of these variables: settings of optimisers below `root`, or `clocks`.

    A constant learning rate is one: it is in no checkpoint of a run whose rate followed a schedule.
    """
    settings = {id(variable) for _, _, variable in _settings_below(root, with_derived=True)}
    return settings.union(map(id, clocks(root))).issuperset(map(id, variables))


def clocks(root: Any) -> list[tf.Variable]:
    """The clocks of the schedules below `root`, which a run with constant numbers in their places does not save."""
    below = tf.train.TrackableView(root).descendants()
    return [schedule.clock for schedule in below if isinstance(schedule, LinearSchedule)]


def name_of(optimizer: Any) -> str:
    """The name of an optimiser; Keras has it in two places."""
    return str(optimizer.name if isinstance(optimizer, tf.keras.optimizers.Optimizer) else optimizer._name)


def _settings_below(root: Any, with_derived: bool = False) -> Iterator[tuple[Any, str, tf.Variable]]:
    for optimizer in tf.train.TrackableView(root).descendants():
        if isinstance(optimizer, _LEGACY):
            found = optimizer._hyper
        elif isinstance(optimizer, tf.keras.optimizers.Optimizer):
            found = {"learning_rate": optimizer._learning_rate}
            if with_derived:  # What a schedule gave last.
                found["current_learning_rate"] = getattr(optimizer, "_current_learning_rate", None)
        else:
            continue
        yield from ((optimizer, name, value) for name, value in found.items() if isinstance(value, tf.Variable))
