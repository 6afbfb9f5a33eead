"""Environments of many agents: every agent sees each of its steps once, whoever else begins, idles or ends."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.environments import agents, create_environment, suite_agents, suite_gym, wrappers
from alf.environments.agents_env import AgentsEnv
from alf.environments.checker import check_environment
from alf.environments.counting_agents import IDLE_REWARD, UNSEEN_REWARD, CountingAgents
from tests.environments.small_agents import SmallAgents

_FIRST, _MID, _LAST, _IDLE = 0, 1, 2, 3
_NUM_ACTIONS = 5


class Seen(NamedTuple):
    """A step as its agent sees it: what it observes, the reward for what it did before, and how it ends."""

    observation: tuple[float, ...]
    reward: float
    step_type: int
    discount: float


Lives = dict[float, list[Seen]]


def _policy(observation: Sequence[float]) -> int:
    """An action that tells agents, and the steps of each, apart."""
    serial, seen, _ = observation
    return int(3 * serial + 2 * seen) % _NUM_ACTIONS


# ---- the oracle: what each agent has to see, kept by agent, from the environment itself ----


def _by_agent(env: Any, steps: int, seed: int, done_condition: str = "all") -> list[Lives]:
    """For each episode what happened to each agent that was ever observed alive; the last episode may be open."""
    episodes: list[Lives] = []
    while steps > 0:
        lives: Lives = {}
        episodes.append(lives)
        owner: dict[str, float] = {}
        owed: dict[str, float] = {}
        last: dict[str, tuple[float, ...]] = {}

        def begin(name: str, value: Any, lives: Lives = lives, owner: Any = owner, last: Any = last) -> None:
            owner[name], last[name] = value[0], tuple(value)
            lives[value[0]] = [Seen(tuple(value), 0.0, _FIRST, 1.0)]

        observations, _ = env.reset(seed=seed if len(episodes) == 1 else None)
        for name, value in observations.items():
            begin(name, value)
        acting = dict(observations)
        while steps > 0:
            steps -= 1
            answer = env.step({name: _policy(value) for name, value in acting.items()})
            observations, rewards, terminations, truncations, infos = answer
            ends = 0
            for name in list(owner):
                owed[name] = owed.get(name, 0.0) + rewards.get(name, 0.0)
                again = "final_obs" in infos.get(name, {})
                terminated, truncated = terminations.get(name, False), truncations.get(name, False)
                if terminated or truncated or name not in env.agents:
                    shown = infos[name]["final_obs"] if again else observations.get(name)
                    value = last[name] if shown is None else tuple(shown)
                    lives[owner.pop(name)].append(Seen(value, owed.pop(name), _LAST, 0.0 if terminated else 1.0))
                    ends += 1
                elif name in observations:
                    last[name] = tuple(observations[name])
                    lives[owner[name]].append(Seen(last[name], owed.pop(name), _MID, 1.0))
            if not env.agents or (ends and done_condition == "any"):
                for name, serial in owner.items():
                    seen = lives[serial]
                    if name not in owed:  # It has seen this step already.
                        seen[-1] = seen[-1]._replace(step_type=_LAST)
                    else:
                        seen.append(Seen(last[name], owed.pop(name), _LAST, 1.0))
                break
            for name, value in observations.items():
                done = terminations.get(name, False) or truncations.get(name, False)
                if name not in owner and name in env.agents and (not done or "final_obs" in infos[name]):
                    begin(name, value)
            acting = {name: value for name, value in observations.items() if name in owner and name in env.agents}
    return episodes


# ---- what the environment with agents shows ----


class Frame(NamedTuple):
    """What one row shows at once: its own step type, reward and discount, and its observation."""

    step_type: int
    reward: float
    discount: float
    observation: Mapping[str, Any]


def _policies(observation: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The actions of all slots [..., K]; what idle ones do is of no account."""
    actions = {}
    for name, part in observation.items():
        flat = part["observation"].reshape(-1, 3)
        actions[name] = np.array([_policy(value) for value in flat]).reshape(part["observation"].shape[:-1])
    return actions


def _frames_of_env(env: gymnasium.Env, steps: int, seed: int) -> Iterator[Frame]:
    observation, _ = env.reset(seed=seed)
    yield Frame(_FIRST, 0.0, 1.0, observation)
    for _ in range(steps):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, _ = env.step(_policies(observation))
        over = terminated or truncated
        yield Frame(_LAST if over else _MID, reward, 0.0 if terminated else 1.0, observation)
        if over:
            observation, _ = env.reset()
            yield Frame(_FIRST, 0.0, 1.0, observation)


