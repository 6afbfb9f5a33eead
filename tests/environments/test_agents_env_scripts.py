"""Environments of many agents, step by step: scripts of a few turns and what the slots show of them; and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from alf.environments import create_environment, suite_agents
from alf.environments.agents_env import AgentsEnv

_FIRST, _MID, _LAST, _IDLE = 0, 1, 2, 3


class Turn(NamedTuple):
    """What a step gives: observations, rewards, who terminates, who is truncated, who is alive then, and infos."""

    observations: Mapping[str, Any]
    rewards: Mapping[str, Any] = {}
    terminated: Sequence[str] = ()
    truncated: Sequence[str] = ()
    alive: Sequence[str] | None = None
    infos: Mapping[str, Any] = {}


class Scripted:
    """Replays turns; the first is the reset's. An observation is one number. It keeps the actions that it is given."""

    def __init__(self, turns: Sequence[Turn], possible: Sequence[str] = (), space: spaces.Space | None = None) -> None:
        self.turns, self.possible_agents = list(turns), list(possible)
        self.space = space or spaces.Box(-100.0, 100.0, (), np.float32)
        self.agents: list[str] = []
        self.given: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return self.space

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(9)

    def _turn(self) -> Turn:
        turn = self.turns.pop(0)
        done = {*turn.terminated, *turn.truncated}
        alive = [n for n in turn.observations if n not in done] if turn.alive is None else turn.alive
        self.agents = list(alive)
        return turn

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self._turn().observations, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.given.append({name: int(action) for name, action in actions.items()})
        turn = self._turn()
        ends = (dict.fromkeys(names, True) for names in (turn.terminated, turn.truncated))
        return turn.observations, turn.rewards, *ends, turn.infos

    def close(self) -> None:
        self.agents = []


def _play(env: AgentsEnv, actions: Sequence[Any]) -> list[Any]:
    """What behavior "agent" shows: its step types, rewards, discounts and observations by slot; then the episode's end."""
    observation, _ = env.reset()
    shown, end = [observation["agent"]], (False, False)
    for action in actions:
        observation, _, *end = env.step({"agent": np.asarray(action)})[:4]
        shown.append(observation["agent"])
    return [
        [part[field].tolist() for part in shown] for field in ("step_type", "reward", "discount", "observation")
    ] + [tuple(end)]


def test_an_end_and_a_new_begin_in_one_step_take_two_where_there_is_one_slot() -> None:
    turns = [
        Turn({"a": 1.0}),
        Turn({"a": 3.0}, {"a": 5.0}, terminated=["a"], alive=["a"], infos={"a": {"final_obs": 2.0}}),
        Turn({"a": 4.0}, {"a": 6.0}, truncated=["a"]),
    ]
    scripted = Scripted(turns, ["a"])
    types, rewards, discounts, values, end = _play(AgentsEnv(scripted), [[7], [8], [1]])
    assert types == [[_FIRST], [_LAST], [_FIRST], [_LAST]]
    assert rewards == [[0.0], [5.0], [0.0], [6.0]]
    assert discounts == [[1.0], [0.0], [1.0], [1.0]]
    assert values == [[1.0], [2.0], [3.0], [4.0]]
    assert end == (False, True)
    assert scripted.given == [{"a": 7}, {"a": 1}]  # The step in between shows what is left, and asks nobody.


def test_an_end_and_a_new_begin_in_one_step_take_one_where_a_slot_is_free() -> None:
    turns = [
        Turn({"a": 1.0}),
        Turn({"a": 3.0}, {"a": 5.0}, terminated=["a"], alive=["a"], infos={"a": {"final_obs": 2.0}}),
        Turn({"a": 4.0}, {"a": 6.0}),
    ]
    scripted = Scripted(turns)
    types, rewards, _, values, _ = _play(AgentsEnv(scripted, slots={"agent": 2}), [[7, 0], [0, 8]])
    assert types == [[_FIRST, _IDLE], [_LAST, _FIRST], [_IDLE, _MID]]
    assert values == [[1.0, 0.0], [2.0, 3.0], [0.0, 4.0]]
    assert rewards[2] == [0.0, 6.0]
    assert scripted.given == [{"a": 7}, {"a": 8}]


