"""Hierarchies: what either level sees, against the steps of the environment itself; goals as episodes; what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from alf.environments import agents, create_environment, suite_gym
from alf.environments.checker import FAIL, check_environment
from alf.environments.hierarchy import Goals, Hierarchy

_FIRST, _MID, _LAST, _IDLE = 0, 1, 2, 3


class Line(gymnasium.Env):
    """A walk on a line from 0, left or right, rewarded by the place squared, until `length` steps or `end` places away."""

    def __init__(self, length: int = 20, end: int = 5) -> None:
        self.observation_space = spaces.Box(-20.0, 20.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length, self._end = length, end
        self._place = np.zeros(1, np.float32)
        self._clock = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place[:], self._clock = 0.0, 0
        return self._place, {"clock": 0}

    def step(self, action: Any) -> Any:
        self._place += 2 * int(action) - 1
        self._clock += 1
        place = float(self._place[0])
        # One array for all observations: what is kept of them must be a copy.
        return self._place, place**2, abs(place) >= self._end, self._clock >= self._length, {"clock": self._clock}


class Seen(NamedTuple):
    """A step as a level sees it."""

    step_type: int
    reward: float
    discount: float
    observation: tuple[float, ...]


def _goal_reward(observation: Any, goal: Any, following: Any) -> float:
    return float(100 * (goal - 3) + 10 * following[0] + observation[0])


class LineGoals(Goals):
    """A goal is a place, from -3 to 3."""

    def __init__(self, asks: bool, rewards: bool) -> None:
        self._asks, self._rewards = asks, rewards

    def space(self, env: gymnasium.Env) -> spaces.Space:
        return spaces.Discrete(7)

    def reached(self, observation: Any, goal: Any) -> bool:
        return self._asks and bool(observation[0] == goal - 3)

    def reward(self, observation: Any, goal: Any, next_observation: Any) -> float:
        return _goal_reward(observation, goal, next_observation) if self._rewards else 0.0

    def view(self, observation: Any, goal: Any) -> Any:
        return np.array([observation[0], goal], np.float32)

    def view_space(self, env: gymnasium.Env) -> spaces.Space:
        return spaces.Box(-20.0, 20.0, (2,), np.float32)


class Settings(NamedTuple):
    """Of a hierarchy on the line."""

    limit: int
    asks: bool
    rewards: bool
    weight: float
    goal_is_episode: bool


_SETTINGS = st.builds(
    Settings, st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()
)


def _hierarchy(settings: Settings, **line: int) -> Hierarchy:
    goals = LineGoals(settings.asks, settings.rewards)
    return Hierarchy(Line(**line), goals, settings.limit, settings.weight, settings.goal_is_episode)


def _expected(settings: Settings, goals: Iterator[int], moves: Iterator[int], **line: int) -> Any:
    """One episode by a loop over goals and one over steps: what each level sees, and the environment's rewards."""
    env = Line(**line)
    place = env.reset()[0].copy()
    upper, lower, rewards = [Seen(_FIRST, 0.0, 1.0, tuple(place))], [], []
    owed = 0.0
    while True:
        goal = next(goals)
        if not lower or lower[-1].step_type == _LAST:
            lower.append(Seen(_FIRST, 0.0, 1.0, (*place, goal)))
        else:
            # It waited with what it got for its last step.
            lower.append(Seen(_MID, owed, 1.0, (*place, goal)))
        total = 0.0
        for step in range(settings.limit):
            observation, reward, terminated, truncated, _ = env.step(next(moves))
            before, place = place, observation.copy()
            rewards.append(reward)
            total += reward
            owed = settings.weight * reward + (_goal_reward(before, goal, place) if settings.rewards else 0.0)
            reached = settings.asks and place[0] == goal - 3
            turn = reached or step == settings.limit - 1
            if terminated or truncated or (turn and settings.goal_is_episode):
                ends = terminated or (reached and settings.goal_is_episode)
                lower.append(Seen(_LAST, owed, 0.0 if ends else 1.0, (*place, goal)))
            elif not turn:
                lower.append(Seen(_MID, owed, 1.0, (*place, goal)))
            if terminated or truncated:
                upper.append(Seen(_LAST, total, 0.0 if terminated else 1.0, tuple(place)))
                return upper, lower, rewards, (terminated, truncated)
            if turn:
                break
        upper.append(Seen(_MID, total, 1.0, tuple(place)))


