"""The one place that numbers of a run are reported through."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import gin

from alf.metrics.metrics import EnvironmentSteps, EpisodeAverage, NumberOfEpisodes, StepMetric
from alf.metrics.summary_writer import SummaryWriter

# Driver statistics that tell how old the acting weights were.
_STALENESS = ("lag_mean", "lag_max", "dropped_steps", "policy_version")


@gin.configurable(module="alf")
class StatsReporter:
    """Turns metrics, losses and driver statistics into TensorBoard scalars with the tags that TF-Agents uses."""

    def __init__(self, log_dir: str, summary_interval: int = 1, min_interval_secs: float = 2.0) -> None:
        """Creates the reporter.

        Args:
          log_dir: directory of the event file.
          summary_interval: iterations between two summaries, and
          min_interval_secs: seconds between them, both at least; a fast learner is not slowed by its summaries.

        Raises:
          ValueError: summary_interval is below 1.
        """
        if summary_interval < 1:
            raise ValueError(f"summary_interval={summary_interval} must be at least 1 iteration.")
        self._writer = SummaryWriter(log_dir)
        self._interval = summary_interval
        self._min_secs = min_interval_secs
        self._last: tuple[int, float] | None = None
        self._last_rate: tuple[int, float] | None = None

    @property
    def log_dir(self) -> str:
        """Where the events go."""
        return self._writer.log_dir

    def due(self, iteration: int) -> bool:
        """Whether a summary should be written after `iteration`; the first one is."""
        if self._last is None:
            return True
        last_iteration, last_time = self._last
        return iteration - last_iteration >= self._interval and time.monotonic() - last_time >= self._min_secs

    def write(
        self,
        iteration: int,
        step: int,
        metrics: Iterable[StepMetric] = (),
        losses: Mapping[str, Any] | None = None,
        stats: Mapping[str, float] | None = None,
        env_steps: int | None = None,
    ) -> None:
        """Writes a summary.

        Args:
          iteration: of the trainer, for `due`.
          step: x axis, the global counter.
          metrics: as `Metrics/<name>`, averages also against environment steps.
          losses: scalars or scalar tensors by name, as `Losses/<name>`.
          stats: of the driver, as `staleness/<name>` and `Driver/<name>`.
          env_steps: x axis of `Metrics_vs_EnvironmentSteps/<name>`.
        """
        now = time.monotonic()
        self._last = (iteration, now)
        scalars, averages = _metric_scalars(metrics)
        scalars.update((f"Losses/{name}", float(value)) for name, value in (losses or {}).items())
        for name, value in (stats or {}).items():
            scalars[f"staleness/{name}" if name in _STALENESS else f"Driver/{name}"] = float(value)
        if self._last_rate is not None and now > self._last_rate[1]:
            scalars["global_steps_per_sec"] = (step - self._last_rate[0]) / (now - self._last_rate[1])
        self._last_rate = (step, now)
        self._writer.scalars(scalars, step)
        if env_steps is not None and averages:
            against = {f"Metrics_vs_EnvironmentSteps/{name}": value for name, value in averages.items()}
            self._writer.scalars(against, env_steps)
        self._writer.flush()

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Writes a text at once."""
        self._writer.text(tag, markdown, step)
        self._writer.flush()

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()


def _metric_scalars(metrics: Iterable[StepMetric]) -> tuple[dict[str, float], dict[str, float]]:
    """All values by tag, and the averages by name. An average over no episode is left out, not shown as 0."""
    scalars: dict[str, float] = {}
    averages: dict[str, float] = {}
    for metric in metrics:
        if isinstance(metric, (NumberOfEpisodes, EnvironmentSteps)):
            scalars[f"Metrics/{metric.name}"] = float(metric.result())
            continue
        if isinstance(metric, EpisodeAverage) and not metric.num_episodes():
            continue
        averages[metric.name] = float(metric.result())
    scalars.update((f"Metrics/{name}", value) for name, value in averages.items())
    return scalars, averages
