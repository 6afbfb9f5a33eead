"""Runs shipped examples in this process until they reach a return."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import gin

from alf.metrics.metrics import AverageReturnMetric
from alf.trainers.config import TrainerConfig
from alf.trainers.stopping import Standing
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


class Outcome(NamedTuple):
    """How far a run came: the best and the last mean return of a full window, and the environment steps it took."""

    best: float
    last: float
    env_steps: int


def train(
    root_dir: pathlib.Path,
    names: Sequence[str],
    seed: int,
    target: float,
    params: Sequence[str] = (),
    window: int = 100,
) -> Outcome:
    """Trains by the gin files `names` and ends when the last `window` episodes average `target`, or with their budget."""
    gin.clear_config()
    bindings = [
        f"TrainerConfig.random_seed={seed}",
        f"alf.AverageReturnMetric.buffer_size={window}",
        "TrainerConfig.summary_interval=1000000",
        *params,
    ]
    gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin") for name in names], bindings)
    config = TrainerConfig(root_dir=str(root_dir))
    trainer = config.create_trainer()
    trainer.initialize()
    watch = _Watch(trainer.driver.get_metrics()[2], target, window)
    trainer.driver.observers.append(watch)
    config.stop_conditions = [watch.reason]
    try:
        trainer.train()
    finally:
        gin.clear_config()
    return Outcome(watch.best, watch.last, trainer.counters.env_steps)


class _Watch:
    """An observer that has the run end when the mean return of a full window reaches a target."""

    def __init__(self, average_return: AverageReturnMetric, target: float, window: int) -> None:
        self._average_return = average_return
        self._target = target
        self._window = window
        self.best = self.last = float("-inf")

    def __call__(self, *segment: Any) -> None:
        if self._average_return.num_episodes() < self._window:
            return
        self.last = float(self._average_return.result())
        self.best = max(self.best, self.last)

    def reason(self, run: Standing) -> str | None:
        """The stop condition."""
        return "the target is reached" if self.best >= self._target else None