def test_others_wait_while_an_end_is_shown_alone() -> None:
    turns = [
        Turn({"a": 1.0, "b": 10.0}),
        Turn({"b": 11.0, "c": 20.0}, {"a": 0.5, "b": 0.25}, terminated=["a"], alive=["b", "c"]),
        Turn({"b": 12.0, "c": 21.0}, {"b": 1.0, "c": 2.0}),
    ]
    scripted = Scripted(turns)
    types, rewards, _, values, _ = _play(AgentsEnv(scripted, slots={"agent": 2}), [[1, 2], [3, 4], [5, 6]])
    assert types == [[_FIRST, _FIRST], [_LAST, _IDLE], [_FIRST, _MID], [_MID, _MID]]
    assert rewards == [[0.0, 0.0], [0.5, 0.0], [0.0, 0.25], [2.0, 1.0]]
    assert values == [[1.0, 10.0], [1.0, 0.0], [20.0, 11.0], [21.0, 12.0]]
    assert scripted.given == [{"a": 1, "b": 2}, {"c": 5, "b": 6}]


def test_any_ends_the_episode_for_all_and_nobody_may_idle() -> None:
    turns = [Turn({"a": 1.0, "b": 2.0}), Turn({"a": 3.0, "b": 4.0}, {"a": 1.0, "b": 2.0}, terminated=["b"])]
    env = AgentsEnv(Scripted(turns, ["a", "b"]), done_condition="any")
    assert env.observation_space["agent"]["step_type"].high.tolist() == [2, 2]
    types, rewards, discounts, values, end = _play(env, [[0, 0]])
    assert (types[1], rewards[1], discounts[1], values[1]) == ([_LAST, _LAST], [1.0, 2.0], [1.0, 0.0], [3.0, 4.0])
    assert end == (False, True)


