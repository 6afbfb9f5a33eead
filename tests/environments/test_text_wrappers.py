"""Texts in observations as numbers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from alf.environments import create_environment
from alf.environments.wrappers import TextToBytes
from tests.environments.toy_environments import ToyEnv

LINES = ["go to the red door", "", "öffne", "x" * 20]


class Talking(gymnasium.ObservationWrapper):
    """A ToyEnv that says something else each step."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        text = gymnasium.spaces.Text(40)
        self.observation_space = gymnasium.spaces.Dict({"numbers": env.observation_space, "line": text})
        self.said = -1

    def observation(self, observation: Any) -> Any:
        self.said += 1
        return {"numbers": observation, "line": LINES[self.said % len(LINES)]}


def _make(**kwargs: Any) -> gymnasium.Env:
    return TextToBytes(Talking(ToyEnv()), **kwargs)


@pytest.mark.parametrize("fields", [None, ["line"]])
def test_texts_are_their_bytes(fields: list[str] | None) -> None:
    env = _make(length=20, fields=fields)
    assert env.observation_space["line"] == gymnasium.spaces.Box(0, 255, (20,), np.uint8)
    for line in LINES * 2:
        observation = env.reset()[0]
        assert env.observation_space.contains(observation)
        assert bytes(observation["line"]).rstrip(b"\0").decode() == line


def test_specs_follow() -> None:
    env = create_environment(_make, num_parallel_environments=3)
    assert (env.observation_spec()["line"].shape, env.observation_spec()["line"].dtype) == ((64,), np.uint8)
    assert env.reset().observation["line"][0, :5].tolist() == [ord(letter) for letter in "go to"]
    env.close()


def test_without_it_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="TextToBytes"):
        create_environment(lambda: Talking(ToyEnv()), num_parallel_environments=1)


@pytest.mark.parametrize("kwargs", [{"length": 0}, {"fields": ["numbers"]}, {"fields": ["nothing"]}, {"fields": []}])
def test_bad_arguments(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the texts here are \['line'\]"):
        _make(**kwargs)
    with pytest.raises(ValueError, match=r"the texts here are \[\]"):
        TextToBytes(ToyEnv())


def test_a_text_that_is_too_long() -> None:
    with pytest.raises(ValueError, match=r"'line' has 18 bytes, TextToBytes.length is 10: raise it"):
        _make(length=10).reset()
