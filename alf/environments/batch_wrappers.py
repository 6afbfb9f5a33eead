"""Wrappers of whole batched environments, for `suite_gym.load.env_wrappers`."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
from tf_agents.trajectories import time_step as ts

from alf.environments import agents
from alf.environments.batched_environment import BatchedEnvironment


class BatchWrapper(BatchedEnvironment):
    """Passes everything on to another batched environment."""

    def __init__(self, env: BatchedEnvironment) -> None:
        """Wraps `env`, which is closed with this."""
        super().__init__()
        self._env = env

    @property
    def batch_size(self) -> int:
        """B."""
        return self._env.batch_size

    @property
    def restarts(self) -> int:
        """That of the wrapped environment."""
        return self._env.restarts

    @property
    def cuts(self) -> int:
        """That of the wrapped environment."""
        return self._env.cuts

    @property
    def successes(self) -> np.ndarray | None:
        """That of the wrapped environment."""
        return self._env.successes

    @property
    def lives(self) -> np.ndarray | None:
        """That of the wrapped environment."""
        return self._env.lives

    @property
    def waited_until(self) -> float:
        """That of the wrapped environment."""
        return self._env.waited_until

    @property
    def frames_per_step(self) -> int:
        """That of the wrapped environment."""
        return self._env.frames_per_step

    def before_building(self) -> None:
        """Tells the wrapped environment."""
        self._env.before_building()

    def after_building(self) -> None:
        """Tells the wrapped environment."""
        self._env.after_building()

    def enter_phase(self, phase: str) -> None:
        """Tells the wrapped environment."""
        self._env.enter_phase(phase)

    def observation_spec(self) -> Any:
        """That of the wrapped environment."""
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        """That of the wrapped environment."""
        return self._env.action_spec()

    def _reset(self) -> ts.TimeStep:
        return self._env.reset()

    def _step(self, action: Any) -> ts.TimeStep:
        return self._env.step(action)

    def render(self, mode: str = "rgb_array") -> np.ndarray | None:
        """That of the wrapped environment."""
        return self._env.render(mode)

    def close(self) -> None:
        """Closes the wrapped environment."""
        self._env.close()


@gin.configurable(module="alf.environments.wrappers")
class EpisodicLife(BatchWrapper):
    """Lets a learner see the loss of a life as an end, while the game goes on.

    The step that lost a life gets discount 0, so that nothing is worth anything after it; its step_type stays MID. One
    that a time limit cuts stays a truncation, whether it lost a life or not. The stream is the same as without this
    wrapper in all else: episodes are games, returns are those of games, frame stacks and recurrent states go on, no step
    is lost, and a policy acts the same whether its lives count or not. `reset()` always begins a new game.
    """

    _lives: np.ndarray

    def __init__(self, env: BatchedEnvironment) -> None:
        """Wraps `env`, which is closed with this.

        Raises:
          ValueError: a `NonEpisodicAgent` is around the game already.
        """
        below = env
        while isinstance(below, BatchWrapper):
            if isinstance(below, NonEpisodicAgent):
                raise ValueError(
                    "EpisodicLife around NonEpisodicAgent would have a lost life end what the end of a game does not: put "
                    "NonEpisodicAgent behind EpisodicLife in suite_gym.load.env_wrappers."
                )
            below = below._env
        super().__init__(env)

    def _reset(self) -> ts.TimeStep:
        first = self._env.reset()
        lives = self._env.lives
        if lives is None:
            raise ValueError(
                "EpisodicLife needs an environment that tells its lives (info['lives']), as Atari games do: leave it out."
            )
        self._lives = lives
        return first

    def _step(self, action: Any) -> ts.TimeStep:
        step = self._env.step(action)
        lives = self._env.lives
        if lives is None:
            return step
        lost = (lives < self._lives) & (step.step_type == ts.StepType.MID)
        self._lives = lives
        if not lost.any():
            return step
        return step._replace(discount=np.where(lost, np.float32(0), step.discount))


@gin.configurable(module="alf.environments.wrappers")
class NonEpisodicAgent(BatchWrapper):
    """Gives every end of an episode a discount, so that values bootstrap beyond it: for intrinsic rewards alone.

    A lost life that `EpisodicLife`, which comes before this, makes an end for the learner gets it too; and where an
    environment has agents, the end of each agent. Values of the environment's own rewards go on as well.
    """

    def __init__(self, env: BatchedEnvironment, discount: float = 1.0) -> None:
        """Wraps `env`, which is closed with this.

        Args:
          env: a batched environment.
          discount: of the last step of each episode, and of each lost life.
        """
        super().__init__(env)
        self._discount = np.float32(discount)
        self._has_agents = agents.slots_of(env.observation_spec()) is not None

    def _step(self, action: Any) -> ts.TimeStep:
        step = self._env.step(action)
        step = step._replace(discount=self._beyond_ends(step.step_type, step.discount))
        if not self._has_agents:
            return step
        parts = {
            name: {**part, agents.DISCOUNT: self._beyond_ends(part[agents.STEP_TYPE], part[agents.DISCOUNT])}
            for name, part in step.observation.items()
        }
        return step._replace(observation=parts)

    def _beyond_ends(self, step_type: np.ndarray, discount: np.ndarray) -> np.ndarray:
        return np.where((step_type == ts.StepType.LAST) | (discount == 0), self._discount, discount)
