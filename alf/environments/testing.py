"""Environments for tests of what lies above: one that counts, and one that fails on request."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.environments.batch_wrappers import BatchWrapper
from alf.environments.batched_environment import BatchedEnvironment


class CountingEnvironment(BatchedEnvironment):
    """B deterministic streams whose observations say where they are: (stream, episode, step).

    An episode of length k takes k actions: FIRST at step 0, LAST at step k. The reward encodes the action that led to
    a step and the step itself (`expected_reward`), so that order, completeness and the pairing of actions with rows can
    be proved from the data alone.
    """

    def __init__(
        self,
        batch_size: int,
        first_stream_id: int = 0,
        episode_lengths: Sequence[int] = (3, 5, 1, 4),
        terminate: Sequence[bool] = (True, False),
        num_actions: int = 5,
        dtype: type[np.generic] = np.float32,
    ) -> None:
        """Creates the environment.

        Args:
          batch_size: B.
          first_stream_id: the stream of row 0; row b is stream first_stream_id + b.
          episode_lengths: episode e of stream s takes episode_lengths[(s + e) % len] actions.
          terminate: episode e of stream s ends with discount 0 where terminate[(s + e) % len], else is truncated.
          num_actions: actions are int64 scalars in [0, num_actions).
          dtype: of the observation, float32 or int64.

        Raises:
          ValueError: a size or a length below 1.
        """
        super().__init__()
        if batch_size < 1 or num_actions < 1 or not episode_lengths or min(episode_lengths) < 1 or not terminate:
            raise ValueError(
                "CountingEnvironment needs batch_size, num_actions and all episode_lengths >= 1 and one terminate; got "
                f"{batch_size}, {num_actions}, {list(episode_lengths)} and {list(terminate)}."
            )
        self._streams = first_stream_id + np.arange(batch_size)
        self._lengths = np.asarray(episode_lengths)
        self._terminate = np.asarray(terminate)
        self._num_actions = num_actions
        self._dtype = dtype
        self._episode = np.full(batch_size, -1)
        self._position = np.zeros(batch_size, np.int64)

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self._streams)

    def observation_spec(self) -> array_spec.ArraySpec:
        """[3]: stream, episode, step."""
        return array_spec.ArraySpec((3,), self._dtype, "observation")

    def action_spec(self) -> array_spec.BoundedArraySpec:
        """A scalar int64 in [0, num_actions)."""
        return array_spec.BoundedArraySpec((), np.int64, 0, self._num_actions - 1, "action")

    @staticmethod
    def expected_reward(position: Any, action: Any) -> Any:
        """The reward at step `position` >= 1 that `action` led to: position + action / 64, exact in float32."""
        return np.asarray(position + np.asarray(action) / 64.0, np.float32)

    def _length(self) -> np.ndarray:
        return self._lengths[(self._streams + self._episode) % len(self._lengths)]

    def _reset(self) -> ts.TimeStep:
        self._episode = self._episode + 1
        self._position = np.zeros_like(self._position)
        return self._time_step(np.zeros(self.batch_size, np.int64))

    def _step(self, action: Any) -> ts.TimeStep:
        action = np.asarray(action)
        if action.shape != (self.batch_size,) or ((action < 0) | (action >= self._num_actions)).any():
            raise ValueError(
                f"CountingEnvironment takes {self.batch_size} actions in [0, {self._num_actions}); got {action!r}."
            )
        was_last = self._position == self._length()
        self._episode = self._episode + was_last
        self._position = np.where(was_last, 0, self._position + 1)
        return self._time_step(action)

    def _time_step(self, action: np.ndarray) -> ts.TimeStep:
        first, last = self._position == 0, self._position == self._length()
        terminated = last & self._terminate[(self._streams + self._episode) % len(self._terminate)]
        return ts.TimeStep(
            step_type=np.where(first, 0, np.where(last, 2, 1)).astype(np.int32),
            reward=np.where(first, np.float32(0), self.expected_reward(self._position, action)),
            discount=np.where(terminated, 0.0, 1.0).astype(np.float32),
            observation=np.stack([self._streams, self._episode, self._position], axis=1).astype(self._dtype),
        )


@dataclasses.dataclass
class StepCounter:
    """How many steps were taken; shared by the environments that a factory builds one after the other."""

    value: int = 0


class FaultyEnvironment(BatchWrapper):
    """A batched environment that raises, hangs, sleeps, gives NaN or loses a process at chosen calls of `step`.

    Calls are counted from 0 by `counter`: share one between the environments that a factory builds, and each fault
    happens once in the life of all of them.
    """

    def __init__(
        self,
        env: BatchedEnvironment,
        raise_at: Collection[int] = (),
        hang_at: Collection[int] = (),
        kill_at: Collection[int] = (),
        nan_at: Collection[int] = (),
        hang_secs: float = 3600.0,
        sleep_per_step: float = 0.0,
        error: BaseException | None = None,
        counter: StepCounter | None = None,
    ) -> None:
        """Wraps `env`.

        Args:
          env: what is wrapped, and closed with this.
          raise_at: calls that raise `error`.
          hang_at: calls that sleep `hang_secs` first.
          kill_at: calls before which a worker process of `env` is killed with SIGKILL.
          nan_at: calls whose reward is NaN in row 0.
          hang_secs: how long a hang lasts.
          sleep_per_step: seconds slept in each call.
          error: what is raised; RuntimeError by default.
          counter: counts the calls; a new one by default.
        """
        super().__init__(env)
        self._raise_at, self._hang_at = frozenset(raise_at), frozenset(hang_at)
        self._kill_at, self._nan_at = frozenset(kill_at), frozenset(nan_at)
        self._hang_secs = hang_secs
        self._sleep = sleep_per_step
        self._error = error or RuntimeError("fault injected by FaultyEnvironment")
        self._counter = counter or StepCounter()

    def _step(self, action: Any) -> ts.TimeStep:
        now = self._counter.value
        self._counter.value += 1
        if self._sleep:
            time.sleep(self._sleep)
        if now in self._hang_at:
            time.sleep(self._hang_secs)
        if now in self._kill_at:
            os.kill(self._env.worker_pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
        if now in self._raise_at:
            raise self._error
        step = self._env.step(action)
        if now in self._nan_at:
            reward = step.reward.copy()
            reward[0] = np.nan
            step = step._replace(reward=reward)
        return step
