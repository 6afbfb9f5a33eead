"""Small batched environments with known best behaviour, for tests of algorithms and drivers."""

from __future__ import annotations

import abc
import enum
from typing import Any

import gin
import numpy as np
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.environments.batched_environment import BatchedEnvironment


class ActionType(enum.Enum):
    """Kind of action: Discrete is int64 in {0, 1}, Continuous float32 in [0, 1]; shape (1,) both."""

    Discrete = 0
    Continuous = 1


class UnittestEnv(BatchedEnvironment):
    """Base of the test environments: B rows that share one clock.

    An episode has `episode_length` time steps, FIRST and LAST included; LAST has discount 0. Observations are float32
    [obs_dim], actions have shape (1,).
    """

    def __init__(
        self,
        batch_size: int,
        episode_length: int,
        obs_dim: int = 1,
        action_type: ActionType = ActionType.Discrete,
        seed: int | None = None,
    ) -> None:
        """Creates the environment.

        Args:
          batch_size: B.
          episode_length: time steps of an episode, at least 2.
          obs_dim: size of an observation.
          action_type: discrete or continuous.
          seed: of the observations' random numbers; None for fresh entropy.

        Raises:
          ValueError: a size is out of its range.
        """
        super().__init__()
        if batch_size < 1 or episode_length < 2 or obs_dim < 1:
            raise ValueError(
                "A test environment needs batch_size >= 1, episode_length >= 2 and obs_dim >= 1; "
                f"got {batch_size}, {episode_length} and {obs_dim}."
            )
        self._batch_size = batch_size
        self._episode_length = episode_length
        self._obs_dim = obs_dim
        self._action_type = action_type
        self._rng = np.random.default_rng(seed)
        self._clock = 0

    @property
    def batch_size(self) -> int:
        """B."""
        return self._batch_size

    def observation_spec(self) -> array_spec.ArraySpec:
        """float32 [obs_dim]."""
        return array_spec.ArraySpec((self._obs_dim,), np.float32, "observation")

    def action_spec(self) -> array_spec.BoundedArraySpec:
        """Shape (1,): int64 in {0, 1} or float32 in [0, 1]."""
        if self._action_type is ActionType.Discrete:
            return array_spec.BoundedArraySpec((1,), np.int64, 0, 1, "action")
        return array_spec.BoundedArraySpec((1,), np.float32, 0.0, 1.0, "action")

    @abc.abstractmethod
    def _observe(self) -> np.ndarray:
        """The observation [B, obs_dim] at the present clock; called once for each time step, after `_reward`."""

    @abc.abstractmethod
    def _reward(self, action: np.ndarray | None) -> np.ndarray:
        """The reward [B] of `action` float32 [B], which led to the present clock; None at FIRST."""

    def _reset(self) -> ts.TimeStep:
        self._clock = 0
        return self._time_step(ts.StepType.FIRST, None, 1.0)

    def _step(self, action: Any) -> ts.TimeStep:
        if self._clock == self._episode_length - 1:
            return self._reset()
        self._clock += 1
        flat = np.asarray(action, np.float32).reshape(self._batch_size)
        if self._clock == self._episode_length - 1:
            return self._time_step(ts.StepType.LAST, flat, 0.0)
        return self._time_step(ts.StepType.MID, flat, 1.0)

    def _time_step(self, step_type: np.ndarray, action: np.ndarray | None, discount: float) -> ts.TimeStep:
        reward = self._reward(action)
        return ts.TimeStep(
            step_type=np.full(self._batch_size, step_type, np.int32),
            reward=reward.astype(np.float32),
            discount=np.full(self._batch_size, discount, np.float32),
            observation=self._observe(),
        )


@gin.configurable(module="alf")
class ValueUnittestEnv(UnittestEnv):
    """Reward 1 on every time step, FIRST included; the observation is all ones. For value functions."""

    def _observe(self) -> np.ndarray:
        return np.ones((self._batch_size, self._obs_dim), np.float32)

    def _reward(self, action: np.ndarray | None) -> np.ndarray:
        del action
        return np.ones(self._batch_size)


