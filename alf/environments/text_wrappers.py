"""Text in observations, such as the mission of a MiniGrid, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces


@gin.configurable(module="alf.environments.wrappers")
class TextToBytes(gymnasium.ObservationWrapper):
    """Turns the texts of a Dict observation into uint8 [length]: their UTF-8 bytes, then zeros."""

    def __init__(self, env: gymnasium.Env, length: int = 64, fields: Sequence[str] | None = None) -> None:
        """Wraps `env`.

        Args:
          env: its observation space is a Dict.
          length: of the arrays; no text may be longer.
          fields: names of the texts; None for all that there are.

        Raises:
          ValueError: `length` is below 1, a field is no text, or there is none.
        """
        super().__init__(env)
        space = env.observation_space
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
        texts = [name for name, part in parts.items() if part.dtype is not None and part.dtype.kind == "U"]
        self._texts = list(texts if fields is None else fields)
        if length < 1 or not self._texts or not set(self._texts) <= set(texts):
            raise ValueError(
                f"TextToBytes needs length >= 1 and fields that are texts; got {length} and {self._texts}: the texts here "
                f"are {texts}."
            )
        self._length = length
        codes = {name: spaces.Box(0, 255, (length,), np.uint8) for name in self._texts}
        self.observation_space = spaces.Dict({**parts, **codes})

    def observation(self, observation: Any) -> Any:
        """The observation with its texts as bytes; ValueError for a text that is too long."""
        return {**observation, **{name: self._codes(name, observation[name]) for name in self._texts}}

    def _codes(self, name: str, text: str) -> np.ndarray:
        data = text.encode()
        if len(data) > self._length:
            raise ValueError(
                f"The text {name!r} has {len(data)} bytes, TextToBytes.length is {self._length}: raise it. ({text!r})"
            )
        codes = np.zeros(self._length, np.uint8)
        codes[: len(data)] = np.frombuffer(data, np.uint8)
        return codes