def _shown(env: gymnasium.Env, goals: Iterator[int], moves: Iterator[int]) -> Any:
    """One episode of the hierarchy: what each level sees where it is not idle, and the rewards that are not 0."""
    observation, _ = env.reset(seed=0)
    seen: dict[str, list[Seen]] = {"upper": [], "lower": []}
    rewards, frames, end = [], 0, (False, False)
    goal = np.zeros(1, int)
    while True:
        assert env.observation_space.contains(observation)
        deciding = []
        for name, part in observation.items():
            if part["step_type"][0] != _IDLE:
                fields = (part[f].tolist()[0] for f in ("step_type", "reward", "discount", "observation"))
                seen[name].append(Seen(*(tuple(x) if isinstance(x, list) else x for x in fields)))
            if part["step_type"][0] in (_FIRST, _MID):
                deciding.append(name)
        if any(end):
            return seen["upper"], seen["lower"], rewards, end, frames
        assert len(deciding) == 1, "each step but the last is the decision of one level"
        goal[0] = next(goals) if deciding == ["upper"] else 6 - goal[0]
        move = next(moves) if deciding == ["lower"] else 1
        observation, reward, *end, _ = env.step({"upper": goal, "lower": np.array([move])})
        end = tuple(end)
        frames += 1
        if deciding == ["lower"]:
            rewards.append(reward)
        else:
            assert reward == 0.0


@given(
    _SETTINGS,
    st.lists(st.integers(0, 6), min_size=25, max_size=25),
    st.lists(st.integers(0, 1), min_size=20, max_size=20),
    st.integers(1, 20),
)
def test_both_levels_see_what_they_should(settings: Settings, goals: Any, moves: Any, length: int) -> None:
    upper, lower, rewards, end = _expected(settings, iter(goals), iter(moves), length=length)
    *shown, frames = _shown(_hierarchy(settings, length=length), iter(goals), iter(moves))
    assert shown == [upper, lower, rewards, end]
    assert frames == len(rewards) + len(upper) - 1
    assert sum(seen.reward for seen in upper) == pytest.approx(sum(rewards))
    again = _hierarchy(settings, length=length)
    for _ in range(2):
        *repeated, _ = _shown(again, iter(goals), iter(moves))
        assert repeated == shown


def test_a_goal_that_is_reached_ends_the_episode_of_the_lower_one() -> None:
    settings = Settings(4, True, True, 0.5, True)
    upper, lower, rewards, _, _ = _shown(_hierarchy(settings, length=3), iter([5, 1]), iter([1, 1, 0]))
    assert rewards == [1.0, 4.0, 1.0]
    assert upper == [(_FIRST, 0, 1, (0,)), (_MID, 5, 1, (2,)), (_LAST, 1, 1, (1,))]
    first_goal = [(_FIRST, 0, 1, (0, 5)), (_MID, 210.5, 1, (1, 5)), (_LAST, 223, 0, (2, 5))]
    assert lower == [*first_goal, (_FIRST, 0, 1, (2, 1)), (_LAST, -187.5, 1, (1, 1))]


@pytest.mark.parametrize(("goal_is_episode", "discount"), [(True, 0.0), (False, 1.0)])
def test_a_goal_that_is_reached_at_the_time_limit(goal_is_episode: bool, discount: float) -> None:
    settings = Settings(4, True, True, 0.0, goal_is_episode)
    upper, lower, *_ = _shown(_hierarchy(settings, length=2), iter([5]), iter([1, 1]))
    assert (upper[-1].step_type, upper[-1].discount) == (_LAST, 1.0)
    assert (lower[-1].step_type, lower[-1].discount) == (_LAST, discount)


class Listed(gymnasium.Wrapper):
    """Tells flags as lists of one, or rewards."""

    def __init__(self, env: gymnasium.Env, flags: bool) -> None:
        super().__init__(env)
        self._flags = flags

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._flags:
            return observation, reward, [terminated], [truncated], info
        return observation, [reward], terminated, truncated, info


@pytest.mark.parametrize("flags", [True, False])
@pytest.mark.parametrize("length", [3, 20])
def test_flags_and_rewards_may_be_lists_of_one(length: int, flags: bool) -> None:
    """Episodes that are truncated, after 3 steps, and that end, 5 places away."""
    settings, goals, moves = Settings(4, True, True, 0.5, True), [5, 1, 6], [1] * 20
    listed = Hierarchy(Listed(Line(length), flags), LineGoals(True, True), settings.limit, settings.weight, True)
    expected = _shown(_hierarchy(settings, length=length), iter(goals), iter(moves))
    assert _shown(listed, iter(goals), iter(moves)) == expected


