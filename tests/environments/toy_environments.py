"""Small Gymnasium environments whose every value is known; used by the tests of this folder."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

ENDS = {"terminate": (True, False), "truncate": (False, True), "both": (True, True)}


class ToyEnv(gymnasium.Env):
    """Episode e of row r takes 1 + (r + e) % 3 actions; it hands out one buffer again and again.

    Observation float32 [4]: row, episode, step, last action; reward: 10 * step + action.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, row: int = 0, ends: str = "terminate", render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1e6, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4, start=2)
        self.render_mode = render_mode
        self.row, self.ends, self.episode, self.time = row, ends, -1, 0
        self.buffer = np.zeros(4, np.float32)

    def _observe(self, action: int) -> np.ndarray:
        self.buffer[:] = self.row, self.episode, self.time, action
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        return self._observe(-1), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.time += 1
        done = self.time == 1 + (self.row + self.episode) % 3
        terminated, truncated = ENDS[self.ends] if done else (False, False)
        return self._observe(int(action)), 10.0 * self.time + float(action), terminated, truncated, {"note": self.time}

    def render(self) -> np.ndarray:
        return np.full((2, 3, 3), self.time, np.uint8)


class ToyVectorEnv(VectorEnv):
    """ToyEnv in all rows at once, as Gymnasium's NEXT_STEP asks; reuses its buffers as shared memory does."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, ends: str = "terminate") -> None:
        self.num_envs = num_envs
        self.rows = [ToyEnv(row, ends) for row in range(num_envs)]
        self.single_observation_space = self.rows[0].observation_space
        self.single_action_space = self.rows[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        flags = [np.zeros(num_envs, bool) for _ in range(2)]
        self.buffers: list[np.ndarray] = [np.zeros((num_envs, 4), np.float32), np.zeros(num_envs), *flags]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert seed is None or isinstance(seed, int)
        for buffer in self.buffers:
            buffer[:] = 0
        for row, env in enumerate(self.rows):
            self.buffers[0][row] = env.reset()[0]
        return self.buffers[0], {}

    def step(self, actions: np.ndarray) -> Any:
        was_done = self.buffers[2] | self.buffers[3]
        for row, env in enumerate(self.rows):
            result = (env.reset()[0], 0.0, False, False) if was_done[row] else env.step(actions[row])[:4]
            for buffer, value in zip(self.buffers, result, strict=True):
                buffer[row] = value
        return (*self.buffers, {})


class NestedEnv(gymnasium.Env):
    """Dict and Tuple spaces, inside each other and empty, with every leaf kind."""

    def __init__(self) -> None:
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
                "pair": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2), spaces.Tuple(()))),
                "vector": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            }
        )
        self.action_space = spaces.Dict(
            {"move": spaces.Box(-1.0, 0.3, (2,), np.float64), "press": spaces.MultiDiscrete([2, 3])}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 1.0, False, bool(self.np_random.integers(2)), {}


class CustomError(Exception):
    """Cannot be built from one argument, nor pickled and loaded again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class FailingEnv(ToyEnv):
    """A ToyEnv that fails in the given way when the file `flag` exists, which it removes: one failure a file."""

    def __init__(self, how: str, flag: str) -> None:
        super().__init__()
        self.how, self.flag = how, flag

    def step(self, action: Any) -> Any:
        try:
            os.remove(self.flag)
        except FileNotFoundError:
            return super().step(action)
        if self.how == "raise":
            raise ValueError("toy failure")
        if self.how == "raise_custom":
            raise CustomError(7, "odd failure")
        if self.how == "hang":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


class LivesEnv(gymnasium.Env):
    """A game of 3 lives; life l of game g lasts 2 + (row + g + l) % 3 steps, and each step earns its number in the game.

    Observation float32 [3]: row, game, step; the game tells its lives, as Atari games do.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, row: int = 0, max_steps: int = 1000) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1e6, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.row, self.game, self.max_steps = row, -1, max_steps
        self.time = self.lives = self.left = 0

    def _life(self) -> int:
        return 2 + (self.row + self.game + 3 - self.lives) % 3

    def _observe(self) -> np.ndarray:
        return np.array([self.row, self.game, self.time], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.game, self.time, self.lives = self.game + 1, 0, 3
        self.left = self._life()
        return self._observe(), {"lives": self.lives}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.left -= 1
        if self.left == 0:
            self.lives -= 1
            self.left = self._life()
        over = self.lives == 0
        info = {"lives": self.lives}
        return self._observe(), float(self.time), over, not over and self.time >= self.max_steps, info
