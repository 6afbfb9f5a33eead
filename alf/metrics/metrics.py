"""Counts and averages over finished episodes, kept for every single environment.

A metric is called once a segment with a TF-Agents `Trajectory` [T, B] and the id of the environment thread that made
it. Rewards are those of the transition: `reward[t]` is the result of the action at row t. A row whose step_type is LAST
leads from one episode to the next; it counts nothing. An episode of k actions has length k.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gin
import numpy as np

from alf.data_structures import StepType

_FIRST = int(StepType.FIRST)
_LAST = int(StepType.LAST)
_MIN_WINDOW = 10


@runtime_checkable
class Reported(Protocol):
    """A metric that a trainer reports."""

    @property
    def name(self) -> str:
        """Under which the result is reported."""

    def result(self) -> Any:
        """The metric's value now: a number, or None while there is nothing to report."""


@runtime_checkable
class Resumable(Protocol):
    """A metric that goes on where a run is resumed."""

    @property
    def name(self) -> str:
        """Under which checkpoints hold the state."""

    def state_dict(self) -> Mapping[str, Any]:
        """What `load_state_dict` needs, arrays by name."""

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over a state."""


def check_reported(metrics: Sequence[Any]) -> None:
    """ValueError for what a trainer cannot report: a class in the place of its object, a name that is none or comes twice."""
    names: list[str] = []
    for metric in metrics:
        if isinstance(metric, type) or not isinstance(metric, Reported) or not callable(metric.result):
            what = f"the class {metric.__name__}" if isinstance(metric, type) else repr(metric)
            raise ValueError(
                f"metrics of a driver has {what}: a metric is an object with a name and a result(), in gin made by @name(), with "
                "parentheses; a function belongs into observers."
            )
        if not isinstance(metric.name, str) or not metric.name:
            kind = type(metric).__name__
            raise ValueError(
                f"The metric {kind} of a driver has the name {metric.name!r}: give it a text, name = {kind!r}."
            )
        if metric.name in names:
            own = f"own/{type(metric).__name__}"
            raise ValueError(
                f"A driver has two metrics called {metric.name!r}, of which reports and checkpoints would hold one: give yours "
                f"another name, in gin by {own}.name = 'Own{metric.name}' for @{own}()."
            )
        names.append(metric.name)


class StepMetric(abc.ABC):
    """A number computed from trajectories; may be read in one thread while another one feeds it."""

    def __init__(self, name: str, dtype: Any) -> None:
        self._name = name
        self._dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Under which the result is reported."""
        return self._name

    def __call__(self, trajectory: Any, env_thread_id: int = 0) -> None:
        """Takes in a segment.

        Args:
          trajectory: step_type, next_step_type int32 and reward float32, each [T, B] or, for a single step, [B].
          env_thread_id: which batched environment made it.
        """
        step_type, next_step_type, reward = (
            np.atleast_2d(np.asarray(x)) for x in (trajectory.step_type, trajectory.next_step_type, trajectory.reward)
        )
        with self._lock:
            self._update(step_type, next_step_type, reward, int(env_thread_id))

    def result(self) -> Any:
        """The metric's value now, a numpy scalar."""
        with self._lock:
            return self._dtype.type(self._result())

    def reset(self) -> None:
        """Forgets everything, open episodes too."""
        with self._lock:
            self._reset()

    def state_dict(self) -> dict[str, np.ndarray]:
        """What `load_state_dict` needs to go on from here, as arrays of the caller's own."""
        with self._lock:
            return {k: np.array(v) for k, v in self._state().items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over a state; open episodes of another number of environments are dropped."""
        with self._lock:
            self._load(state)

    @abc.abstractmethod
    def _update(self, step_type: np.ndarray, next_step_type: np.ndarray, reward: np.ndarray, thread: int) -> None: ...

    @abc.abstractmethod
    def _result(self) -> float: ...

    @abc.abstractmethod
    def _reset(self) -> None: ...

    @abc.abstractmethod
    def _state(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def _load(self, state: Mapping[str, np.ndarray]) -> None: ...


class _Counter(StepMetric):
    """Adds up a number of rows."""

    def __init__(self, name: str, dtype: Any) -> None:
        super().__init__(name, dtype)
        self._count = 0

    def _result(self) -> float:
        return self._count

    def _reset(self) -> None:
        self._count = 0

    def _state(self) -> dict[str, Any]:
        return {"count": np.int64(self._count)}

    def _load(self, state: Mapping[str, np.ndarray]) -> None:
        self._count = int(state["count"])


@gin.configurable(module="alf")
class NumberOfEpisodes(_Counter):
    """How many episodes have ended, over all environments."""

    def __init__(self, name: str = "NumberOfEpisodes", dtype: Any = np.int64) -> None:
        """Creates the metric.

        Args:
          name: under which it is reported.
          dtype: of the result, a numpy or TensorFlow dtype.
        """
        super().__init__(name, dtype)

    def _update(self, step_type: np.ndarray, next_step_type: np.ndarray, reward: np.ndarray, thread: int) -> None:
        self._count += int(np.count_nonzero((step_type != _LAST) & (next_step_type == _LAST)))


@gin.configurable(module="alf")
class EnvironmentSteps(_Counter):
    """How many actions were taken, over all environments; the way from LAST to FIRST is none."""

    def __init__(self, name: str = "EnvironmentSteps", dtype: Any = np.int64) -> None:
        """Creates the metric; arguments as in `NumberOfEpisodes`."""
        super().__init__(name, dtype)

    def _update(self, step_type: np.ndarray, next_step_type: np.ndarray, reward: np.ndarray, thread: int) -> None:
        self._count += int(np.count_nonzero(step_type != _LAST))


class Window:
    """The last `capacity` numbers, float64."""

    def __init__(self, capacity: int) -> None:
        self._values = np.zeros(capacity)
        self._end = 0
        self.size = 0

    def extend(self, values: np.ndarray) -> None:
        """Adds `values`, oldest first."""
        values = values[-len(self._values) :]
        index = (self._end + np.arange(len(values))) % len(self._values)
        self._values[index] = values
        self._end = (self._end + len(values)) % len(self._values)
        self.size = min(self.size + len(values), len(self._values))

    def array(self) -> np.ndarray:
        """What is kept, oldest first."""
        return np.roll(self._values, -self._end)[len(self._values) - self.size :]


def episode_sums(
    total: np.ndarray, open_sums: np.ndarray, start_at: np.ndarray, at: np.ndarray, length: int
) -> np.ndarray:
    """Sums from the start of an episode through the places `at`.

    Args:
      total: running sums of each environment, [B * T].
      open_sums: sums of the episodes that were open before the segment, [B].
      start_at: places where episodes start, ascending.
      at: places to sum through.
      length: T.
    """
    column = at // length
    found = np.searchsorted(start_at, at, side="right") - 1
    start = start_at[found] if len(start_at) else np.full(len(at), -1)
    inside = (found >= 0) & (start // length == column)
    before = np.where(start % length > 0, total[np.maximum(start, 1) - 1], 0.0)
    return total[at] + np.where(inside, -before, open_sums[column])


class EpisodeAverage(StepMetric):
    """The mean, over the last episodes that ended, of a sum over an episode."""

    def __init__(self, num_envs: int, env_batch_size: int, buffer_size: int | None, name: str, dtype: Any) -> None:
        super().__init__(name, dtype)
        if num_envs < 1 or env_batch_size < 1:
            raise ValueError(
                f"{name}: num_envs={num_envs} and env_batch_size={env_batch_size} must both be at least 1."
            )
        if buffer_size is not None and buffer_size < 1:
            raise ValueError(
                f"{name}: buffer_size={buffer_size} must be at least 1, or None for max(B, {_MIN_WINDOW})."
            )
        self._capacity = max(env_batch_size, _MIN_WINDOW) if buffer_size is None else buffer_size
        self._num_envs = num_envs
        self._batch = env_batch_size
        self._reset()

    @abc.abstractmethod
    def _amounts(self, reward: np.ndarray) -> np.ndarray:
        """What each transition adds to its episode, [T, B]."""

    def _update(self, step_type: np.ndarray, next_step_type: np.ndarray, reward: np.ndarray, thread: int) -> None:
        length, batch = step_type.shape
        if batch != self._batch or not 0 <= thread < self._num_envs:
            raise ValueError(
                f"{self.name} was made for num_envs={self._num_envs} and env_batch_size={self._batch}, "
                f"and got a batch of {batch} from environment thread {thread}."
            )
        open_sums = self._open[thread * batch : (thread + 1) * batch]
        acting = step_type != _LAST
        ends = acting & (next_step_type == _LAST)
        starts = step_type == _FIRST
        starts[1:] |= ends[:-1]
        # Rows of one environment lie side by side from here on: row t of environment j is at j * T + t.
        amounts = np.where(acting, self._amounts(reward), 0.0).T.astype(np.float64, order="C")
        total = np.cumsum(amounts, axis=1).ravel()
        start_at = np.flatnonzero(starts.T)
        end_at = np.flatnonzero(ends.T)
        if len(end_at):
            in_time_order = np.argsort(end_at % length, kind="stable")
            self._window.extend(episode_sums(total, open_sums, start_at, end_at, length)[in_time_order])
        last = np.arange(batch) * length + length - 1
        open_sums[:] = np.where(ends[-1], 0.0, episode_sums(total, open_sums, start_at, last, length))

    def std(self) -> float:
        """Standard deviation over the episodes in the window; 0 without any."""
        with self._lock:
            return float(np.std(self._window.array())) if self._window.size else 0.0

    def num_episodes(self) -> int:
        """How many episodes the average is over."""
        with self._lock:
            return self._window.size

    def values(self) -> np.ndarray:
        """The episodes in the window, oldest first, float64."""
        with self._lock:
            return self._window.array()

    def longest_open(self) -> float:
        """The largest sum of an episode that has not ended."""
        with self._lock:
            return float(self._open.max())

    def _result(self) -> float:
        return float(np.mean(self._window.array())) if self._window.size else 0.0

    def _reset(self) -> None:
        self._window = Window(self._capacity)
        self._open = np.zeros(self._num_envs * self._batch)

    def _state(self) -> dict[str, Any]:
        return {"window": self._window.array(), "open": self._open}

    def _load(self, state: Mapping[str, np.ndarray]) -> None:
        self._reset()
        self._window.extend(np.asarray(state["window"], np.float64))
        if np.shape(state["open"]) == self._open.shape:
            self._open[:] = state["open"]


@gin.configurable(module="alf")
class AverageReturnMetric(EpisodeAverage):
    """Mean undiscounted return of the last episodes; 0 before the first one ends."""

    def __init__(
        self,
        num_envs: int,
        env_batch_size: int,
        buffer_size: int | None = None,
        name: str = "AverageReturn",
        dtype: Any = np.float32,
    ) -> None:
        """Creates the metric.

        Args:
          num_envs: N, batched environments (environment threads).
          env_batch_size: B, environments in each.
          buffer_size: how many episodes the mean is over; by default max(B, 10).
          name: under which it is reported.
          dtype: of the result, a numpy or TensorFlow dtype.

        Raises:
          ValueError: a size is below 1.
        """
        super().__init__(num_envs, env_batch_size, buffer_size, name, dtype)

    def _amounts(self, reward: np.ndarray) -> np.ndarray:
        return reward


@gin.configurable(module="alf")
class AverageEpisodeLengthMetric(EpisodeAverage):
    """Mean number of actions of the last episodes; 0 before the first one ends."""

    def __init__(
        self,
        num_envs: int,
        env_batch_size: int,
        buffer_size: int | None = None,
        name: str = "AverageEpisodeLength",
        dtype: Any = np.float32,
    ) -> None:
        """Creates the metric; arguments as in `AverageReturnMetric`."""
        super().__init__(num_envs, env_batch_size, buffer_size, name, dtype)

    def _amounts(self, reward: np.ndarray) -> np.ndarray:
        return np.ones_like(reward)


def standard_metrics(num_envs: int, env_batch_size: int) -> list[StepMetric]:
    """The metrics every training driver has, in the order that `get_metrics()` lists them."""
    return [
        NumberOfEpisodes(),
        EnvironmentSteps(),
        AverageReturnMetric(num_envs, env_batch_size),
        AverageEpisodeLengthMetric(num_envs, env_batch_size),
    ]
