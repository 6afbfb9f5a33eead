"""One row for each finished episode, in a file of its own."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import gin
import numpy as np
from absl import logging

from alf.data_structures import StepType
from alf.metrics.agent_log import AgentLog
from alf.metrics.episode_rows import EpisodeRows
from alf.metrics.tables import CsvFile, Value

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
# A traced episode is cut here, so that one that never ends fills no memory.
_MOST_TRACED = 100_000

PerStep = Callable[[Any], np.ndarray]


class _Open:
    """The episodes that are open in one batched environment: running statistics of S signals in B rows."""

    def __init__(self, signals: int, batch: int) -> None:
        shape = (signals, batch)
        self.length = np.zeros(batch, np.int64)
        self.total = np.zeros(shape)
        self.mean = np.zeros(shape)
        self.m2 = np.zeros(shape)
        self.most = np.full(shape, -np.inf)
        self.least = np.full(shape, np.inf)
        self.discounted = np.zeros(batch)
        self.weight = np.ones(batch)

    def clear(self, rows: np.ndarray) -> None:
        """Forgets the rows where `rows` [B] is true."""
        for array, start in (
            (self.length, 0),
            (self.total, 0.0),
            (self.mean, 0.0),
            (self.m2, 0.0),
            (self.most, -np.inf),
            (self.least, np.inf),
            (self.discounted, 0.0),
            (self.weight, 1.0),
        ):
            array[..., rows] = start

    def take(self, values: np.ndarray, acting: np.ndarray, gamma: float) -> None:
        """Takes in a step: values [S, B], the reward first; only rows where `acting` [B] count."""
        self.length += acting
        delta = values - self.mean
        self.total += np.where(acting, values, 0.0)
        self.mean += np.where(acting, delta / np.maximum(self.length, 1), 0.0)
        self.m2 += np.where(acting, delta * (values - self.mean), 0.0)
        np.maximum(self.most, values, out=self.most, where=acting)
        np.minimum(self.least, values, out=self.least, where=acting)
        self.discounted += np.where(acting, self.weight * values[0], 0.0)
        self.weight *= np.where(acting, gamma, 1.0)


class Signal:
    """Values of user code, of which each episode row tells mean, deviation, maximum and minimum."""

    def __init__(self, name: str, per_step: PerStep | None, also: Callable[[Any], None]) -> None:
        self.name = name
        self.per_step = per_step
        self._also = also
        self._lock = threading.Lock()
        self._count, self._mean, self._m2 = 0, 0.0, 0.0
        self._most, self._least = -np.inf, np.inf

    def add(self, values: Any) -> None:
        """Adds a number or an array of them; from any thread.

        Raises:
          ValueError: the signal is computed from trajectories.
        """
        if self.per_step is not None:
            raise ValueError(f"The signal {self.name!r} is computed by its per_step function: nothing can be added.")
        with self._lock:
            for value in np.asarray(values, np.float64).ravel().tolist():
                self._count += 1
                delta = value - self._mean
                self._mean += delta / self._count
                self._m2 += delta * (value - self._mean)
                self._most, self._least = max(self._most, value), min(self._least, value)
        self._also(values)

    def drain(self) -> dict[str, Value]:
        """The statistics of what was added since the last call; NaN where nothing was."""
        with self._lock:
            count, mean, m2, most, least = self._count, self._mean, self._m2, self._most, self._least
            self._count, self._mean, self._m2, self._most, self._least = 0, 0.0, 0.0, -np.inf, np.inf
        if not count:
            return _columns(self.name, float("nan"), float("nan"), float("nan"), float("nan"))
        return _columns(self.name, mean, (m2 / count) ** 0.5, most, least)


def _columns(name: str, mean: float, stdev: float, most: float, least: float) -> dict[str, Value]:
    return {f"{name}/Mean": mean, f"{name}/Stdev": stdev, f"{name}/Max": most, f"{name}/Min": least}


@gin.configurable(module="alf")
class EpisodeLog:
    """Writes `episodes.csv`: an observer of drivers, called with trajectories [T, B] in one thread.

    Columns: `episode`, what `at` was told last, the environment (`thread`, `row`), `length`, `return`,
    `training_return` (NaN in the heat-up), `discounted_return`, and mean, deviation, maximum and minimum over the
    episode of the reward and of every signal.

    Attributes:
      agents: writes `agents.csv` beside it, once it listens to `AgentEpisodes`.
      name: under which checkpoints have `state_dict`.
    """

    name = "EpisodeLog"

    def __init__(
        self,
        directory: str,
        flush_every: int = 100,
        discount: float = 0.99,
        trace_every: int = 0,
        console: bool = False,
    ) -> None:
        """Creates the log; files appear with the first episode.

        Args:
          directory: of `episodes.csv`.
          flush_every: rows that may be held back until the next `flush`.
          discount: of `discounted_return`.
          trace_every: of every so many episodes of the first row of the first environment, all steps are written, to
            `episodes/<episode>.csv`; 0 writes none.
          console: log a line for each episode as well.

        Raises:
          ValueError: an argument is out of its range.
        """
        if flush_every < 1 or trace_every < 0 or not 0.0 <= discount <= 1.0:
            raise ValueError(
                f"EpisodeLog: flush_every={flush_every} must be at least 1, trace_every={trace_every} at least 0, and "
                f"discount={discount} in [0, 1]."
            )
        self._directory = directory
        self._rows = EpisodeRows(os.path.join(directory, "episodes.csv"), flush_every)
        self.agents = AgentLog(directory, flush_every)
        self._discount = discount
        self._trace_every = trace_every
        self._console = console
        self._lock = threading.Lock()
        self._signals: list[Signal] = []
        self._open: dict[int, _Open] = {}
        self._trace: list[dict[str, Value]] = []
        self._traced_row_ended = 0
        self._episodes = 0
        self._now: Mapping[str, Value] = {}
        self._kept: Mapping[str, np.ndarray] = {}

    def register(self, signal: Signal) -> None:
        """Adds the columns of a signal; for one that is computed from trajectories, episodes that are open begin anew."""
        with self._lock:
            self._signals.append(signal)
            if signal.per_step is not None:
                self._open.clear()

    def state_dict(self) -> dict[str, np.ndarray]:
        """How many rows there are, which are then in the files, as arrays."""
        self.flush()
        return {"episodes": np.array(self._episodes), "agents": np.array(self.agents.count)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Has `resume` keep no more rows than there were."""
        self._kept = dict(state)

    def resume(self, step: int) -> None:
        """Removes rows above a global step, and those that came after `state_dict`; numbers count on from what stays.

        Traces of episodes whose rows are gone go too: others get their numbers.
        """
        episodes, agents = (float(self._kept.get(name, np.inf)) for name in ("episodes", "agents"))
        self._episodes = self._rows.resume("episode", step, episodes)
        self.agents.resume(step, agents)
        with self._rows.told():
            for path in glob.glob(os.path.join(glob.escape(self._directory), "episodes", "*.csv")):
                number = os.path.basename(path).removesuffix(".csv")
                if number.isdecimal() and int(number) > self._episodes:
                    os.remove(path)

    def at(self, **now: Value) -> None:
        """Tells where the run stands: columns of the rows to come, such as global_step and in_heatup."""
        self._now = now
        self.agents.at(now)

    def __call__(self, trajectory: Any, env_thread_id: int = 0) -> None:
        """Takes in a segment; arguments as of `alf.metrics.metrics.StepMetric`."""
        step_type, following, reward = (
            np.atleast_2d(np.asarray(x)) for x in (trajectory.step_type, trajectory.next_step_type, trajectory.reward)
        )
        with self._lock:
            computed = [s for s in self._signals if s.per_step is not None]
            series = [reward, *(_per_step(s, trajectory, reward.shape) for s in computed)]
            values = np.stack([np.asarray(x, np.float64) for x in series])
            rows = self._take(step_type, following, values, int(env_thread_id), [s.name for s in computed])
            if rows:
                self._store(rows)

    def _take(
        self, step_type: np.ndarray, following: np.ndarray, values: np.ndarray, thread: int, names: list[str]
    ) -> list[dict[str, Value]]:
        """The rows of the episodes that end; values are [S, T, B]."""
        opened = self._open.get(thread)
        if opened is None:
            opened = self._open[thread] = _Open(len(values), step_type.shape[1])
        rows = []
        for t in range(len(step_type)):
            first, acting = step_type[t] == _FIRST, step_type[t] != _LAST
            if first.any():
                opened.clear(first)
                if first[0] and thread == 0:
                    self._trace = []  # Of an episode that was left open.
            opened.take(values[:, t], acting, self._discount)
            ended = acting & (following[t] == _LAST)
            if self._trace_every and thread == 0 and acting[0]:
                self._trace_step(values[:, t, 0], names, bool(ended[0]))
            if ended.any():
                rows += [self._row(opened, thread, int(j), names) for j in np.flatnonzero(ended)]
                opened.clear(ended)
        return rows

    def _row(self, opened: _Open, thread: int, j: int, names: list[str]) -> dict[str, Value]:
        self._episodes += 1
        total, length = float(opened.total[0, j]), int(opened.length[j])
        row: dict[str, Value] = {
            "episode": self._episodes,
            **self._now,
            "thread": thread,
            "row": j,
            "length": length,
            "return": total,
            "training_return": float("nan") if self._now.get("in_heatup") else total,
            "discounted_return": float(opened.discounted[j]),
        }
        for i, name in enumerate(["Reward", *names]):
            stdev = (float(opened.m2[i, j]) / length) ** 0.5
            row |= _columns(name, float(opened.mean[i, j]), stdev, float(opened.most[i, j]), float(opened.least[i, j]))
        return row

    def _store(self, rows: list[dict[str, Value]]) -> None:
        shared: dict[str, Value] = {}
        for signal in self._signals:
            if signal.per_step is None:
                shared |= signal.drain()
        self._rows.append({**row, **shared} for row in rows)
        if self._console:
            for row in rows:
                logging.info("%s", _line(row))

    def _trace_step(self, values: np.ndarray, names: list[str], ended: bool) -> None:
        if self._traced_row_ended % self._trace_every == 0 and len(self._trace) < _MOST_TRACED:
            so_far = float(self._trace[-1]["accumulated_reward"] or 0.0) if self._trace else 0.0
            step: dict[str, Value] = {"step": len(self._trace), "reward": float(values[0])}
            step["accumulated_reward"] = so_far + float(values[0])
            self._trace.append(step | dict(zip(names, values[1:].tolist(), strict=True)))
        if ended:
            self._traced_row_ended += 1
            steps, self._trace = self._trace, []
            if steps:
                self._write_trace(steps)

    def _write_trace(self, steps: list[dict[str, Value]]) -> None:
        file = CsvFile(os.path.join(self._directory, "episodes", f"{self._episodes + 1}.csv"))
        with self._rows.told():
            file.cut("step", -1)
            for step in steps:
                file.append(step)
            file.close()

    def flush(self) -> None:
        """Hands all rows to the operating system."""
        with self._lock:
            self._rows.flush()
        self.agents.flush()

    def close(self) -> None:
        """Writes what is held back; may be called any number of times."""
        with self._lock:
            self._rows.close()
            self.agents.close()


def _per_step(signal: Signal, trajectory: Any, shape: tuple[int, ...]) -> np.ndarray:
    assert signal.per_step is not None
    values = np.asarray(signal.per_step(trajectory))
    if values.size != int(np.prod(shape)):
        raise ValueError(
            f"The per_step function of signal {signal.name!r} gave an array of shape {values.shape} for steps of shape "
            f"{shape}: it must give one number a step."
        )
    return values.reshape(shape)


def _line(row: Mapping[str, Value]) -> str:
    return (
        f"Episode {row['episode']} (environment {row['thread']}.{row['row']}): return {row['return']:.2f}, "
        f"{row['length']} steps, iteration {row.get('iteration', 0)}" + (", heat-up." if row.get("in_heatup") else ".")
    )