def _by_slot(frames: Iterator[Frame] | Sequence[Frame]) -> list[Lives]:
    """For each episode what each slot's agents see, by the numbers that they observe."""
    episodes: list[Lives] = []
    for frame in frames:
        if frame.step_type == _FIRST:
            episodes.append({})
            inside: dict[tuple[str, int], float] = {}
        total = 0.0
        for behavior, part in frame.observation.items():
            for slot, step_type in enumerate(part["step_type"].tolist()):
                if step_type == _IDLE:
                    continue
                value, at = tuple(part["observation"][slot].tolist()), (behavior, slot)
                seen = Seen(value, float(part["reward"][slot]), step_type, float(part["discount"][slot]))
                total += seen.reward
                if step_type == _FIRST:
                    assert at not in inside, "an agent begins in a slot whose agent has not ended"
                    assert value[0] not in episodes[-1], "an agent begins twice"
                    inside[at] = value[0]
                    episodes[-1][value[0]] = []
                assert inside[at] == value[0], "an agent changed its slot"
                episodes[-1][value[0]].append(seen)
                if step_type == _LAST:
                    del inside[at]
        assert frame.reward == pytest.approx(total, abs=1e-5)
        if frame.step_type == _LAST:
            assert not inside, "an agent was left open at the end of the episode"
    return episodes


def _assert_same(shown: list[Lives], expected: list[Lives]) -> None:
    """All episodes but the last are the same; of the last one, what was shown happened."""
    *complete, last = shown
    assert complete == expected[: len(complete)]
    for lives in complete:
        for seen in lives.values():
            assert [s.step_type for s in seen] == [_FIRST] + [_MID] * (len(seen) - 2) + [_LAST]
    for serial, seen in last.items():
        assert seen == expected[len(complete)][serial][: len(seen)]


_SCRIPTS = st.fixed_dictionaries(
    {
        "max_agents": st.integers(1, 4),
        "steps": st.integers(1, 15),
        "birth": st.sampled_from([0.0, 0.3, 1.0]),
        "death": st.sampled_from([0.0, 0.3, 0.9]),
        "idle": st.sampled_from([0.0, 0.3, 0.9]),
        "again": st.sampled_from([0.0, 0.5, 1.0]),
        "kinds": st.sampled_from([("agent",), ("ant", "bee")]),
    }
)


def _wrapped(script: Mapping[str, Any], **kwargs: Any) -> AgentsEnv:
    behaviors = {f"{kind}_*": kind for kind in script["kinds"]}
    slots = dict.fromkeys(script["kinds"], script["max_agents"])
    return AgentsEnv(CountingAgents(**script), behaviors=behaviors, slots=slots, **kwargs)


@given(_SCRIPTS, st.integers(0, 1000), st.sampled_from(["any", "all"]))
def test_nothing_is_lost_doubled_or_mixed(script: dict[str, Any], seed: int, done_condition: str) -> None:
    env = _wrapped(script, done_condition=done_condition)
    shown = _by_slot(_frames_of_env(env, 150, seed))
    expected = _by_agent(CountingAgents(**script), 151, seed, done_condition)
    _assert_same(shown, expected)
    assert max(s.reward for lives in shown for seen in lives.values() for s in seen) < UNSEEN_REWARD


def _rows(name: str, vectorization: str, size: int, seed: int, steps: int) -> list[list[Lives]]:
    """What the agents of each row of a batch see."""
    env = create_environment(
        name, suite_agents.load, size, seed=list(range(seed, seed + size)), vectorization=vectorization
    )
    try:
        played = [env.reset()]
        for _ in range(steps):
            played.append(env.step(_policies(played[-1].observation)))
    finally:
        env.close()

    def frame(step: Any, row: int) -> Frame:
        observation = {name: {f: value[row] for f, value in part.items()} for name, part in step.observation.items()}
        return Frame(step.step_type[row], step.reward[row], step.discount[row], observation)

    return [_by_slot([frame(step, row) for step in played]) for row in range(size)]


@pytest.mark.parametrize(("vectorization", "size"), [("single", 1), ("sync", 3), ("async", 2)])
def test_batches_of_every_kind_show_the_same(vectorization: str, size: int) -> None:
    for row, shown in enumerate(_rows("counting", vectorization, size, 7, 120)):
        _assert_same(shown, _by_agent(CountingAgents(), 121, 7 + row))
        assert len(shown) > 3


def test_specs_tell_the_slots() -> None:
    env = create_environment("counting", suite_agents.load, 2)
    assert agents.slots_of(env.observation_spec()) == {"agent": agents.Slots(3, True)}
    env = create_environment("pursuit", suite_agents.load, 2)
    assert agents.slots_of(env.observation_spec()) == {
        "chaser": agents.Slots(3, False),
        "runner": agents.Slots(1, False),
    }


def test_idle_rewards_are_summed() -> None:
    script = {"max_agents": 1, "death": 0.0, "idle": 0.8, "steps": 200}
    shown = _by_slot(_frames_of_env(AgentsEnv(CountingAgents(**script), slots={"agent": 1}), 199, 3))
    [[seen]] = [list(lives.values()) for lives in shown]
    for before, after in itertools.pairwise(seen):
        idle = after.observation[2] - before.observation[2] - 1
        earned = CountingAgents.expected_reward(int(before.observation[1]), _policy(before.observation))
        assert after.reward == pytest.approx(earned + idle * IDLE_REWARD, abs=1e-5)


