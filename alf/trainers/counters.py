"""How far a run is, by phase and unit, as variables of its checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import Experience, StepType
from alf.trainers.counts import Count, EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps
from alf.trainers.phases import Phase
from alf.utils.common import as_array
from alf.utils.devices import number_on_host
from alf.utils.untracked import Untracked


class Totals(tf.Module):
    """What one phase has come to. Compares with a count of any unit, by the total in that unit alone."""

    def __init__(
        self, name: str, environment_steps: tf.Variable | None = None, training_steps: tf.Variable | None = None
    ) -> None:
        """Creates the totals, 0 each, but for variables that are shared with somebody else."""
        super().__init__(name=name)
        self.environment_steps = number_on_host("environment_steps") if environment_steps is None else environment_steps
        self.episodes = number_on_host("episodes")
        self.training_steps = number_on_host("training_steps") if training_steps is None else training_steps
        self.seconds = number_on_host("seconds", tf.float64)

    def _variables_by_unit(self) -> dict[type[Count], tf.Variable]:
        return {
            EnvironmentSteps: self.environment_steps,
            EnvironmentEpisodes: self.episodes,
            TrainingSteps: self.training_steps,
            Seconds: self.seconds,
        }

    def of(self, unit: type[Count]) -> Count:
        """The total in a unit."""
        return unit(self._variables_by_unit()[unit].value().numpy().item())

    def like(self, count: Count) -> Count:
        """The total in the unit of `count`."""
        return self.of(type(count))

    def add(self, *counts: Count) -> None:
        """Raises the totals in the units of `counts` by them."""
        for count in counts:
            if count.value:
                variable = self._variables_by_unit()[type(count)]
                variable.assign_add(as_array(count.value, variable.dtype.as_numpy_dtype), read_value=False)

    def __add__(self, count: Count) -> Count:
        return self.like(count) + count

    def __lt__(self, count: Count) -> bool:
        return self.like(count) < count

    def __le__(self, count: Count) -> bool:
        return self.like(count) <= count

    def __gt__(self, count: Count) -> bool:
        return self.like(count) > count

    def __ge__(self, count: Count) -> bool:
        return self.like(count) >= count


class PhaseTotals(tf.Module):
    """The totals of all phases; those of training count with the run's own counters."""

    def __init__(self, env_step: tf.Variable, iteration: tf.Variable) -> None:
        super().__init__(name="PhaseTotals")
        self.heatup = Totals("heatup")
        self.train = Totals("train", env_step, iteration)
        self.test = Totals("test")

    def of(self, phase: Phase) -> Totals:
        """The totals of `phase`."""
        return {Phase.HEATUP: self.heatup, Phase.TRAIN: self.train, Phase.TEST: self.test}[phase]


class Counters(tf.Module):
    """How far a run is, as variables, so that a resumed run counts on.

    The totals of phases are an object of their own in checkpoints, since older checkpoints have none: it is `phases`,
    and is not among the variables of this module.
    """

    def __init__(self) -> None:
        super().__init__(name="Counters")
        self.global_counter = number_on_host("global_counter")
        self.iteration = number_on_host("iteration")
        self.env_step = number_on_host("env_step")
        self._phases = Untracked(PhaseTotals(self.env_step, self.iteration))

    @property
    def global_steps(self) -> int:
        """Iterations, or minibatches with update_counter_every_mini_batch; numbers checkpoints and summaries."""
        return int(self.global_counter.numpy())

    @global_steps.setter
    def global_steps(self, steps: int) -> None:
        self.global_counter.assign(as_array(steps, np.int64))

    @property
    def iterations(self) -> int:
        """Iterations done."""
        return int(self.iteration.numpy())

    @property
    def env_steps(self) -> int:
        """Environment steps that the learner has got."""
        return int(self.env_step.numpy())

    @property
    def phases(self) -> PhaseTotals:
        """Totals of each phase."""
        return self._phases.value

    def __getitem__(self, phase: Phase) -> Totals:
        return self.phases.of(phase)

    def reached(self, count: Count, phase: Phase = Phase.TRAIN) -> bool:
        """Whether the total of `phase` in the unit of `count` is at least `count`."""
        return self[phase] >= count

    @property
    def seconds(self) -> float:
        """Seconds spent in all phases."""
        return sum(float(self[phase].seconds.numpy()) for phase in Phase)


class EpisodeCounter:
    """Counts the episodes that end in the experience an algorithm gets; one of its experience observers."""

    def __init__(self) -> None:
        self._ended = 0
        self._rows: set[int] = set()

    def __call__(self, exp: Experience) -> None:
        """Takes experience [Q, T, B, ...] with a bootstrap [Q, B, ...]."""
        following = _numpy(exp.bootstrap.time_step.step_type)[:, np.newaxis]
        last = np.concatenate([_numpy(exp.step_type)[:, 1:], following], 1) == int(StepType.LAST)
        self._ended += int(np.count_nonzero(last))
        self._rows.update(_numpy(exp.env_id)[last].tolist())

    def take(self) -> int:
        """How many have ended since the last call."""
        ended, self._ended = self._ended, 0
        return ended

    def forget_rows(self) -> None:
        """Begins to watch which environments end an episode."""
        self._rows.clear()

    def rows(self) -> int:
        """How many environments have ended an episode since `forget_rows`."""
        return len(self._rows)


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(tensor)
