"""A task that single steps hardly ever solve, and that is short in goals; and the goals, for `Hierarchy`."""

from __future__ import annotations

from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from alf.environments.hierarchy import Goals

# The corners of the square, in the order in which they are to be visited.
CORNERS = np.array([[-1, -1], [1, 1], [-1, 1], [1, -1]], np.float32)
_MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])


class Errands(gymnasium.Env):
    """Visits the four corners of a grid in a certain order, from its middle; only the last visit is rewarded, with 1.

    Observes float32 [6]: its place, from -1 to 1 in both directions, and which corner is to be visited next, as one of
    four. An action is one of left, right, down, up; at a wall it changes nothing. The episode terminates with the last
    visit.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, reach: int = 5, steps: int = 200) -> None:
        """Makes the task.

        Args:
          reach: fields from the middle to each wall.
          steps: after so many the episode is truncated.

        Raises:
          ValueError: a number below 1.
        """
        if reach < 1 or steps < 1:
            raise ValueError(f"Errands needs reach >= 1 and steps >= 1; got {reach} and {steps}.")
        self.observation_space = spaces.Box(-1.0, 1.0, (2 + len(CORNERS),), np.float32)
        self.action_space = spaces.Discrete(len(_MOVES))
        self._reach = reach
        self._max_steps = steps
        self._place = np.zeros(2, np.int64)
        self._visited = 0
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts in the middle."""
        super().reset(seed=seed)
        self._place = np.zeros(2, np.int64)
        self._visited = self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Moves."""
        self._steps += 1
        self._place = np.clip(self._place + _MOVES[int(action)], -self._reach, self._reach)
        self._visited += bool((self._place == self._reach * CORNERS[self._visited]).all())
        done = self._visited == len(CORNERS)
        return self._observe(), float(done), done, not done and self._steps >= self._max_steps, {"success": done}

    def _observe(self) -> np.ndarray:
        following = np.arange(len(CORNERS)) == self._visited
        return np.concatenate([self._place / self._reach, following]).astype(np.float32)


@gin.configurable(module="alf.environments.errands")
class CornerGoals(Goals):
    """A goal is a corner, by its number; the lower level sees the way there, and is rewarded for coming nearer."""

    def space(self, env: gymnasium.Env) -> spaces.Discrete:
        """The numbers of the corners."""
        del env
        return spaces.Discrete(len(CORNERS))

    def reached(self, observation: np.ndarray, goal: Any) -> bool:
        """Whether the place is the corner."""
        return bool((observation[:2] == CORNERS[int(goal)]).all())

    def reward(self, observation: np.ndarray, goal: Any, next_observation: np.ndarray) -> float:
        """How much nearer the corner is; from one wall to the other it is 2."""
        before, after = (float(np.abs(self.view(seen, goal)).sum()) for seen in (observation, next_observation))
        return before - after

    def view(self, observation: np.ndarray, goal: Any) -> np.ndarray:
        """The way to the corner, float32 [2]."""
        return CORNERS[int(goal)] - observation[:2]

    def view_space(self, env: gymnasium.Env) -> spaces.Box:
        """See `view`."""
        del env
        return spaces.Box(-2.0, 2.0, (2,), np.float32)
