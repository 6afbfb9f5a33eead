"""A small environment with agents, whose rewards follow a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from alf.environments.agents import IDLE, agents_space, stacked_space

FIRST, MID, LAST = 0, 1, 2

# What each slot is at each step of an episode, whose last step is the end of the environment's.
SCRIPT = {
    "chaser": ((FIRST, MID, MID, MID, MID), (FIRST, MID, LAST, FIRST, MID)),
    "runner": ((FIRST, IDLE, MID, IDLE, LAST),),
}


class SmallAgents(gymnasium.Env):
    """Two chasers and a runner; the reward of each decision is what `rewards` says of its behavior.

    An episode takes four steps. One chaser lives for all of it and is cut; in the place of the other, which ends after
    two actions, another one appears that is cut after one. The runner decides every other step, twice.
    """

    rewards: ClassVar[Mapping[str, float]] = {"chaser": 1.0, "runner": 2.0}

    def __init__(self) -> None:
        seen = spaces.Box(0.0, 9.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"chaser": agents_space(seen, 2, may_idle=False), "runner": agents_space(seen, 1, may_idle=True)}
        )
        self.action_space = spaces.Dict(
            {"chaser": stacked_space(spaces.Discrete(2), 2), "runner": stacked_space(spaces.Discrete(3), 1)}
        )
        self._time = 0

    def _observe(self) -> dict[str, Any]:
        found = {}
        for name, slots in SCRIPT.items():
            types = np.array([slot[self._time] for slot in slots], np.int32)
            decided = (types == MID) | (types == LAST)
            # What an idle slot tells means nothing.
            rewards = np.where(decided, self.rewards[name], np.where(types == IDLE, 1e6, 0.0))
            found[name] = {
                "step_type": types,
                "reward": rewards.astype(np.float32),
                "discount": np.where(types == LAST, 0.0, 1.0).astype(np.float32),
                "observation": np.tile(np.array([self._time, 0.0], np.float32), (len(slots), 1)),
            }
        return found

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        seen = self._observe()
        reward = sum(float(part["reward"][part["step_type"] != IDLE].sum()) for part in seen.values())
        return seen, reward, self._time == 4, False, {}
