"""An environment of episodes of fixed length, for tests that count."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np


class FixedEpisodes(gymnasium.Env):
    """Every episode takes `length` actions, or never ends with None; the reward of a step is its action, 0 or 1.

    Every other episode is a success. Class attributes: `resets` of all environments; `gate`, when set, holds each step.
    """

    resets = 0
    gate: threading.Event | None = None

    def __init__(self, length: int | None = 5, tells: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.tells = length, tells
        self.episode, self.time = 0, 0

    def _observe(self) -> np.ndarray:
        return np.array([self.episode % 7, self.time % 7], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        FixedEpisodes.resets += 1
        self.episode += 1
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        if FixedEpisodes.gate is not None:
            FixedEpisodes.gate.wait(30)
        self.time += 1
        info = {"is_success": self.episode % 2 == 1} if self.tells else {}
        return self._observe(), float(action), self.time == self.length, False, info
