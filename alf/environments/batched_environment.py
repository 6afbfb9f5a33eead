"""The one interface through which `alf` sees an environment: a batch of B copies stepped together."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts


class BatchedEnvironment(py_environment.PyEnvironment):
    """B environments stepped together; a TF-Agents `PyEnvironment` with `batched` True.

    `reset()` and `step(action)` return a `TimeStep` of numpy arrays with leading axis [B]: step_type int32, reward
    float32, discount float32 (0 exactly where the episode terminated; see `EpisodicLife` for lives), observation as in
    `observation_spec()`. A row that was LAST ignores its action and returns FIRST with reward 0 and discount 1. The
    arrays belong to the caller: the environment never writes to them again. Only one thread at a time may use an
    environment.

    Attributes:
      first_env_id: the id of row 0 among all environments of a driver, which sets it; row b is first_env_id + b. Errors
        name rows by it.
    """

    first_env_id: int = 0

    def __init__(self) -> None:
        super().__init__(handle_auto_reset=False)

    @property
    def batched(self) -> bool:
        """Always True."""
        return True

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """B."""

    @property
    def restarts(self) -> int:
        """How often an environment was rebuilt after it failed."""
        return 0

    @property
    def cuts(self) -> int:
        """How often all open episodes were cut short: as often as it was rebuilt, and for values that are not finite."""
        return self.restarts

    @property
    def successes(self) -> np.ndarray | None:
        """Bool [B]: which rows the last step was a success for, where the environment tells; None where it does not."""
        return None

    @property
    def lives(self) -> np.ndarray | None:
        """Int [B]: the lives that each row has left, where the environment tells; None where it does not."""
        return None

    @property
    def waited_until(self) -> float:
        """Until when, by `time.monotonic()`, it waited for the machine that runs it to come back; 0 where it never does.

        Such a wait may take any time: a call does not count as hanging for it.
        """
        return 0.0

    @property
    def frames_per_step(self) -> int:
        """Frames of a video game that one step, one decision of the agent, takes; 1 where there are none.

        Frames are steps times this; what passes inside a reset is not counted.
        """
        return 1

    def before_building(self) -> None:
        """Called once, before what is to act here is built or restored: a simulator may pause, for that may take long."""

    def after_building(self) -> None:
        """Called once, when all is built, before the first reset."""

    def enter_phase(self, phase: str) -> None:
        """Called when a run begins to use this environment for something else, before its next step or reset.

        Args:
          phase: "heatup", "train" or "test" (evaluation, in environments of its own).
        """

    @abc.abstractmethod
    def _reset(self) -> ts.TimeStep:
        """Starts B new episodes."""

    @abc.abstractmethod
    def _step(self, action: Any) -> ts.TimeStep:
        """Applies `action` [B, ...]."""

    def render(self, mode: str = "rgb_array") -> np.ndarray | None:
        """The picture of row 0, uint8 [height, width, 3]; raises NotImplementedError where there is none."""
        raise NotImplementedError(f"{type(self).__name__} has no picture to render.")
