"""Wrappers of single Gymnasium environments under ALF's names: frame stacks and skips, pictures, first episodes.

They go into `suite_gym.load.gym_env_wrappers`; those of whole batches (`EpisodicLife`, `NonEpisodicAgent`) into
`env_wrappers`. Specs follow: what an algorithm gets is the spec of the wrapped environment.
"""

from __future__ import annotations

from typing import Any

import gin
import gymnasium
import numpy as np

from alf.environments import agents
from alf.environments.atari_preprocessing import DMAtariPreprocessing as DMAtariPreprocessing
from alf.environments.batch_wrappers import EpisodicLife as EpisodicLife
from alf.environments.batch_wrappers import NonEpisodicAgent as NonEpisodicAgent
from alf.environments.end_action import EndAction as EndAction
from alf.environments.gymnasium_environment import earned, flag
from alf.environments.hierarchy import Hierarchy as Hierarchy
from alf.environments.measurement_wrappers import AccumulatedReward as AccumulatedReward
from alf.environments.observation_wrappers import CHANNEL_ORDERS as CHANNEL_ORDERS
from alf.environments.observation_wrappers import BaseObservationWrapper as BaseObservationWrapper
from alf.environments.observation_wrappers import FrameGrayScale as FrameGrayScale
from alf.environments.observation_wrappers import FrameResize as FrameResize
from alf.environments.observation_wrappers import FrameStack as FrameStack
from alf.environments.observation_wrappers import SelectFields as SelectFields
from alf.environments.observation_wrappers import transform_space as transform_space
from alf.environments.one_hot import OneHot as OneHot
from alf.environments.phases import PhasedWrapper
from alf.environments.spaces import FRAMES_PER_STEP, frames_per_step
from alf.environments.text_wrappers import TextToBytes as TextToBytes

# Beside a seed that environments make their own random numbers of, so that these are others.
_LENGTHS = 1


@gin.configurable(module="alf.environments.wrappers")
class FrameSkip(gymnasium.Wrapper):
    """Repeats each action; the rewards are added up and the last observation is given."""

    def __init__(self, env: gymnasium.Env, skip: int) -> None:
        """Wraps `env`.

        Args:
          env: any environment of a single agent.
          skip: how often an action is taken, at least 1.

        Raises:
          ValueError: `skip` is below 1, or the environment has several agents.
        """
        agents.refuse("FrameSkip", env.observation_space)
        super().__init__(env)
        if skip < 1:
            raise ValueError(f"FrameSkip needs skip >= 1; got {skip}.")
        self._skip = skip
        self.metadata = {**env.metadata, FRAMES_PER_STEP: skip * frames_per_step(env)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes the action `skip` times, or to the end of the episode."""
        total = 0.0
        for _ in range(self._skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += earned(reward)
            if flag(terminated) or flag(truncated):
                break
        return observation, total, terminated, truncated, info


@gin.configurable(module="alf.environments.wrappers")
class RandomFirstEpisodeLength(PhasedWrapper):
    """Truncates the first episodes at random lengths, so that environments that start together do not end together.

    Episodes of evaluation are left as they are.
    """

    def __init__(self, env: gymnasium.Env, random_length_range: int, num_episodes: int = 1) -> None:
        """Wraps `env`.

        Args:
          env: any environment.
          random_length_range: the longest of the random lengths; they are drawn from 1 to it.
          num_episodes: how many episodes are cut; later ones are as long as they are.

        Raises:
          ValueError: `random_length_range` is below 1.
        """
        super().__init__(env)
        if random_length_range < 1:
            raise ValueError(f"RandomFirstEpisodeLength needs random_length_range >= 1; got {random_length_range}.")
        self._range = random_length_range
        self._num_episodes = num_episodes
        # Not the environment's own random numbers: its episodes stay what they are without this wrapper.
        self._rng = np.random.default_rng()
        self._evaluates = False
        self._episode = 0
        self._left = 0

    def enter_phase(self, phase: str) -> None:
        """Nothing is cut from the next reset on where the phase is an evaluation."""
        self._evaluates = phase == "test"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; a seed seeds the lengths too."""
        if seed is not None:
            self._rng = np.random.default_rng([seed, _LENGTHS])
        cut = self._episode < self._num_episodes and not self._evaluates
        self._left = int(self._rng.integers(1, self._range, endpoint=True)) if cut else 0
        self._episode += 1
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step; the last one of a cut episode is truncated."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._left:
            self._left -= 1
            truncated = flag(truncated) or (self._left == 0 and not flag(terminated))
        return observation, reward, terminated, truncated, info
