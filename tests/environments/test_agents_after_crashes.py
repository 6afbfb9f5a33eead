"""Environments of many agents that fail: all open agents are truncated, and nothing is seen or earned twice."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.trajectories import time_step as ts

from alf.environments import (
    BatchedEnvironment,
    RestartingEnvironment,
    VectorEnvironment,
    create_environment,
    suite_agents,
)
from alf.environments.agents_env import AgentsEnv
from alf.environments.batch_wrappers import BatchWrapper
from alf.environments.counting_agents import CountingAgents
from alf.environments.grouped_rows import GroupedRows
from alf.environments.random_limits import RandomTimeLimit
from alf.environments.seeding import Seed, distinct_seeds
from alf.environments.testing import CountingEnvironment
from alf.environments.wrappers import NonEpisodicAgent

_FIRST, _MID, _LAST, _IDLE = 0, 1, 2, 3
_SLOTS = 3


class Seen(NamedTuple):
    """A step of one agent."""

    observation: tuple[float, ...]
    reward: float
    step_type: int
    discount: float


class Streams:
    """What each slot of one row shows, frame by frame, by the numbers of the agents' lives."""

    def __init__(self) -> None:
        self.lives: dict[float, list[Seen]] = {}
        self.inside: dict[int, float] = {}
        self.before = _LAST

    def add(self, step_type: int, part: Any) -> None:
        """Adds a frame, and checks that it may follow the one before."""
        assert (step_type == _FIRST) == (self.before == _LAST)
        self.before = step_type
        if step_type == _FIRST:
            self.inside = {}
        for slot, kind in enumerate(part["step_type"].tolist()):
            value = tuple(part["observation"][slot].tolist())
            if kind == _IDLE:
                continue
            assert (kind == _FIRST) == (slot not in self.inside)
            if kind == _FIRST:
                self.inside[slot] = value[0]
                # Who began when the rows around it were restarted begins once more.
                self.lives[value[0]] = []
            assert step_type != _FIRST or kind == _FIRST
            assert self.inside[slot] == value[0]
            self.lives[value[0]].append(Seen(value, float(part["reward"][slot]), kind, float(part["discount"][slot])))
            if kind == _LAST:
                del self.inside[slot]


class Tapped(gymnasium.Wrapper):
    """Notes the frames of an environment before anything can happen to them; numbers its agents apart from others."""

    made: list[Tapped] = []

    def __init__(self, script: dict[str, Any]) -> None:
        inner = CountingAgents(**script)
        inner._serial = 1000 * len(self.made)
        super().__init__(AgentsEnv(inner, slots={"agent": _SLOTS}))
        self.streams = Streams()
        self.made.append(self)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        self.streams.before = _LAST
        self.streams.add(_FIRST, observation["agent"])
        return observation, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.streams.add(_LAST if result[2] or result[3] else _MID, result[0]["agent"])
        return result


def _play(env: BatchedEnvironment, steps: int) -> list[ts.TimeStep]:
    rng = np.random.default_rng(0)
    played = [env.reset()]
    for _ in range(steps):
        played.append(env.step({"agent": rng.integers(5, size=(env.batch_size, _SLOTS))}))
    return played


def _rows(played: Sequence[ts.TimeStep]) -> list[Streams]:
    found = [Streams() for _ in played[0].step_type]
    for step in played:
        total = step.observation["agent"]["reward"].sum(axis=1)
        assert np.allclose(step.reward, total)
        for row, streams in enumerate(found):
            streams.add(int(step.step_type[row]), {k: v[row] for k, v in step.observation["agent"].items()})
    return found


@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 3),
    crash=st.sampled_from([0.02, 0.1, 0.3]),
    idle=st.sampled_from([0.0, 0.4]),
    death=st.sampled_from([0.1, 0.4]),
)
def test_a_crash_cuts_all_open_agents(seed: int, size: int, crash: float, idle: float, death: float) -> None:
    script = {"max_agents": _SLOTS, "crash": crash, "idle": idle, "death": death, "steps": 8}
    Tapped.made.clear()

    def build(seed: Seed) -> BatchedEnvironment:
        rows = [functools.partial(Tapped, script)] * size
        return VectorEnvironment(SyncVectorEnv(rows, copy=False), distinct_seeds(seed, size))

    env = RestartingEnvironment(build, seed=seed, max_restarts=1000, max_restarts_per_window=1000)
    shown = _rows(_play(env, 80))
    true = {serial: seen for tapped in Tapped.made for serial, seen in tapped.streams.lives.items()}
    for streams in shown:
        for serial, seen in streams.lives.items():
            given = true[serial]
            told = [s for i, s in enumerate(seen) if i < len(given) and s == given[i]]
            # What comes on top repeats the last observation, and nothing else.
            for extra in seen[len(told) :]:
                assert extra == Seen(told[-1].observation, 0.0, _MID, 1.0)
            if told[-1].step_type == _LAST:
                assert len(seen) == len(told)
    env.close()


def test_a_time_limit_from_outside_cuts_who_is_open() -> None:
    task = AgentsEnv(CountingAgents(steps=50, death=0.0, idle=0.0, birth=0.0), slots={"agent": 1})
    env = RandomTimeLimit(task, 3, 3)
    env.reset(seed=0)
    steps = [env.step({"agent": np.zeros(1, int)}) for _ in range(3)]
    assert [step[3] for step in steps] == [False, False, True]
    assert [step[0]["agent"]["step_type"].tolist() for step in steps] == [[_MID]] * 3


def test_a_non_episodic_agent_is_told_of_no_end() -> None:
    env = NonEpisodicAgent(create_environment("counting", suite_agents.load, 2, seed=0), 0.5)
    played = _play(env, 60)
    lasts = 0
    for step in played:
        part = step.observation["agent"]
        ends = part["step_type"] == _LAST
        assert (part["discount"] == np.where(ends, 0.5, 1.0)).all()
        assert (step.discount == np.where(step.step_type == _LAST, 0.5, 1.0)).all()
        lasts += int(ends.sum())
    assert lasts > 5
    env.close()


class _Fails(BatchWrapper):
    """Raises at one of its steps."""

    def __init__(self, env: BatchedEnvironment, at: int) -> None:
        super().__init__(env)
        self._left = at

    def _step(self, action: Any) -> ts.TimeStep:
        self._left -= 1
        if not self._left:
            raise RuntimeError("on purpose")
        return super()._step(action)


def test_slots_that_never_idle_do_not_after_a_crash() -> None:
    """Who had ended when it came begins, and is cut like the others."""
    begun = itertools.count()

    def build(seed: Seed) -> BatchedEnvironment:
        del seed
        rows = CountingEnvironment(4, 10 * next(begun), episode_lengths=(2, 3), num_actions=2)
        return GroupedRows(_Fails(rows, 4), 2)

    env = RestartingEnvironment(build, max_restarts=1)
    highest = env.observation_spec()["agent"]["step_type"].maximum
    played = [env.reset(), *(env.step({"agent": np.ones((2, 2), np.int64)}) for _ in range(5))]
    parts = [step.observation["agent"] for step in played]
    assert all((part["step_type"] <= highest).all() for part in parts)
    assert [part["step_type"][0].tolist() for part in parts] == [[0, 0], [1, 1], [2, 1], [0, 2], [1, 0], [0, 0]]
    assert [int(step.step_type[0]) for step in played] == [_FIRST, _MID, _MID, _MID, _LAST, _FIRST]
    assert (parts[4]["reward"] == 0.0).all()
    assert (parts[4]["discount"] == 1.0).all()