@gin.configurable(module="alf")
class PolicyUnittestEnv(UnittestEnv):
    """Reward 1 - |observation - action|: the best policy repeats the observation, a fresh random bit each step.

    The first component of the observation counts; FIRST has reward 0.
    """

    _bits: np.ndarray

    def _observe(self) -> np.ndarray:
        self._bits = self._rng.integers(2, size=(self._batch_size, self._obs_dim)).astype(np.float32)
        return self._bits.copy()

    def _reward(self, action: np.ndarray | None) -> np.ndarray:
        if action is None:
            return np.zeros(self._batch_size)
        return 1.0 - np.abs(self._bits[:, 0] - action)


@gin.configurable(module="alf")
class RNNPolicyUnittestEnv(UnittestEnv):
    """A memory task: the first observation is +1 or -1, all later ones 0; after `gap` steps recalling it earns.

    The action, mapped from [0, 1] to [-1, 1], earns 1 where it equals the first observation and 0 where it is the
    opposite, in each step after the first `gap` ones.
    """

    _first: np.ndarray

    def __init__(
        self,
        batch_size: int,
        episode_length: int,
        gap: int = 3,
        action_type: ActionType = ActionType.Discrete,
        obs_dim: int = 1,
        seed: int | None = None,
    ) -> None:
        """Creates the environment.

        Args:
          batch_size: B.
          episode_length: time steps of an episode, more than `gap`.
          gap: steps without reward at the start.
          action_type: discrete or continuous.
          obs_dim: size of an observation; all components are alike.
          seed: of the first observations; None for fresh entropy.

        Raises:
          ValueError: a size is out of its range.
        """
        super().__init__(batch_size, episode_length, obs_dim, action_type, seed)
        if not 0 <= gap < episode_length - 1:
            raise ValueError(
                f"gap must be in [0, {episode_length - 2}] for episode_length {episode_length}, so that some step "
                f"earns; got {gap}."
            )
        self._gap = gap

    def _observe(self) -> np.ndarray:
        if self._clock:
            return np.zeros((self._batch_size, self._obs_dim), np.float32)
        self._first = 2.0 * self._rng.integers(2, size=self._batch_size) - 1.0
        return np.repeat(self._first[:, None], self._obs_dim, axis=1).astype(np.float32)

    def _reward(self, action: np.ndarray | None) -> np.ndarray:
        if action is None or self._clock <= self._gap:
            return np.zeros(self._batch_size)
        return 1.0 - 0.5 * np.abs(2.0 * action - 1.0 - self._first)


@gin.configurable(module="alf")
class MaskedUnittestEnv(UnittestEnv):
    """A choice among `num_actions`, some of them forbidden: the reward is the observed number of the chosen action.

    Observations are {"observation": float32 [num_actions] in [0, 1), "mask": int8 [num_actions], 1 where the action is
    allowed}, both fresh each step. At LAST nothing is allowed.
    """

    _offers: np.ndarray
    _mask: np.ndarray

    def __init__(self, batch_size: int, episode_length: int, num_actions: int = 4, seed: int | None = None) -> None:
        """Creates the environment; `num_actions` is at least 2, the rest as in `UnittestEnv`."""
        super().__init__(batch_size, episode_length, num_actions, ActionType.Discrete, seed)

    def observation_spec(self) -> Any:
        """See the class."""
        mask = array_spec.BoundedArraySpec((self._obs_dim,), np.int8, 0, 1, "mask")
        return {"observation": super().observation_spec(), "mask": mask}

    def action_spec(self) -> array_spec.BoundedArraySpec:
        """int64 [], the number of an action."""
        return array_spec.BoundedArraySpec((), np.int64, 0, self._obs_dim - 1, "action")

    def _observe(self) -> Any:
        shape = (self._batch_size, self._obs_dim)
        self._offers = self._rng.random(shape, np.float32)
        self._mask = self._rng.random(shape) < 0.5
        self._mask[np.arange(self._batch_size), self._rng.integers(self._obs_dim, size=self._batch_size)] = True
        allowed = self._mask if self._clock < self._episode_length - 1 else np.zeros(shape, bool)
        return {"observation": self._offers.copy(), "mask": allowed.astype(np.int8)}

    def _reward(self, action: np.ndarray | None) -> np.ndarray:
        if action is None:
            return np.zeros(self._batch_size)
        rows, chosen = np.arange(self._batch_size), action.astype(np.int64)
        if not self._mask[rows, chosen].all():
            raise ValueError(f"An action is forbidden: {chosen.tolist()} where {self._mask.tolist()} is allowed.")
        return self._offers[rows, chosen]
