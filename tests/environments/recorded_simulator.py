"""Simulators with the interface of ML-Agents' `BaseEnv`: one that replays what was recorded, one that draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np


class ActionTuple:
    """Actions of n agents: float32 [n, c] and int32 [n, d]."""

    def __init__(self, continuous: np.ndarray, discrete: np.ndarray) -> None:
        self.continuous, self.discrete = continuous, discrete

    def add_continuous(self, continuous: np.ndarray) -> None:
        self.continuous = continuous.astype(np.float32)

    def add_discrete(self, discrete: np.ndarray) -> None:
        self.discrete = discrete.astype(np.int32)


class ActionSpec(NamedTuple):
    continuous_size: int = 0
    discrete_branches: tuple[int, ...] = (5,)

    def empty_action(self, n_agents: int) -> ActionTuple:
        return ActionTuple(
            np.zeros((n_agents, self.continuous_size), np.float32),
            np.zeros((n_agents, len(self.discrete_branches)), np.int32),
        )


class ObservationSpec(NamedTuple):
    shape: tuple[int, ...]
    name: str = ""


class BehaviorSpec(NamedTuple):
    observation_specs: Sequence[ObservationSpec] = (ObservationSpec((1,)),)
    action_spec: ActionSpec = ActionSpec()


class Asks(NamedTuple):
    """An agent asks for a decision."""

    number: int
    obs: Any
    reward: float = 0.0
    group_reward: float = 0.0
    mask: Sequence[Sequence[bool]] | None = None


class Ends(NamedTuple):
    """An agent ends."""

    number: int
    obs: Any
    reward: float = 0.0
    interrupted: bool = False
    group_reward: float = 0.0


Frame = Mapping[str, Sequence[Asks | Ends]]


class Recorded:
    """Replays frames, the first of which is every reset's; keeps the actions of each step, by agents."""

    def __init__(self, frames: Sequence[Frame], specs: Mapping[str, BehaviorSpec] | None = None) -> None:
        self.frames = list(frames)
        self.specs = dict(specs or {"Ball?team=0": BehaviorSpec()})
        self.behavior_specs: dict[str, BehaviorSpec] = {}
        self.given: list[dict[str, Any]] = []
        self.resets = 0
        self.closed = False
        self._at = 0
        self._answers: dict[int, Any] = {}

    def reset(self) -> None:
        self.behavior_specs = self.specs
        self.resets += 1
        self._at = 0
        self._answers = {}

    def step(self) -> None:
        self.given.append(self._answers)
        self._answers = {}
        self._at = min(self._at + 1, len(self.frames) - 1)

    @property
    def over(self) -> bool:
        return self._at == len(self.frames) - 1

    def close(self) -> None:
        self.closed = True

    def _now(self, behavior: str, kind: type) -> list[Any]:
        return [one for one in self.frames[self._at].get(behavior, ()) if isinstance(one, kind)]

    def get_steps(self, behavior: str) -> tuple[Any, Any]:
        asks, ends = (self._now(behavior, kind) for kind in (Asks, Ends))
        masks = [one.mask for one in asks if one.mask is not None]
        deciding = self._steps(behavior, asks)
        deciding.action_mask = [np.array(branch, bool) for branch in zip(*masks, strict=True)] if masks else None
        ending = self._steps(behavior, ends)
        ending.interrupted = np.array([one.interrupted for one in ends], bool)
        return deciding, ending

    def _steps(self, behavior: str, ones: Sequence[Any]) -> SimpleNamespace:
        shapes = [spec.shape for spec in self.specs[behavior].observation_specs]
        parts = [one.obs if isinstance(one.obs, tuple) else (one.obs,) for one in ones]
        return SimpleNamespace(
            obs=[
                np.array([np.broadcast_to(part[i], shape) for part in parts], np.float32).reshape(-1, *shape)
                for i, shape in enumerate(shapes)
            ],
            reward=np.array([one.reward for one in ones], np.float32),
            agent_id=np.array([one.number for one in ones], np.int32),
            group_id=np.zeros(len(ones), np.int32),
            group_reward=np.array([one.group_reward for one in ones], np.float32),
        )

    def set_actions(self, behavior: str, action: ActionTuple) -> None:
        asks = self._now(behavior, Asks)
        spec = self.specs[behavior].action_spec
        assert action.continuous.shape == (len(asks), spec.continuous_size)
        assert action.discrete.shape == (len(asks), len(spec.discrete_branches))
        for row, one in enumerate(asks):
            self._answers[one.number] = (*action.continuous[row].tolist(), *action.discrete[row].tolist())


def drawn(rng: np.random.Generator, steps: int, most: int, reuse: bool) -> list[Frame]:
    """Frames in which agents of one behavior begin, idle, end and begin anew at once, at least one in the first.

    An agent observes [life, how often it asked before]; rewards tell the frame and the life. Lives are never the same,
    the numbers of agents are where `reuse`.
    """
    lives: dict[int, list[int]] = {}
    serial = 0
    frames: list[Frame] = []

    def born(number: int | None = None) -> None:
        nonlocal serial
        serial += 1
        free = [n for n in range(most) if n not in lives] if reuse else [serial]
        lives[free[0] if number is None else number] = [serial, 0]

    for t in range(steps):
        frame: list[Asks | Ends] = []
        for number in list(lives):
            if rng.random() < 0.25:
                life, asked = lives.pop(number)
                frame.append(Ends(number, (np.array([life, asked]),), 10 * t + life / 64, bool(rng.random() < 0.5)))
                if reuse and rng.random() < 0.5:
                    born(number)
        while len(lives) < most and (rng.random() < 0.3 or (t == 0 and not lives)):
            born()
        if rng.random() < 0.1:
            serial += 1
            frame.append(Ends(1000 + serial, (np.array([serial, 0]),), 4096.0))  # Nobody has ever seen this one.
        for number, life in lives.items():
            if rng.random() < 0.7 or t == 0:
                frame.append(Asks(number, (np.array(life),), 10 * t + life[0] / 64))
                life[1] += 1
        order = rng.permutation(len(frame))
        frames.append({"Ball?team=0": [frame[i] for i in order]})
    return frames