def test_all_goes_on_until_every_one_is_done_though_the_dead_stay_listed() -> None:
    both = ["a", "b"]
    turns = [
        Turn({"a": 1.0, "b": 2.0}),
        Turn({"a": 3.0, "b": 4.0}, {"a": 1.0, "b": 2.0}, terminated=["b"], alive=both),
        Turn({"a": 5.0, "b": 4.0}, {"a": 1.0, "b": 9.0}, terminated=["b"], alive=both),
        Turn({"a": 6.0, "b": 4.0}, {"a": 1.0, "b": 9.0}, terminated=both, alive=both),
    ]
    scripted = Scripted(turns, both)
    env = AgentsEnv(scripted)
    assert env.observation_space["agent"]["step_type"].high.tolist() == [_IDLE, _IDLE]
    types, rewards, discounts, _, end = _play(env, [[1, 2], [3, 4], [5, 6]])
    assert types[1:] == [[_MID, _LAST], [_MID, _IDLE], [_LAST, _IDLE]]
    assert rewards[1:] == [[1.0, 2.0], [1.0, 0.0], [1.0, 0.0]]
    assert discounts[1:] == [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    assert end == (True, False)
    assert scripted.given == [{"a": 1, "b": 2}, {"a": 3}, {"a": 5}]


def test_a_time_limit_gives_everybody_the_last_response() -> None:
    turns = [
        Turn({"a": 1.0, "b": 2.0}),
        Turn({"a": 3.0}, {"a": 1.0, "b": 2.0}, alive=["a", "b"]),
        Turn({"a": 4.0}, {"a": 1.0, "b": 3.0}, alive=["a", "b"]),
    ]
    types, rewards, discounts, values, end = _play(
        AgentsEnv(Scripted(turns, ["a", "b"]), max_episode_steps=2), [[1, 2], [3, 4]]
    )
    assert types == [[_FIRST, _FIRST], [_MID, _IDLE], [_LAST, _LAST]]
    assert rewards == [[0.0, 0.0], [1.0, 0.0], [1.0, 5.0]]
    assert (discounts[2], values[2], end) == ([1.0, 1.0], [4.0, 2.0], (False, True))


def test_an_agent_that_ends_when_it_is_first_seen_leaves_no_trace() -> None:
    turns = [Turn({"a": 1.0}), Turn({"a": 2.0, "b": 3.0}, {"a": 1.0, "b": 50.0}, terminated=["b"])]
    env = AgentsEnv(Scripted(turns), slots={"agent": 2})
    env.reset()
    observation, reward, terminated, truncated, _ = env.step({"agent": np.zeros(2, int)})
    assert observation["agent"]["step_type"].tolist() == [_MID, _IDLE]
    assert (reward, terminated, truncated) == (1.0, False, False)


def test_a_team_shares_its_rewards() -> None:
    turns = [
        Turn({"a_0": 1.0, "a_1": 2.0, "b_0": 3.0}),
        Turn({"a_0": 1.0, "a_1": 2.0, "b_0": 3.0}, {"a_0": 1.0, "a_1": 2.0, "b_0": 40.0}),
    ]
    teams = {"a_*": "left", "b_*": "right"}
    env = AgentsEnv(Scripted(turns, ["a_0", "a_1", "b_0"]), teams, share_reward=True)
    env.reset()
    observation, reward, *_ = env.step({"left": np.zeros(2, int), "right": np.zeros(1, int)})
    assert observation["left"]["reward"].tolist() == [3.0, 3.0]
    assert observation["right"]["reward"].tolist() == [40.0]
    assert reward == 46.0


def test_agents_see_their_group() -> None:
    turns = [
        Turn({"a": 1.0, "b": 2.0}),
        Turn({"a": 3.0, "b": 4.0}, alive=["a", "b"]),
        Turn({"a": 5.0, "b": 6.0}, terminated=["b"]),
        Turn({"a": 7.0, "c": 8.0}),
        Turn({"a": 9.0, "c": 10.0}, truncated=["c"]),
        Turn({"a": 11.0}),
    ]
    env = AgentsEnv(Scripted(turns), slots={"agent": 3}, with_group=True)
    observation, _ = env.reset()
    seen = [observation]
    for _ in turns[1:]:
        seen.append(env.step({"agent": np.zeros(3, int)})[0])
    assert all(env.observation_space.contains(observation) for observation in seen)
    values = [observation["agent"]["observation"] for observation in seen]
    expected = [[1, 2, 0], [3, 4, 0], [5, 6, 0], [7, 8, 0], [9, 10, 0], [11, 0, 0]]
    assert [value["own"].tolist() for value in values] == expected
    # Who has terminated is not alive, at once; who was truncated is, for what its last step is worth.
    groups = [[1, 2, 0], [3, 4, 0], [5, 0, 0], [7, 8, 0], [9, 10, 0], [11, 0, 0]]
    for value, group in zip(values, groups, strict=True):
        assert value["group"].tolist() == [group] * 3
        assert value["alive"].tolist() == [[float(v != 0) for v in group]] * 3


def test_a_reward_that_was_not_told_ends_with_an_episode_that_is_broken_off() -> None:
    both = {"a": 1.0, "b": 1.0}
    turns = [Turn(both), Turn({"b": 2.0}, {"a": 5.0, "b": 1.0}, alive=["a", "b"]), Turn(both), Turn(both, both)]
    env = AgentsEnv(Scripted(turns), slots={"agent": 2})
    for _ in range(2):
        env.reset()
        observation = env.step({"agent": np.zeros(2, int)})[0]
    assert observation["agent"]["reward"].tolist() == [1.0, 1.0]


class Mixed(Scripted):
    """Agents with nested spaces, which check what they are given."""

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Dict({"go": spaces.Box(-1.0, 1.0, (2,), np.float32), "say": spaces.Discrete(3, start=1)})

    def step(self, actions: dict[str, Any]) -> Any:
        self.given.append(actions)
        assert all(self.action_space(name).contains(action) for name, action in actions.items())
        turn = self._turn()
        return turn.observations, {}, {}, {}, {}


def test_nested_spaces() -> None:
    space = spaces.Dict({"place": spaces.Discrete(5), "rest": spaces.Tuple((spaces.MultiBinary(2),))})
    first, second = ({"place": n, "rest": (np.array([n % 2, 1]),)} for n in (3, 4))
    scripted = Mixed([Turn({"a": first, "b": second}), Turn({"a": second, "b": first})], ["a", "b"], space)
    env = AgentsEnv(scripted, done_condition="any")
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    assert observation["agent"]["observation"]["place"].tolist() == [3, 4]
    assert observation["agent"]["observation"]["rest"][0].tolist() == [[1, 1], [0, 1]]
    action = {"agent": {"go": np.array([[0.5, -1], [0, 1]], np.float32), "say": np.array([1, 3])}}
    assert env.action_space.contains(action)
    env.step(action)
    assert scripted.given[0]["a"]["go"].tolist() == [0.5, -1.0]
    assert [scripted.given[0][name]["say"] for name in ("a", "b")] == [1, 3]


def test_what_is_handed_out_is_not_written_to() -> None:
    turns = [Turn({"a": 1.0}), Turn({"a": 2.0}, {"a": 3.0}), Turn({"a": 4.0}, {"a": 5.0})]
    env = AgentsEnv(Scripted(turns, ["a"]))
    seen = [env.reset()[0]] + [env.step({"agent": np.zeros(1, int)})[0] for _ in range(2)]
    assert [part["agent"]["observation"].tolist() for part in seen] == [[1.0], [2.0], [4.0]]
    assert [part["agent"]["reward"].tolist() for part in seen] == [[0.0], [3.0], [5.0]]


class _Seeded(Scripted):
    """Keeps the seeds and options of its resets."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.given.append({"seed": seed, "options": options})
        return super().reset(seed, options)


@pytest.mark.parametrize("empty", [0, 1, 9])
def test_an_episode_without_agents_is_passed_over(empty: int) -> None:
    """Reset again without the seed, by which nobody would be there again."""
    scripted = _Seeded([Turn({})] * empty + [Turn({"a": 4.0}), Turn({"a": 5.0}, {"a": 1.0})], ["a"])
    env = AgentsEnv(scripted)
    observation, _ = env.reset(seed=7, options={"level": 3})
    assert observation["agent"]["observation"].tolist() == [4.0]
    assert [one["seed"] for one in scripted.given] == [7] + [None] * empty
    assert all(one["options"] == {"level": 3} for one in scripted.given)


# ---- errors ----


def _first_step(env: AgentsEnv) -> None:
    env.reset()
    env.step({name: np.zeros(space.shape, int) for name, space in env.action_space.spaces.items()})


_ALONE = Turn({"a": 1.0})
_PAIR = Turn({"a": 1.0, "b": 2.0})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AgentsEnv(Scripted([_PAIR]), slots={"agent": 1}), r"'agent' has 1 slots .* 2 agents .* raise slots"),
        (lambda: AgentsEnv(Scripted([_PAIR], ["a"])), "Agent 'b' appeared"),
        (lambda: AgentsEnv(Scripted([_ALONE, Turn({"a": 1.0}, {"a": None})], ["a"])), "reward of agent 'a' is None"),
        (lambda: AgentsEnv(Scripted([_ALONE, Turn({"a": [1.0, 2.0]})], ["a"])), r"agent 'a' .* shape \(2,\)"),
        (lambda: AgentsEnv(Scripted([_ALONE], ["a", "b"]), done_condition="any"), "Agent 'b' .* not observed"),
        (lambda: AgentsEnv(Scripted([Turn({})] * 10, ["a"])), r"no agent alive after its reset \(tried 10 times\)"),
        (
            lambda: AgentsEnv(Scripted([_PAIR], ["a"]), {"a": "x", "b": "y"}),
            "behavior 'y' appeared, which has no slots",
        ),
        (lambda: AgentsEnv(Scripted([])), "no possible_agents"),
        (lambda: AgentsEnv(Scripted([], ["a"]), {"b": "x"}), "Agent 'a' has no behavior"),
        (lambda: AgentsEnv(Scripted([], ["a"]), slots={"agent": 0}), "at least one"),
        (lambda: AgentsEnv(Scripted([], ["a"]), done_condition="some"), "done_condition"),
        (lambda: AgentsEnv(Scripted([], ["a"]), max_episode_steps=0), "max_episode_steps"),
        (lambda: AgentsEnv(Scripted([], ["a"], spaces.Text(3))), "kind Text"),
    ],
)
def test_errors_say_who_and_what_to_do(build: Callable[[], AgentsEnv], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _first_step(build())


def test_unequal_spaces_need_behaviors() -> None:
    class Unequal(Scripted):
        def observation_space(self, agent: str) -> spaces.Space:
            return spaces.Box(-1.0, 1.0, (ord(agent) - ord("a") + 1,), np.float32)

    with pytest.raises(ValueError, match=r"'a' and 'b' have one behavior, 'agent', and different spaces.*behaviors="):
        AgentsEnv(Unequal([], ["a", "b"]))
    env = AgentsEnv(Unequal([], ["a", "b"]), {"a": "small", "b": "large"})
    assert env.observation_space["large"]["observation"].shape == (1, 2)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    def make() -> Scripted:
        return Scripted([_PAIR, Turn({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": np.nan})], ["a", "b"])

    env = create_environment(make, suite_agents.load, 1)
    env.reset()
    with pytest.raises(FloatingPointError, match=r"reward.*nan"):
        env.step({"agent": np.zeros((1, 2), int)})
