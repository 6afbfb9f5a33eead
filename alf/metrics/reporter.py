"""The one place that numbers of a run are reported through."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import gin

from alf.metrics.agent_episodes import AgentEpisodes
from alf.metrics.episode_log import EpisodeLog, PerStep, Signal
from alf.metrics.histogram import Histogram
from alf.metrics.metrics import (
    AverageEpisodeLengthMetric,
    EnvironmentSteps,
    EpisodeAverage,
    NumberOfEpisodes,
    Reported,
    StepMetric,
)
from alf.metrics.summary_writer import SummaryWriter
from alf.metrics.tables import Value, finite
from alf.metrics.time_shares import Timings, shares
from alf.metrics.user_stats import Aggregation, UserStats
from alf.metrics.writers import AXES, STEP, MakeWriter, Row, Writer, Writers, make_writers, own_writers

# Driver statistics that tell how old the acting weights were.
_STALENESS = ("lag_mean", "lag_max", "dropped_steps", "policy_version")


@gin.configurable(module="alf")
class StatsReporter:
    """Turns metrics, losses, driver statistics and user stats into rows, for TensorBoard, CSV and JSON lines alike.

    TensorBoard's scalars have the tags that TF-Agents uses. `write` is for one thread at a time, `add` for all.
    A context manager: leaving the block writes what is held back.
    """

    def __init__(
        self,
        log_dir: str,
        summary_interval: int = 1,
        min_interval_secs: float = 2.0,
        *,
        formats: Sequence[str | MakeWriter] = ("tensorboard", "csv", "jsonl"),
        flush_secs: float = 1.0,
        max_queue: int = 10,
        log_episodes: bool = False,
    ) -> None:
        """Creates the reporter; files appear when there is something to write.

        Args:
          log_dir: directory of the event file, `stats.csv`, `stats.jsonl`, `episodes.csv` and `agents.csv`.
          summary_interval: iterations between two summaries, and
          min_interval_secs: seconds between them, both at least; a fast learner is not slowed by its summaries.
          formats: which of "tensorboard", "csv", "jsonl" are written, and classes or functions that make a `Writer` of
            your own of `log_dir`.
          flush_secs: a summary is handed to the operating system at the latest so many seconds after the one before, and
          max_queue: when so many are held back.
          log_episodes: write a row for each episode, as `EpisodeLog` has it, once `episodes` observes a driver; with
            several agents also one for each agent's, as `AgentLog` has it. Where thousands of episodes end each second,
            this costs a few percent of the speed.

        Raises:
          TypeError: a format of your own makes no `Writer`.
          ValueError: summary_interval or max_queue is below 1, or a format is unknown.
        """
        for name, value in (("summary_interval", summary_interval), ("max_queue", max_queue)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        self._log_dir = log_dir
        self._events = SummaryWriter(log_dir)
        self._formats = tuple(formats)
        self._writers = Writers(make_writers(self._formats, log_dir, self._events), log_dir)
        self._interval = summary_interval
        self._min_secs = min_interval_secs
        self._flush_secs, self._max_queue = flush_secs, max_queue
        self._held, self._flushed_at = 0, -float("inf")
        self._user = UserStats()
        self._signals: dict[str, Signal] = {}
        self._episodes = EpisodeLog(log_dir) if log_episodes else None
        self._last: tuple[int, float] | None = None
        self._last_rate: tuple[int, float] | None = None
        self._told_rates: dict[str, float] = {}
        self._last_timings: tuple[Timings, float] | None = None
        self._last_ended: float | None = None
        self._began = time.monotonic()

    @property
    def log_dir(self) -> str:
        """Where everything goes."""
        return self._log_dir

    def own_writers(self, log_dir: str) -> list[Writer]:
        """The writers of your own once more, for another directory; raises as the constructor."""
        return own_writers(self._formats, log_dir)

    @property
    def episodes(self) -> EpisodeLog | None:
        """What writes a row for each episode: an observer for a driver; None without `log_episodes`."""
        return self._episodes

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, resumed parts included."""
        return time.monotonic() - self._began

    # ---- user stats ----

    def add(
        self,
        name: str,
        value: Any,
        how: Aggregation | str = Aggregation.AVERAGE,
        source: int | str | None = None,
    ) -> None:
        """Adds a value of a statistic of your own to the next summary; arguments and errors as in `UserStats.add`.

        Raises:
          ValueError: also where the name is that of an x axis.
        """
        name = " ".join(name.split())  # As a table's header is read.
        if name in AXES:
            raise ValueError(f"A statistic cannot be called {name!r}, which is an x axis of every summary: rename it.")
        self._user.add(name, value, how, source)

    def register_signal(self, name: str, per_step: PerStep | None = None) -> Signal:
        """Adds a signal, of which summaries and episode rows tell mean, deviation, maximum and minimum.

        Args:
          name: of the signal.
          per_step: computes it from a trajectory [T, B], as [T, B]; each episode row then tells of its own steps. Without
            it, values come by `add` of the result, and an episode row tells of those since the episode rows before.

        Returns:
          the signal; the same one when it is registered already.

        Raises:
          ValueError: `per_step` is given and episodes are not logged.
        """
        if per_step is not None and self._episodes is None:
            raise ValueError(f"Signal {name!r} is computed for each episode: set StatsReporter.log_episodes = True.")
        if name not in self._signals:
            signal = Signal(name, per_step, lambda values: self.add(name, values, Aggregation.HISTOGRAM))
            self._signals[name] = signal
            if self._episodes is not None:
                self._episodes.register(signal)
        return self._signals[name]

    # ---- rows ----

    def resume(self, step: int, seconds: float = 0.0) -> None:
        """Goes on after a global step: what was written above it is removed, so that every x axis grows on.

        Args:
          step: the global step that the run resumes from; below 0 it starts anew.
          seconds: that the run took at least so far; tables may tell of more, TensorBoard's files tell none.
        """
        seconds = max([seconds, *(finite(last.get("seconds")) for last in self._writers.resume(step))])
        if self._episodes is not None:
            self._episodes.resume(step)
        self._began = time.monotonic() - seconds

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
        *,
        timings: Timings | None = None,
        histograms: Mapping[str, Histogram] | None = None,
        agents: AgentEpisodes | None = None,
    ) -> None:
        """Writes a summary, with all that was added since the last one.

        Args:
          iteration: of the trainer, for `due`.
          step: x axis, the global counter.
          metrics: as `Metrics/<name>`, averages also against the other axes.
          losses: scalars or scalar tensors by name, as `Losses/<name>`.
          stats: of the driver, as `staleness/<name>` and `Driver/<name>`.
          env_steps: x axis of `Metrics_vs_EnvironmentSteps/<name>`.
          timings: of the driver; the shares since the last summary are `Time/<name>`.
          histograms: by tag.
          agents: whose numbers are `Metrics/<behavior>/<name>`.

        Raises:
          ValueError: a statistic that was added has the name of another number of this summary, or a metric gives no number.
        """
        now = time.monotonic()
        # At the end of a run, where nothing more was learned: what that takes is no part of the speed of training.
        again = (self._last and self._last[0], self._last_rate and self._last_rate[0]) == (iteration, step)
        self._last = (iteration, now)
        scalars, averages, episodes = self._metric_scalars(metrics)
        if agents is not None:
            averages |= agents.averages()
            scalars |= {f"Metrics/{name}": value for name, value in agents.scalars().items()}
        scalars.update((f"Losses/{name}", float(value)) for name, value in (losses or {}).items())
        for name, value in (stats or {}).items():
            scalars[f"staleness/{name}" if name in _STALENESS else f"Driver/{name}"] = float(value)
        if not again:
            self._told_rates = self._rates(step, timings, now)
        scalars.update(self._told_rates)
        user, user_histograms = self._user.drain()
        taken = {*scalars, *(histograms or {})} & {*user, *user_histograms}
        if taken:
            raise ValueError(
                f"A statistic of your own is called {min(taken)!r}, as one that the run reports: rename it."
            )
        axes: dict[str, Value] = {STEP: step, "iteration": iteration, "env_steps": env_steps, "episodes": episodes}
        axes |= {"seconds": self.seconds, "wall_time": time.time()}
        row = Row(axes, {**scalars, **user}, averages, {**(histograms or {}), **user_histograms})
        self._writers.write(row)
        self._held += 1
        if self._held >= self._max_queue or now - self._flushed_at >= self._flush_secs:
            self.flush()

    def _metric_scalars(self, metrics: Iterable[StepMetric]) -> tuple[dict[str, Value], dict[str, float], float | None]:
        """All values by tag, the averages by name, and the episodes so far.

        An average over no episode is left out, not shown as 0, and so is a metric whose result is None. In a stretch
        without a finished episode, the longest open one is told.
        """
        scalars: dict[str, Value] = {}
        averages: dict[str, float] = {}
        ended, longest_open = None, None
        for metric in metrics:
            if isinstance(metric, (NumberOfEpisodes, EnvironmentSteps)):
                scalars[f"Metrics/{metric.name}"] = float(metric.result())
                ended = float(metric.result()) if isinstance(metric, NumberOfEpisodes) else ended
                continue
            if isinstance(metric, AverageEpisodeLengthMetric):
                longest_open = metric.longest_open()
            if isinstance(metric, EpisodeAverage):
                if not metric.num_episodes():
                    continue
                scalars[f"Metrics/{metric.name}_std"] = metric.std()
            value = _number(metric)
            if value is not None:
                averages[metric.name] = value
        scalars.update((f"Metrics/{name}", value) for name, value in averages.items())
        if ended is not None and longest_open is not None and ended == (self._last_ended or 0.0):
            scalars["Metrics/LongestOpenEpisode"] = longest_open
        self._last_ended = ended if ended is not None else self._last_ended
        return scalars, averages, ended

    def _rates(self, step: int, timings: Timings | None, now: float) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._last_rate is not None and now > self._last_rate[1]:
            found["global_steps_per_sec"] = (step - self._last_rate[0]) / (now - self._last_rate[1])
        self._last_rate = (step, now)
        if timings is not None:
            if self._last_timings is not None:
                before, then = self._last_timings
                spent = shares(before, timings, now - then)
                found.update((f"Time/{name}", share) for name, share in (spent.scalars() if spent else {}).items())
            self._last_timings = (timings, now)
        return found

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Writes a text for TensorBoard at once."""
        self._events.text(tag, markdown, step)
        self._events.flush()

    def hparams(self, values: Mapping[str, bool | int | float | str], group: str, step: int) -> None:
        """Writes the settings of the run for TensorBoard at once; arguments as in `SummaryWriter.hparams`."""
        self._events.hparams(values, group, step)
        self._events.flush()

    def flush(self) -> None:
        """Hands all that is held back to the operating system."""
        self._held, self._flushed_at = 0, time.monotonic()
        self._writers.flush()
        if self._episodes is not None:
            self._episodes.flush()

    def close(self) -> None:
        """Writes all that is held back and closes the files; may be called any number of times."""
        self._writers.close()
        self._events.close()
        if self._episodes is not None:
            self._episodes.close()

    def __enter__(self) -> StatsReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _number(metric: Reported) -> float | None:
    """The result of a metric, None where it has none yet; raises ValueError where it is no number."""
    value = metric.result()
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        shown = textwrap.shorten(repr(value), 100, placeholder=" ...")
        raise ValueError(
            f"The metric {metric.name!r} gave {shown} for a result(): return one number, or None while there is nothing to "
            "report."
        ) from None
