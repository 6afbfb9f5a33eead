"""Atari games with the standard preprocessing, by whichever emulator runs them."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from tf_agents.trajectories import time_step as ts

from alf.environments import gym_ids, suite_gym, wrapper_lists
from alf.environments.atari_preprocessing import DMAtariPreprocessing, check_preprocessing
from alf.environments.batch_wrappers import EpisodicLife
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.envpool_environment import EnvPoolEnvironment, make_envpool
from alf.environments.gymnasium_environment import VectorEnvironment
from alf.environments.vectorization import EnvironmentLoader
from alf.environments.wrappers import FrameStack
from alf.utils.common import check_range

# TF-Agents has a loader of this name too, which its package imports where it can: without ALE it cannot.
importlib.import_module("tf_agents.environments")
suite_gym.drop_tf_agents_loader("suite_atari")


@gin.configurable(module="alf.environments.suite_atari")
def load(
    environment_name: str,
    episodic_life: bool = True,
    frame_skip: int = 4,
    noop_max: int = 30,
    screen_size: int = 84,
    stack_size: int = 4,
    sticky_actions: float = 0.0,
    full_action_space: bool = False,
    max_frames: int = 108_000,
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = (),
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    num_threads: int | None = None,
    **env_kwargs: Any,
) -> EnvironmentLoader:
    """Finds a game and tells how to make batches of it, with the preprocessing of `DMAtariPreprocessing`.

    Observations are uint8 [screen_size, screen_size, stack_size], rewards those of the game, not clipped. An
    environment step is a decision of the agent, which takes `frame_skip` frames.

    The emulator follows from `vectorization`: "envpool" (C++ threads, the extra `envpool`), "vector_entry_point" (those
    of ALE itself, the extra `atari`; what "auto" takes for several rows), "single", "sync" or "async" (ALE through
    Gymnasium). They differ in what a policy hardly sees: the number of no-ops at the start, whether the button is
    pressed for one frame or a step (never after a lost life in the C++ ones), and resampling of the picture.

    Args:
      environment_name: the game's name, such as "Pong" or "SpaceInvaders".
      episodic_life: the learner sees a lost life as an end; nothing else does, so evaluation is the same either way.
      frame_skip: frames for which an action is held; the picture is the maximum of the last two.
      noop_max: at most so many frames pass without an action at the start of a game.
      screen_size: height and width of the pictures.
      stack_size: pictures in an observation, the newest last.
      sticky_actions: chance that a frame repeats the action before instead; 0.25 after Machado et al. (2018).
      full_action_space: all 18 actions instead of those that the game uses.
      max_frames: after so many frames, at least `frame_skip`, a game is truncated; 0 for no limit.
      env_wrappers: wrap the `BatchedEnvironment`, in order.
      render_mode: "rgb_array" to make `render` work, where Gymnasium runs the game.
      max_episode_steps: truncates games after so many decisions of the agent instead; 0 for no limit, None for
        `max_frames`.
      num_threads: of a C++ emulator, None for as many as it takes by itself; the others have none.
      **env_kwargs: to what makes the game.

    Returns:
      What `create_environment` calls with a batch size and a seed.

    Raises:
      ValueError: `environment_name` is an id, not the name of a game; a number is out of its range, a limit has no room
        for a step, or one of the wrappers is none.
    """
    game = _game(environment_name)
    by_id = f"load the game by its id, such as '{game}NoFrameskip-v4', with suite_gym.load, and "
    wrapper_lists.check(wrapper_lists.BATCHES, env_wrappers, by_id)
    check_preprocessing(noop_max, frame_skip=frame_skip, screen_size=screen_size, stack_size=stack_size)
    check_range(0.0, 1.0, sticky_actions=sticky_actions)
    suite_gym.check_max_episode_steps(max_episode_steps)
    if max_episode_steps is not None:
        max_frames = max_episode_steps * frame_skip
    if max_frames < 0 or 0 < max_frames < frame_skip:
        raise ValueError(
            f"max_frames={max_frames} must be at least frame_skip={frame_skip}, the frames of a step, or 0, which lifts "
            "the limit."
        )
    steps = max_frames // frame_skip
    frames = steps * frame_skip or gym_ids.NO_LIMIT
    common = {"repeat_action_probability": sticky_actions, "full_action_space": full_action_space, **env_kwargs}
    batched = {
        "img_height": screen_size,
        "img_width": screen_size,
        "stack_num": stack_size,
        "noop_max": noop_max,
        **common,
    }
    if num_threads is not None:
        batched["num_threads"] = num_threads

    def make() -> gymnasium.Env:
        env = gym_ids.make(
            f"ALE/{game}-v5",
            disable_env_checker=True,
            obs_type="grayscale",
            frameskip=1,
            # ALE would count the frames of a reset too, and end a game between two pictures.
            max_num_frames_per_episode=gym_ids.NO_LIMIT,
            render_mode=render_mode,
            **common,
        )
        stack = FrameStack(DMAtariPreprocessing(env, frame_skip, noop_max, screen_size), stack_size)
        return gymnasium.wrappers.TimeLimit(stack, steps) if steps else stack

    return EnvironmentLoader(
        make=make,
        make_vector=functools.partial(
            _make_vector, game, frameskip=frame_skip, max_num_frames_per_episode=frames, **batched
        ),
        make_envpool=functools.partial(
            _make_envpool, game, frame_skip=frame_skip, max_episode_steps=frames // frame_skip, **batched
        ),
        env_wrappers=(EpisodicLife, *env_wrappers) if episodic_life else env_wrappers,
    )


def _game(name: str) -> str:
    """The name of a game as ids have it; refuses ids, which say more than `load` would keep to."""
    if not re.fullmatch(r"\w+", name):
        raise ValueError(
            f'suite_atari.load takes the name of a game, such as "Pong"; got {name!r}: leave prefix and version out, or '
            "load an id by suite_gym.load."
        )
    return name


class AleVectorEnvironment(VectorEnvironment):
    """ALE's own vector environment, which preprocesses and steps in C++ threads.

    It begins a game with black pictures in its stacks; here, as by the other emulators, the first picture of the game
    stands for those that are missing, which is also what `ReplayBuffer.frame_stack` puts together again.
    """

    def __init__(self, env: VectorEnv, seeds: Sequence[int], frames_per_step: int) -> None:
        """Adapts `env`, which is closed with this.

        Args:
          env: an `ale_py.AtariVectorEnv` of gray pictures.
          seeds: B integers.
          frames_per_step: its frame skip.
        """
        super().__init__(env, seeds, channels_first=True)
        self._frames_per_step = frames_per_step
        self._stack_size = self._observation_spec.shape[-1]
        # Of each row, how many pictures of its last stack are from before its game.
        self._missing = np.zeros(env.num_envs, int)

    @property
    def frames_per_step(self) -> int:
        """The frame skip."""
        return self._frames_per_step

    def _reset_env(self, seeds: list[int] | None) -> Any:
        # From one integer it would count upwards.
        observation, self._info = self._env.reset(seed=None if seeds is None else np.asarray(seeds))
        return observation

    def _reset(self) -> ts.TimeStep:
        return self._without_missing(super()._reset())

    def _step(self, action: Any) -> ts.TimeStep:
        games_begin = self._any_done
        step = super()._step(action)
        return self._without_missing(step) if games_begin or self._missing.any() else step

    def _without_missing(self, step: ts.TimeStep) -> ts.TimeStep:
        """`step`, into whose stacks, a copy that nobody else has yet, the first pictures of the games are written."""
        begins = step.step_type == ts.StepType.FIRST
        self._missing = np.where(begins, self._stack_size - 1, np.maximum(self._missing - 1, 0))
        for row in np.flatnonzero(self._missing):
            # Picture by picture, as in `spaces.images_to_channels_last`.
            for missing in range(self._missing[row]):
                step.observation[row, ..., missing] = step.observation[row, ..., self._missing[row]]
        return step


def _make_vector(game: str, size: int, seeds: list[int], frameskip: int, **kwargs: Any) -> AleVectorEnvironment:
    name = f"ALE/{game}-v5"
    gym_ids.register(name)
    if name not in gymnasium.registry:
        gym_ids.make(name)  # Says what is missing.
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    env = gymnasium.make_vec(
        name, num_envs=size, vectorization_mode=mode, frameskip=frameskip, reward_clipping=False, **kwargs
    )
    return AleVectorEnvironment(env, seeds, frameskip)


def _make_envpool(game: str, size: int, seeds: list[int], noop_max: int, **kwargs: Any) -> EnvPoolEnvironment:
    # EnvPool crashes at 0. At 1 pressing FIRE takes the place of the only no-op.
    return make_envpool(f"{game}-v5", size, seeds, noop_max=max(noop_max, 1), **kwargs)
