"""Episodes of single agents, of environments in which several act: counts and averages of each behavior and slot.

What an agent sees at a row tells what its last action has led to, so that its reward there belongs to the action before.
An episode of k actions has length k, begins where the slot is FIRST and ends where it is LAST. A slot that is MID where
the episode of the environment ends is cut: its episode ends there too. Episodes that are open when a new one of the
environment begins are dropped, and so is an agent that never came to see what an action had led to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from alf.data_structures import StepType
from alf.metrics.metrics import Window, episode_sums

_FIRST, _MID, _LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
_MIN_WINDOW = 10
# Where an agent learns from other rewards than the environment gives, these stand beside them under this name.
UNSHAPED_REWARD = "unshaped_reward"
# Of a behavior with more slots, numbers are told of all of them together only.
MOST_SLOTS = 16


class Ended(NamedTuple):
    """The n episodes of one behavior that have ended in a segment, in the order of time.

    Attributes:
      row: int64 [n], of the batched environment.
      slot: int64 [n].
      returns: float64 [n], undiscounted.
      lengths: int64 [n], in actions.
      cut: bool [n], whether the environment's end, not the agent's own, was what ended it.
    """

    row: np.ndarray
    slot: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    cut: np.ndarray


class AgentStreams:
    """The open episodes of the K agents of one behavior in a batched environment of B rows.

    Attributes:
      total: float64 [B * K], their returns so far; those of a row lie side by side.
      length: float64 [B * K], their actions so far.
    """

    def __init__(self, batch: int, count: int) -> None:
        """Creates them; nothing is open.

        Args:
          batch: B.
          count: K.
        """
        self._count = count
        self.total, self.length = np.zeros(batch * count), np.zeros(batch * count)

    def take(self, env_step_type: np.ndarray, step_type: np.ndarray, reward: np.ndarray) -> Ended:
        """Takes in T rows.

        Args:
          env_step_type: int [T, B], of the environment.
          step_type: int [T, B, K], of the slots; any number above LAST is idle.
          reward: float [T, B, K].

        Returns:
          the episodes that end in them.
        """
        rows = len(step_type)
        is_last = step_type == _LAST
        decided = is_last | (step_type == _MID)
        closes = (env_step_type == _LAST)[..., np.newaxis]
        ends = is_last | (closes & decided)
        starts = (step_type == _FIRST) | (env_step_type == _FIRST)[..., np.newaxis]
        starts[1:] |= ends[:-1]
        # Row t of stream s, which is slot s % K of row s // K of the batch, is at s * T + t from here on.
        flat_decided = _by_stream(decided)
        start_at, end_at = (np.flatnonzero(_by_stream(x)) for x in (starts, ends))
        in_time_order = np.argsort(end_at % rows, kind="stable")
        last = np.arange(len(self.total)) * rows + rows - 1
        ended_last = ends[-1].ravel()

        def sums(amounts: np.ndarray, opened: np.ndarray) -> np.ndarray:
            running = np.cumsum(amounts, axis=1, dtype=np.float64).ravel()
            found = episode_sums(running, opened, start_at, end_at, rows)[in_time_order]
            opened[:] = np.where(ended_last, 0.0, episode_sums(running, opened, start_at, last, rows))
            return found

        returns = sums(np.where(flat_decided, _by_stream(reward), 0.0), self.total)
        lengths = sums(flat_decided, self.length)
        end_at = end_at[in_time_order]
        stream = end_at // rows
        cut = ~_by_stream(is_last).ravel()[end_at]
        return Ended(stream // self._count, stream % self._count, returns, lengths.astype(np.int64), cut)


def _by_stream(x: np.ndarray) -> np.ndarray:
    """From [T, B, K] to [B * K, T], in memory as well."""
    return np.ascontiguousarray(x.reshape(len(x), -1).T)


def agent_rows(trajectory: Any, behavior: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `AgentStreams.take` needs of one behavior, with the rewards that the environment gives.

    Args:
      trajectory: [T, B, ...] or, of a single step, [B, ...], with the observations of an environment with agents.
      behavior: its name.
    """
    part = trajectory.observation[behavior]
    env_step_type, step_type, reward = (
        np.asarray(x) for x in (trajectory.step_type, part["step_type"], part.get(UNSHAPED_REWARD, part["reward"]))
    )
    if env_step_type.ndim == 1:
        return env_step_type[np.newaxis], step_type[np.newaxis], reward[np.newaxis]
    return env_step_type, step_type, reward