def test_choices_of_several_axes_are_stacked_in_front() -> None:
    space = agents.stacked_space(gymnasium.spaces.MultiDiscrete([[2, 3], [3, 4]], start=[[0, 1], [2, 3]]), 2)
    assert space.shape == (2, 2, 2)
    np.testing.assert_array_equal(space.nvec, [[[2, 3], [3, 4]]] * 2)
    np.testing.assert_array_equal(space.start, [[[0, 1], [2, 3]]] * 2)


class _Bytes(CountingAgents):
    """Agents that observe the number `seen`, in a space of bytes."""

    seen: float = 0.0

    def observation_space(self, agent: str) -> gymnasium.spaces.Dict:  # type: ignore[override]
        del agent
        return gymnasium.spaces.Dict({"byte": gymnasium.spaces.Box(0, 255, (1,), np.uint8)})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = super().reset(seed, options)
        return {name: {"byte": np.array([self.seen])} for name in observations}, infos


@pytest.mark.parametrize(("seen", "told"), [(0.5, "0.5"), (300.0, "300.0"), (-1.0, "-1.0")])
def test_what_a_space_of_whole_numbers_cannot_hold_is_an_error(seen: float, told: str) -> None:
    """An assignment to an array would make 0, 44 and 255 of them, without a word."""
    inside = _Bytes(idle=0.0)
    env = AgentsEnv(inside, slots={"agent": 3})
    inside.seen = 7.0
    np.testing.assert_array_equal(env.reset()[0]["agent"]["observation"]["byte"], [[7], [0], [0]])
    inside.seen = seen
    with pytest.raises(ValueError, match=rf"agent 'agent_\d+' .* holds {told}, which the uint8 of its space"):
        env.reset()


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3, start=1, dtype=np.int32),
        gymnasium.spaces.Discrete(200, dtype=np.uint8),
        gymnasium.spaces.MultiDiscrete([3, 4], dtype=np.uint8),
        gymnasium.spaces.MultiDiscrete([3, 4], dtype=np.int32, start=[1, -1]),
        gymnasium.spaces.Box(0, 255, (2,), np.uint8),
    ],
    ids=str,
)
def test_agents_get_actions_of_their_space(space: gymnasium.Space) -> None:
    taken = []

    class Picky(CountingAgents):
        def action_space(self, agent: str) -> gymnasium.Space:
            return space

        def step(self, actions: Any) -> Any:
            assert all(space.contains(action) for action in actions.values()), actions
            taken.extend(actions.values())
            return super().step(dict.fromkeys(actions, 0))

    load = functools.partial(suite_agents.load, slots={"agent": 3})
    env = create_environment(Picky, load, num_parallel_environments=2, seed=0, max_restarts=0)
    assert env.action_spec()["agent"].dtype == np.int64
    env.reset()
    for _ in range(5):
        env.step({"agent": np.ones((2, *env.action_spec()["agent"].shape), np.int64)})
    assert taken
    env.close()


@pytest.mark.parametrize(
    "wrap",
    [
        functools.partial(wrappers.FrameSkip, skip=2),
        functools.partial(wrappers.FrameStack, fields=["chaser.observation"]),
        functools.partial(wrappers.FrameResize, fields=["chaser.observation"]),
        functools.partial(wrappers.FrameGrayScale, fields=["chaser.observation"]),
        wrappers.OneHot,
        wrappers.AccumulatedReward,
    ],
    ids=lambda wrap: getattr(wrap, "func", wrap).__name__,
)
def test_wrappers_of_a_single_agent_refuse_several(wrap: Any) -> None:
    name = getattr(wrap, "func", wrap).__name__
    with pytest.raises(ValueError, match=rf"{name} is for a single agent; .* has \['chaser', 'runner'\]: leave it out"):
        wrap(SmallAgents())


def test_a_wrapper_of_ones_own_may_change_what_agents_see() -> None:
    class Halved(wrappers.BaseObservationWrapper):
        def transform_box(self, space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
            return space

        def transform(self, field: str, value: Any) -> np.ndarray:
            return value / 2

    env = Halved(SmallAgents(), fields=["chaser.observation"])
    env.reset()
    assert env.step(None)[0]["chaser"]["observation"][:, 0].tolist() == [0.5, 0.5]


def test_agents_are_not_told_of_a_wrapper_that_refuses_them() -> None:
    class Numbers(SmallAgents):
        def __init__(self) -> None:
            super().__init__()
            part = agents.agents_space(gymnasium.spaces.Discrete(9), 2, may_idle=False)
            self.observation_space = gymnasium.spaces.Dict({"chaser": part})

        def _observe(self) -> dict[str, Any]:
            part = super()._observe()["chaser"]
            return {"chaser": {**part, "observation": np.zeros(2, np.int64)}}

    assert "numbers" not in {finding.check for finding in check_environment(suite_gym.load(Numbers), 20)}