def _lines(vectorization: str) -> Any:
    settings = Settings(3, True, True, 0.0, True)
    return create_environment(lambda: _hierarchy(settings), suite_gym.load, 3, seed=1, vectorization=vectorization)


def test_in_a_batch() -> None:
    """Rows of one batch, each with moves of its own, are what single environments show."""
    env, rng = _lines("sync"), np.random.default_rng(0)
    goals, moves = rng.integers(0, 7, (60, 3, 1)), rng.integers(0, 2, (60, 3, 1))
    steps = [env.reset()] + [env.step({"upper": g, "lower": m}) for g, m in zip(goals, moves, strict=True)]
    assert agents.slots_of(env.observation_spec()) == {
        "lower": agents.Slots(1, True),
        "upper": agents.Slots(1, True),
    }
    for row in range(3):
        alone = _hierarchy(Settings(3, True, True, 0.0, True))
        observation, over = alone.reset()[0], False
        for t, step in enumerate(steps):
            for name, field in ((n, f) for n, part in observation.items() for f in part):
                np.testing.assert_array_equal(step.observation[name][field][row], observation[name][field])
            if over:
                observation, over = alone.reset()[0], False
                assert step.step_type[row] == _LAST
            elif t < 60:
                observation, _, terminated, truncated, _ = alone.step({"upper": goals[t, row], "lower": moves[t, row]})
                over = terminated or truncated


def test_it_keeps_to_the_interface() -> None:
    findings = check_environment(suite_gym.load(lambda: _hierarchy(Settings(3, True, False, 1.0, False))), 120)
    assert not [finding for finding in findings if finding.level == FAIL]


def test_a_goal_may_choose_what_is_seen_and_allowed() -> None:
    """A directive that crops the observation and masks actions."""

    class Attention(Goals):
        def space(self, env: gymnasium.Env) -> spaces.Space:
            return spaces.Discrete(2)

        def view(self, observation: Any, goal: Any) -> Any:
            left = int(goal) * 2
            return {"crop": observation[left : left + 2], "mask": np.array([goal == 0, True, goal == 1])}

        def view_space(self, env: gymnasium.Env) -> spaces.Space:
            crop = spaces.Box(0.0, 9.0, (2,), np.float32)
            return spaces.Dict({"crop": crop, "mask": spaces.MultiBinary(int(env.action_space.n))})

    class Pair(gymnasium.Env):
        observation_space = spaces.Box(0.0, 9.0, (4,), np.float32)
        action_space = spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.arange(4, dtype=np.float32), {}

        def step(self, action: Any) -> Any:
            return np.arange(4, 8, dtype=np.float32), 0.0, False, False, {}

    env = Hierarchy(Pair(), Attention(), 2)
    env.reset()
    seen = [env.step({"upper": np.array([goal]), "lower": np.array([1])})[0] for goal in (1, 0)]
    crops = [part["lower"]["observation"]["crop"][0].tolist() for part in seen]
    masks = [part["lower"]["observation"]["mask"][0].tolist() for part in seen]
    assert crops == [[2.0, 3.0], [6.0, 7.0]]
    assert masks == [[0, 1, 1], [0, 1, 1]]
    assert all(env.observation_space.contains(observation) for observation in seen)


class Plain(Goals):
    """Nothing but a space."""

    def __init__(self, space: spaces.Space) -> None:
        self._space = space

    def space(self, env: gymnasium.Env) -> spaces.Space:
        return self._space


def test_a_space_is_enough() -> None:
    """The lower one sees observation and goal, and gets the environment's rewards."""
    env = Hierarchy(Line(), Plain(spaces.Box(-1.0, 1.0, (2,), np.float32)), 2)
    env.reset()
    goal = np.array([[0.25, -0.5]], np.float32)
    observation = env.step({"upper": goal, "lower": np.array([1])})[0]
    goal[:] = 1.0
    following = env.step({"upper": goal, "lower": np.array([1])})[0]
    for shown, place in ((observation, 0.0), (following, 1.0)):
        seen = shown["lower"]["observation"]
        assert (seen["observation"].tolist(), seen["goal"].tolist()) == ([[place]], [[0.25, -0.5]])
        assert shown["lower"]["reward"].tolist() == [place**2]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step; got steps_limit=0"):
        Hierarchy(Line(), LineGoals(True, True), 0)
    with pytest.raises(ValueError, match="kind Text"):
        Hierarchy(Line(), Plain(spaces.Text(3)), 2)
    with pytest.raises(NotImplementedError, match="Goals does not say what goals are"):
        Hierarchy(Line(), Goals(), 2)