class _Kept:
    """The episodes of one behavior: how many, and the last ones of all slots and of each."""

    def __init__(self, batch: int, count: int, num_envs: int) -> None:
        self.open = [AgentStreams(batch, count) for _ in range(num_envs)]
        self.episodes = 0
        self.returns, self.lengths = (Window(max(batch * count, _MIN_WINDOW)) for _ in range(2))
        slots = count if 1 < count <= MOST_SLOTS else 0
        self.by_slot = [Window(max(batch, _MIN_WINDOW)) for _ in range(slots)]

    def add(self, ended: Ended) -> None:
        self.episodes += len(ended.row)
        self.returns.extend(ended.returns)
        self.lengths.extend(ended.lengths)
        for slot, window in enumerate(self.by_slot):
            window.extend(ended.returns[ended.slot == slot])

    def state(self) -> dict[str, Any]:
        return {
            "episodes": np.int64(self.episodes),
            "returns": self.returns.array(),
            "lengths": self.lengths.array(),
            "total": np.concatenate([x.total for x in self.open]),
            "length": np.concatenate([x.length for x in self.open]),
            **{f"slot_{slot}": window.array() for slot, window in enumerate(self.by_slot)},
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.episodes = int(state["episodes"])
        self.returns.extend(np.asarray(state["returns"], np.float64))
        self.lengths.extend(np.asarray(state["lengths"], np.float64))
        for slot, window in enumerate(self.by_slot):
            window.extend(np.asarray(state.get(f"slot_{slot}", ()), np.float64))
        each = len(self.open[0].total)
        if np.shape(state["total"]) == (each * len(self.open),):
            for i, opened in enumerate(self.open):
                opened.total[:] = state["total"][i * each : (i + 1) * each]
                opened.length[:] = state["length"][i * each : (i + 1) * each]


class AgentEpisodes:
    """Keeps the episodes of single agents: an observer of drivers, which may be read in another thread.

    Windows are as those of the standard metrics, a slot of a row counting as an environment of its own: the last
    max(B * K, 10) episodes of a behavior, and the last max(B, 10) of a slot.
    """

    name = "AgentEpisodes"

    def __init__(
        self,
        slots: Mapping[str, int],
        num_envs: int,
        env_batch_size: int,
        listeners: tuple[Callable[[str, int, Ended], None], ...] = (),
    ) -> None:
        """Creates the observer.

        Args:
          slots: K by the name of each behavior.
          num_envs: N, batched environments (environment threads).
          env_batch_size: B, environments in each.
          listeners: called with the name of the behavior, the environment thread, and the episodes that have ended,
            where any have.
        """
        self._slots = dict(slots)
        self._num_envs = num_envs
        self._batch = env_batch_size
        self._listeners = listeners
        self._lock = threading.Lock()
        self._kept = self._nothing()

    def _nothing(self) -> dict[str, _Kept]:
        return {name: _Kept(self._batch, count, self._num_envs) for name, count in self._slots.items()}

    def __call__(self, trajectory: Any, env_thread_id: int = 0) -> None:
        """Takes in a segment.

        Args:
          trajectory: step_type int32 and observations, [T, B, ...] or, for a single step, [B, ...].
          env_thread_id: which batched environment made it.
        """
        thread = int(env_thread_id)
        with self._lock:
            for name, kept in self._kept.items():
                ended = kept.open[thread].take(*agent_rows(trajectory, name))
                if len(ended.row):
                    kept.add(ended)
                    for listener in self._listeners:
                        listener(name, thread, ended)

    def averages(self) -> dict[str, float]:
        """`<behavior>/AverageReturn`, `<behavior>/AverageEpisodeLength`, and `<behavior>/<slot>/AverageReturn`.

        The last one where there are several slots, up to `MOST_SLOTS`. What has no episode yet is left out.
        """
        found: dict[str, float] = {}
        with self._lock:
            for name, kept in self._kept.items():
                if kept.returns.size:
                    found[f"{name}/AverageReturn"] = float(kept.returns.array().mean())
                    found[f"{name}/AverageEpisodeLength"] = float(kept.lengths.array().mean())
                for slot, window in enumerate(kept.by_slot):
                    if window.size:
                        found[f"{name}/{slot}/AverageReturn"] = float(window.array().mean())
        return found

    def scalars(self) -> dict[str, float]:
        """The averages, and `<behavior>/NumberOfEpisodes`, `<behavior>/AverageReturn_std`."""
        found = self.averages()
        found |= {f"{name}/AverageReturn_std": std for name, (_, std, _) in self.returns().items()}
        with self._lock:
            return found | {f"{name}/NumberOfEpisodes": float(kept.episodes) for name, kept in self._kept.items()}

    def returns(self) -> dict[str, tuple[float, float, int]]:
        """By behavior: mean return, standard deviation, and how many episodes they are over; those without are left out."""
        with self._lock:
            windows = {name: kept.returns.array() for name, kept in self._kept.items() if kept.returns.size}
        return {name: (float(x.mean()), float(x.std()), len(x)) for name, x in windows.items()}

    def state_dict(self) -> dict[str, np.ndarray]:
        """What `load_state_dict` needs to go on from here, as arrays of the caller's own."""
        with self._lock:
            states = {name: kept.state() for name, kept in self._kept.items()}
            return {f"{name}/{key}": np.array(v) for name, state in states.items() for key, v in state.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over a state; unknown behaviors, and open episodes of another number of environments, are dropped."""
        with self._lock:
            self._kept = self._nothing()
            for name, kept in self._kept.items():
                of_one = {key.removeprefix(f"{name}/"): v for key, v in state.items() if key.startswith(f"{name}/")}
                if of_one:
                    kept.load(of_one)
