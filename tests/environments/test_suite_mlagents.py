"""Simulators with decision steps and terminal steps: recorded sequences, and what each agent of them sees."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.specs import tensor_spec

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import agents, create_environment, suite_mlagents
from alf.environments.agents_env import AgentsEnv
from alf.environments.decision_steps import DecisionSteps
from tests.environments.recorded_simulator import (
    ActionSpec,
    Asks,
    BehaviorSpec,
    Ends,
    ObservationSpec,
    Recorded,
    drawn,
)
from tests.trainers.small_run import make_algorithm

_FIRST, _MID, _LAST, _IDLE = 0, 1, 2, 3
_BALL = "Ball?team=0"


def _env(simulator: Recorded, **kwargs: Any) -> AgentsEnv:
    env = suite_mlagents.load(lambda: simulator, **kwargs).make_one(0)
    assert isinstance(env, AgentsEnv)
    return env


def _play(simulator: Recorded, actions: Sequence[Any], **kwargs: Any) -> dict[str, list[Any]]:
    """What behavior "Ball" shows in an episode, by fields."""
    env = _env(simulator, **kwargs)
    shown = [env.reset()[0]["Ball"]]
    for action in actions:
        observation, *_ = env.step({"Ball": np.asarray(action)})
        shown.append(observation["Ball"])
    return {
        field: [np.asarray(part[field]).squeeze().tolist() for part in shown]
        for field in ("step_type", "reward", "discount", "observation")
    }


def test_decisions_and_an_end() -> None:
    """The first decision earns nothing; each next one tells what the last action has led to; so does the end."""
    frames = [
        {_BALL: [Asks(7, 1.0, reward=50.0)]},
        {_BALL: [Asks(7, 2.0, reward=0.5)]},
        {},
        {_BALL: [Asks(7, 3.0, reward=0.25, group_reward=1.0)]},
        {_BALL: [Ends(7, 4.0, reward=2.0, group_reward=0.5), Asks(8, 9.0)]},
    ]
    simulator = Recorded(frames)
    seen = _play(simulator, [[1], [2], [0], [3], [4]])
    assert seen["step_type"] == [_FIRST, _MID, _IDLE, _MID, _LAST, _FIRST]
    assert seen["reward"] == [0.0, 0.5, 0.0, 1.25, 2.5, 0.0]
    assert seen["discount"] == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert seen["observation"] == [1.0, 2.0, 0.0, 3.0, 4.0, 9.0]
    # There is one slot, so the end is shown alone, and the simulator is not stepped before the new agent is seen.
    assert simulator.given == [{7: (1,)}, {7: (2,)}, {}, {7: (3,)}]


def test_an_interrupted_agent_is_truncated() -> None:
    frames = [{_BALL: [Asks(1, 1.0), Asks(2, 2.0)]}, {_BALL: [Ends(2, 3.0, 1.0, interrupted=True), Asks(1, 4.0)]}]
    seen = _play(Recorded(frames), [[0, 0]])
    assert (seen["step_type"][1], seen["discount"][1]) == ([_MID, _LAST], [1.0, 1.0])


@pytest.mark.parametrize("number", [7, 8])
def test_an_end_and_a_new_decision_in_one_step(number: int) -> None:
    """Under the same number, or another, each part goes to its own episode."""
    frames = [
        {_BALL: [Asks(7, 1.0)]},
        {_BALL: [Asks(number, 3.0, reward=40.0), Ends(7, 2.0, reward=0.5)]},
        {_BALL: [Asks(number, 4.0, reward=0.25)]},
    ]
    simulator = Recorded(frames)
    seen = _play(simulator, [[1, 0], [0, 2]], slots={"Ball": 2})
    assert seen["step_type"] == [[_FIRST, _IDLE], [_LAST, _FIRST], [_IDLE, _MID]]
    assert seen["reward"] == [[0.0, 0.0], [0.5, 0.0], [0.0, 0.25]]
    assert seen["observation"] == [[1.0, 0.0], [2.0, 3.0], [0.0, 4.0]]
    assert simulator.given == [{7: (1,)}, {number: (2,)}]


def test_an_agent_that_ends_before_it_asked_leaves_no_trace() -> None:
    frames = [{_BALL: [Asks(1, 1.0)]}, {_BALL: [Ends(2, 9.0, 50.0), Asks(1, 2.0, 0.5)]}, {_BALL: [Ends(3, 9.0, 50.0)]}]
    seen = _play(Recorded(frames), [[0, 0], [0, 0]], slots={"Ball": 2})
    assert seen["step_type"] == [[_FIRST, _IDLE], [_MID, _IDLE], [_IDLE, _IDLE]]
    assert seen["reward"] == [[0.0, 0.0], [0.5, 0.0], [0.0, 0.0]]


def test_agents_ask_at_different_steps_and_in_another_order() -> None:
    frames = [
        {_BALL: [Asks(3, 1.0), Asks(1, 10.0)]},
        {_BALL: [Asks(1, 11.0, 1.0)]},
        {_BALL: [Asks(1, 12.0, 2.0), Asks(3, 2.0, 5.0)]},
        {_BALL: [Asks(3, 3.0, 6.0)]},
    ]
    simulator = Recorded(frames)
    seen = _play(simulator, [[1, 2], [0, 3], [4, 0]])
    assert seen["step_type"] == [[_FIRST, _FIRST], [_IDLE, _MID], [_MID, _MID], [_MID, _IDLE]]
    assert seen["reward"] == [[0.0, 0.0], [0.0, 1.0], [5.0, 2.0], [6.0, 0.0]]
    assert simulator.given == [{3: (1,), 1: (2,)}, {1: (3,)}, {1: (0,), 3: (4,)}]


def test_where_nobody_is_alive_the_simulator_goes_on() -> None:
    frames = [{}, {}, {_BALL: [Asks(1, 1.0)]}, {_BALL: [Ends(1, 2.0, 0.5)]}, {}, {}, {_BALL: [Asks(2, 3.0)]}]
    simulator = Recorded(frames)
    seen = _play(simulator, [[1], [0]])
    assert seen["step_type"] == [_FIRST, _LAST, _FIRST]
    assert seen["observation"] == [1.0, 2.0, 3.0]
    assert (simulator.given[-4:], simulator.resets) == ([{1: (1,)}, {}, {}, {}], 2)


def test_a_simulator_in_which_nobody_decides_any_more_is_reset() -> None:
    env = _env(Recorded([{_BALL: [Asks(1, 1.0)]}, {_BALL: [Ends(1, 2.0, 0.5)]}, {}]))
    env.reset()
    observation, _, terminated, truncated, _ = env.step({"Ball": np.array([0])})
    assert (observation["Ball"]["step_type"].tolist(), terminated, truncated) == ([_LAST], True, False)
    assert env.reset()[0]["Ball"]["step_type"].tolist() == [_FIRST]


def test_a_reset_forgets_all_agents() -> None:
    frames = [{_BALL: [Asks(1, 1.0)]}, {_BALL: [Asks(1, 2.0), Asks(2, 3.0)]}]
    steps = DecisionSteps(Recorded(frames), {})
    for _ in range(2):
        steps.reset()
        assert steps.agents == ["Ball#Ball?team=0#1"]
        steps.step({"Ball#Ball?team=0#1": 0})
        assert steps.agents == ["Ball#Ball?team=0#1", "Ball#Ball?team=0#2"]


# ---- drawn sequences, against what each agent has to see ----


def _expected(frames: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[Any, ...]]]:
    """By life: observation, reward, step type and discount."""
    lives: dict[int, list[tuple[Any, ...]]] = {}
    for frame in frames:
        for one in frame.get(_BALL, ()):
            life, asked = one.obs[0].tolist()
            if isinstance(one, Asks):
                seen = (asked, one.reward, _MID, 1.0) if life in lives else (asked, 0.0, _FIRST, 1.0)
                lives.setdefault(life, []).append(seen)
            elif life in lives:
                lives[life].append((asked, one.reward, _LAST, float(one.interrupted)))
    return lives


@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans(), st.booleans())
def test_each_agent_sees_each_of_its_steps_once(seed: int, most: int, reuse: bool, spare: bool) -> None:
    rng = np.random.default_rng(seed)
    frames = [*drawn(rng, 25, most, reuse), {}]
    simulator = Recorded(frames, {_BALL: BehaviorSpec((ObservationSpec((2,)),))})
    env = _env(simulator, slots={"Ball": most + most * spare})
    observation, _ = env.reset()
    lives: dict[int, list[tuple[Any, ...]]] = {}
    inside: dict[int, int] = {}
    quiet = 0
    while quiet < 2:
        assert env.observation_space.contains(observation)
        part = observation["Ball"]
        for slot, step_type in enumerate(part["step_type"].tolist()):
            if step_type == _IDLE:
                continue
            life, asked = part["observation"][slot].tolist()
            assert (slot in inside) == (step_type != _FIRST)
            assert inside.setdefault(slot, life) == life
            fields = asked, float(part["reward"][slot]), step_type, float(part["discount"][slot])
            lives.setdefault(life, []).append(fields)
            if step_type == _LAST:
                del inside[slot]
        quiet += simulator.over
        observation, _, terminated, truncated, _ = env.step(
            {"Ball": rng.integers(0, 5, env.action_space["Ball"].shape)}
        )
        if terminated or truncated:
            quiet = 2
            part = observation["Ball"]
            for slot in np.flatnonzero(part["step_type"] == _LAST):
                life, asked = part["observation"][slot].tolist()
                lives[life].append((asked, float(part["reward"][slot]), _LAST, float(part["discount"][slot])))
    assert lives == _expected(frames)


def test_simulators_of_a_batch_do_not_mix_agents_of_one_number() -> None:
    frames = [drawn(np.random.default_rng(seed), 30, 3, True) for seed in (1, 2)]
    made: list[Recorded] = []

    def make() -> Recorded:
        made.append(Recorded(frames[len(made)], {_BALL: BehaviorSpec((ObservationSpec((2,)),))}))
        return made[-1]

    env = create_environment(make, lambda name: suite_mlagents.load(name, slots={"Ball": 6}), 2, vectorization="sync")
    assert agents.slots_of(env.observation_spec()) == {"Ball": agents.Slots(6, True)}
    seen: list[dict[int, list[int]]] = [{}, {}]
    step = env.reset()
    while not any(simulator.over for simulator in made):
        for row, slot in zip(*np.nonzero(step.observation["Ball"]["step_type"] != _IDLE), strict=True):
            life, asked = step.observation["Ball"]["observation"][row, slot].tolist()
            seen[row].setdefault(life, []).append(asked)
        step = env.step({"Ball": np.zeros((2, 6), np.int64)})
    for row in range(2):
        expected = {life: [asked for asked, *_ in steps] for life, steps in _expected(frames[row]).items()}
        assert len(seen[row]) > 5
        assert all(steps == expected[life][: len(steps)] for life, steps in seen[row].items())
    env.close()
    assert all(simulator.closed for simulator in made)


def test_it_is_trained() -> None:
    frames = drawn(np.random.default_rng(0), 400, 3, True)
    spec = {_BALL: BehaviorSpec((ObservationSpec((2,)),))}
    env = create_environment(
        lambda: Recorded(frames, spec), lambda name: suite_mlagents.load(name, slots={"Ball": 4}), 2, seed=1
    )
    specs = tensor_spec.from_spec((env.observation_spec(), env.action_spec()))
    algorithm = Behaviors(*specs, {"Ball": Behavior(make_algorithm)})
    algorithm.set_default_replayer({})
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=4, random_seed=1)
    before = [v.numpy() for v in algorithm.by_name["Ball"].trainable_variables]
    trained = 0
    try:
        for _ in range(10):
            driver.run()
            trained += algorithm.train(num_updates=1, mini_batch_size=4)
    finally:
        driver.stop()
    asked = sum(isinstance(one, Asks) for frame in frames[:30] for one in frame[_BALL])
    assert (
        trained > asked
    )  # There are two simulators, whose ends are steps too; some wait for the rest of their segment.
    after = [v.numpy() for v in algorithm.by_name["Ball"].trainable_variables]
    assert not any(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


# ---- spaces, actions, masks, names ----


def test_several_observations_and_both_kinds_of_actions() -> None:
    specs = {
        "Tuple": BehaviorSpec((ObservationSpec((2,)), ObservationSpec((1, 3))), ActionSpec(2, ())),
        "Named": BehaviorSpec((ObservationSpec((2,), "ray"), ObservationSpec((3,), "eye")), ActionSpec(1, (3, 4))),
    }
    simulator = Recorded([{"Tuple": [Asks(1, (1.0, 2.0))], "Named": [Asks(2, (3.0, 4.0))]}, {}], specs)
    env = _env(simulator)
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    assert [x.tolist() for x in observation["Tuple"]["observation"]] == [[[1.0, 1.0]], [[[2.0, 2.0, 2.0]]]]
    assert observation["Named"]["observation"]["ray"].tolist() == [[3.0, 3.0]]
    assert env.action_space["Tuple"] == spaces.Box(-1.0, 1.0, (1, 2), np.float32)
    named = {"continuous": np.array([[0.5]], np.float32), "discrete": np.array([[2, 3]])}
    action = {"Tuple": np.array([[0.25, -0.5]], np.float32), "Named": named}
    assert env.action_space.contains(action)
    env.step(action)
    assert simulator.given == [{1: (0.25, -0.5), 2: (0.5, 2, 3)}]


def _masked(branches: tuple[int, ...] = (3,), continuous: int = 0) -> Recorded:
    masks = [[True] + [False] * (size - 1) for size in branches]
    frames = [
        {_BALL: [Asks(1, 1.0, mask=[[False] * size for size in branches])]},
        {_BALL: [Asks(1, 2.0, mask=masks)]},
        {_BALL: [Ends(1, 3.0)]},
    ]
    return Recorded(frames, {_BALL: BehaviorSpec(action_spec=ActionSpec(continuous, branches))})


def test_masks_are_shown() -> None:
    env = _env(_masked(), action_masks="show")
    seen = [env.reset()[0]] + [env.step({"Ball": np.array([1])})[0] for _ in range(2)]
    assert all(env.observation_space.contains(observation) for observation in seen)
    shown = [observation["Ball"]["observation"] for observation in seen]
    assert [part["observation"].tolist() for part in shown] == [[[1.0]], [[2.0]], [[3.0]]]
    assert [part["mask"].tolist() for part in shown] == [[[1, 1, 1]], [[0, 1, 1]], [[1, 1, 1]]]


def test_masks_of_several_choices_are_shown_in_rows() -> None:
    env = _env(_masked((3, 2, 4)), action_masks="show")
    seen = [env.reset()[0]] + [env.step({"Ball": np.array([[1, 0, 3]])})[0] for _ in range(2)]
    assert all(env.observation_space.contains(observation) for observation in seen)
    masks = [observation["Ball"]["observation"]["mask"].tolist() for observation in seen]
    everything = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert masks == [[everything], [[[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]]], [everything]]


@pytest.mark.parametrize(
    ("branches", "continuous", "action_masks", "message"),
    [
        ((3,), 0, "refuse", "set action_masks='show'"),
        ((3, 2), 0, "refuse", "set action_masks='show'"),
        ((3, 2), 1, "show", "not discrete choices only"),
    ],
)
def test_masks_that_agents_do_not_see_are_refused(
    branches: tuple[int, ...], continuous: int, action_masks: str, message: str
) -> None:
    env = _env(_masked(branches, continuous), action_masks=action_masks)
    env.reset()
    action = env.action_space.sample()
    with pytest.raises(ValueError, match=message):
        env.step(action)
    ignoring = _env(_masked(branches, continuous), action_masks="ignore")
    ignoring.reset()
    assert ignoring.step(action)[0]["Ball"]["observation"].tolist() == [[2.0]]


def test_teams_share_a_behavior_unless_named_otherwise() -> None:
    specs = {"Striker?team=0": BehaviorSpec(), "Striker?team=1": BehaviorSpec()}
    frames = [{"Striker?team=0": [Asks(1, 1.0)], "Striker?team=1": [Asks(1, 2.0), Asks(2, 3.0)]}]
    shared = _env(Recorded(frames, specs)).reset()[0]
    assert shared["Striker"]["observation"].tolist() == [[1.0], [2.0], [3.0]]
    apart = _env(Recorded(frames, specs), behaviors={"Striker?team=0": "left", "*": "right"}).reset()[0]
    assert {name: part["observation"].tolist() for name, part in apart.items()} == {
        "left": [[1.0]],
        "right": [[2.0], [3.0]],
    }


class _Growing(Recorded):
    """Another behavior appears with its first agent."""

    def step(self) -> None:
        super().step()
        self.behavior_specs = {**self.specs, "Late?team=1": BehaviorSpec()}
        self.specs = self.behavior_specs


def test_a_behavior_that_appears_late() -> None:
    frames = [{_BALL: [Asks(1, 1.0)]}, {_BALL: [Asks(1, 2.0)], "Late?team=1": [Asks(5, 3.0)]}]
    env = _env(_Growing(frames), behaviors={"Late*": "Ball"}, slots={"Ball": 2})
    env.reset()
    assert env.step({"Ball": np.array([1, 0])})[0]["Ball"]["observation"].tolist() == [[2.0], [3.0]]
    env = _env(_Growing(frames))
    env.reset()
    with pytest.raises(ValueError, match=r"'Late\?team=1' appeared after its first reset, when there were \['Ball'\]"):
        env.step({"Ball": np.array([1])})


@pytest.mark.parametrize(
    ("simulator", "kwargs", "message"),
    [
        (Recorded([{}], {_BALL: BehaviorSpec()}), {"action_masks": "hide"}, "action_masks must be one of"),
        (
            Recorded([{}], {"A?team=0": BehaviorSpec(), "A?team=1": BehaviorSpec(action_spec=ActionSpec(2, ()))}),
            {},
            r"are both 'A' and have different spaces.*behaviors=",
        ),
        (Recorded([{_BALL: [Asks(1, 1.0)]}]), {"slots": {"Ball": 0}}, "at least one"),
    ],
)
def test_what_is_refused_is_closed(simulator: Recorded, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _env(simulator, **kwargs)
    assert simulator.closed


def test_a_missing_package_or_name_is_said() -> None:
    if importlib.util.find_spec("mlagents_envs") is None:
        with pytest.raises(ValueError, match=r"'game\.x86_64' needs the package mlagents_envs.*install it, with"):
            suite_mlagents.load("game.x86_64")
    with pytest.raises(ValueError, match="has no 'Nobody' to call"):
        suite_mlagents.load("tests.environments.recorded_simulator:Nobody")
    frames = [{_BALL: [Asks(1, 1.0)]}]
    env = suite_mlagents.load("tests.environments.recorded_simulator:Recorded", frames=frames).make_one(0)
    assert env.reset()[0]["Ball"]["observation"].tolist() == [[1.0]]
