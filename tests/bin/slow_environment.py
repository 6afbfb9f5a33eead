"""An environment whose steps take half a second, so that a learner starves."""

from __future__ import annotations

import time

import gymnasium
import numpy as np


class SlowEnvironment(gymnasium.Env):
    """Nothing ever happens, slowly."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Zeros."""
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        """Zeros, half a second later."""
        time.sleep(0.5)
        return np.zeros(3, np.float32), 0.0, False, False, {}
