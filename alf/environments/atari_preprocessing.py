"""The standard preprocessing of Atari games, for the Arcade Learning Environment behind Gymnasium."""

from __future__ import annotations

import numbers
from typing import Any

import gin
import gymnasium
from gymnasium.wrappers import AtariPreprocessing

from alf._extras import how_to_install
from alf.environments.spaces import FRAMES_PER_STEP


def import_cv2(user: str) -> Any:
    """OpenCV; ImportError that says who needs it and how to get it."""
    try:
        import cv2
    except ImportError as error:
        raise ImportError(f"{user} needs OpenCV: {how_to_install('atari')}") from error
    return cv2


def check_preprocessing(noop_max: int, **sizes: int) -> None:
    """Raises ValueError where `noop_max` or one of the `sizes` is no whole number of at least 0, or 1."""
    for name, value in {"noop_max": noop_max, **sizes}.items():
        least = 0 if name == "noop_max" else 1
        if not (isinstance(value, numbers.Integral) and int(value) >= least):
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


@gin.configurable(module="alf.environments.wrappers")
class DMAtariPreprocessing(gymnasium.Wrapper):
    """No-op starts, frame skip, the brighter of the last two frames, gray pictures, FIRE where a game waits for it.

    After Mnih et al., "Human-level control through deep reinforcement learning" (2015), and Machado et al., "Revisiting
    the Arcade Learning Environment" (2018). Gives uint8 [screen_size, screen_size, 1]; `FrameStack` joins several.

    The button is pressed once after each reset and each lost life, within the step that lost it. A lost life is no end
    here (see `EpisodicLife`). Rewards are not clipped: that is the learner's (`reward_clipping`).
    """

    def __init__(self, env: gymnasium.Env, frame_skip: int = 4, noop_max: int = 30, screen_size: int = 84) -> None:
        """Wraps `env`.

        Args:
          env: an Atari game that skips no frames itself: "PongNoFrameskip-v4", or "ALE/Pong-v5" with frameskip=1.
          frame_skip: frames for which an action is held.
          noop_max: at the start of a game 1 to so many frames pass without an action; 0 for none.
          screen_size: height and width of the picture.

        Raises:
          ImportError: OpenCV is not installed.
          ValueError: a number is out of its range; or the environment is no Atari game, or skips frames.
        """
        check_preprocessing(noop_max, frame_skip=frame_skip, screen_size=screen_size)
        import_cv2("DMAtariPreprocessing")
        skips = getattr(env.unwrapped, "_frameskip", None)
        if skips != 1:
            raise ValueError(
                f"DMAtariPreprocessing needs an Atari game that skips no frames itself; {env.unwrapped} has frameskip "
                f'{skips}: use an id such as "PongNoFrameskip-v4", or "ALE/Pong-v5" with suite_gym.load.frameskip = 1.'
            )
        super().__init__(
            AtariPreprocessing(
                env, noop_max=noop_max, frame_skip=frame_skip, screen_size=int(screen_size), grayscale_newaxis=True
            )
        )
        self.metadata = {**env.metadata, FRAMES_PER_STEP: frame_skip}
        meanings = env.get_wrapper_attr("get_action_meanings")()
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a new game."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._fire is not None:
            observation, _, terminated, truncated, info = self.env.step(self._fire)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._lives = info["lives"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step of `frame_skip` frames; of twice as many where a life was lost and the game waits for FIRE."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        total = float(reward)
        lost = info["lives"] < self._lives
        if lost and self._fire is not None and not (terminated or truncated):
            observation, reward, terminated, truncated, info = self.env.step(self._fire)
            total += float(reward)
        self._lives = info["lives"]
        return observation, total, terminated, truncated, info
