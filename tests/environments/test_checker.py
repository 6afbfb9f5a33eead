"""The checks of environments: each finds the fault it is for, and a sound environment passes all."""

from __future__ import annotations

import itertools
import re
import sys

import gymnasium
import numpy as np
import pytest
from tf_agents.trajectories import time_step as ts

from alf.environments import suite_gym
from alf.environments.batch_checker import FAIL, OK, WARN
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.checker import check_environment
from alf.environments.random_actions import sample_actions
from alf.environments.testing import CountingEnvironment
from alf.environments.timing import measure, step_secs, thread_gain
from alf.environments.utils import create_environment
from alf.environments.wrappers import OneHot
from tests.environments.toy_environments import NestedEnv, ToyEnv


class Walk(gymnasium.Env):
    """A random walk that ends at 1, or after ten steps."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(), 0
        return self.look(), {}

    def look(self):
        return np.array([self.place, self.time], np.float32)

    def step(self, action):
        self.time += 1
        self.place = float(np.clip(self.place + self.np_random.normal(), -9, 9))
        return self.look(), self.place, self.place > 1, self.time == 10, {}


def findings_of(make, **kwargs):
    """(level, text) by check."""
    return {f.check: (f.level, f.text) for f in check_environment(suite_gym.load(make), **kwargs)}


def fails(found):
    return {check for check, (level, _) in found.items() if level == FAIL}


@pytest.mark.parametrize("make", [Walk, ToyEnv, NestedEnv, "CartPole-v1", "Pendulum-v1"])
def test_sound_environments_pass(make):
    found = findings_of(make, num_steps=300)
    assert not fails(found), found
    assert {"spaces", "run", "seed", "ends", "batch"} <= set(found)


def test_numbers_of_states_are_told():
    level, text = findings_of("FrozenLake-v1")["numbers"]
    assert level == WARN
    assert "Discrete(16)" in text
    assert "OneHot" in text
    shown = {f.check for f in check_environment(suite_gym.load("FrozenLake-v1", gym_env_wrappers=(OneHot,)))}
    assert "numbers" not in shown


def test_observations_without_numbers_are_told():
    class Blind(Walk):
        observation_space = gymnasium.spaces.Dict(
            {"x": Walk.observation_space, "no": gymnasium.spaces.Box(0, 1, (3, 0))}
        )

        def reset(self, *, seed=None, options=None):
            x, info = super().reset(seed=seed)
            return {"x": x, "no": np.zeros((3, 0), np.float32)}, info

        def step(self, action):
            x, *rest = super().step(action)
            return {"x": x, "no": np.zeros((3, 0), np.float32)}, *rest

    found = findings_of(Blind)
    assert found["size"] == (
        WARN,
        "The observation's part 'no' has no numbers, of shape (3, 0): have the environment leave it out, as "
        "gymnasium.wrappers.FilterObservation does with parts of a Dict.",
    )
    assert not fails(found)


def test_closing_that_fails_ends_no_check(logged):
    class Shut(Walk):
        def close(self):
            raise RuntimeError("no port")

    assert not fails(findings_of(Shut))
    assert measure(suite_gym.load(Shut), "single", 1, 0.01).rate > 0
    assert "Shut did not close: RuntimeError('no port')" in logged[0]


def test_a_sound_environment_passes_every_check():
    found = findings_of(Walk)
    assert all(level == OK for level, _ in found.values()), found
    assert "one seed gives the same episodes, another one others" in found["seed"][1]


def test_numbers_in_lists_of_one_are_taken_for_what_they_are():
    plain = findings_of(Walk)
    listed = findings_of(_stepping(lambda o, r, a, b, i: (o, [r], [a], (b,), i)))
    assert listed["ends"] == plain["ends"]
    assert not fails(listed)


def _broken(**methods):
    return type("Broken", (Walk,), methods)


def _observing(change):
    return _broken(look=lambda self: change(Walk.look(self)))


def _stepping(change):
    return _broken(step=lambda self, action: change(*Walk.step(self, action)))


@pytest.mark.parametrize(
    ("make", "check", "level", "text"),
    [
        (_observing(lambda x: x * np.nan), "finite", FAIL, "observation holds nan"),
        (_observing(lambda x: x[:1]), "shapes", FAIL, r"has shape \(1,\) where its space says \(2,\)"),
        (_observing(lambda x: x.astype(np.float64)), "dtypes", WARN, "is float64 where its space says float32"),
        (_observing(lambda x: x + 100), "bounds", WARN, "is outside its space"),
        (_observing(lambda x: {"x": x}), "run", FAIL, ""),
        (_stepping(lambda o, r, a, b, i: (o, r, a or b, i)), "step", FAIL, "it returned a tuple of 4"),
        (_stepping(lambda o, r, a, b, i: (o, float("inf"), a, b, i)), "finite", FAIL, "the reward is inf"),
        (_stepping(lambda o, r, a, b, i: (o, None, a, b, i)), "reward", FAIL, "is a NoneType, not a number"),
        (_stepping(lambda o, r, a, b, i: (o, r, False, False, i)), "ends", WARN, "no episode ended within"),
        (
            _broken(step=lambda self, action: (*Walk.step(self, action)[:2], self.time == 10, False, {})),
            "ends",
            WARN,
            "ended after exactly 10 steps with terminated=True",
        ),
        (_broken(reset=lambda self, **_: Walk.reset(self, **_)[0]), "reset", FAIL, "must return"),
        (_broken(reset=lambda self, **_: Walk.reset(self)), "seed", WARN, "runs cannot be repeated"),
        (_broken(action_space=gymnasium.spaces.Text(3)), "spaces", FAIL, "is a Text"),
        (_broken(step=lambda self, action: 1 / 0), "run", FAIL, "it raised ZeroDivisionError after 1 values"),
        (_broken(__init__=lambda self: 1 / 0), "make", FAIL, "cannot be made: ZeroDivisionError"),
        (
            _broken(action_space=gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)),
            "action bounds",
            WARN,
            "has no finite bounds",
        ),
    ],
)
def test_each_fault_is_found(make, check, level, text):
    found = findings_of(make, num_steps=60)
    if check == "run" and not text:
        assert fails(found), found
        return
    assert found[check][0] == level, found
    assert re.search(text, found[check][1]), found[check]


SAID = r"The environment asked the program to end, by sys\.exit\(2\): have it raise an error"


def leave(*args, **kwargs):
    sys.exit(2)


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (_broken(__init__=leave), "make"),
        (_broken(reset=leave), "run"),
        (_broken(step=leave), "run"),
        (lambda: Batch(leave), "batch"),
    ],
)
def test_an_environment_that_ends_the_program_fails(make, check):
    found = findings_of(make, num_steps=20)
    assert fails(found) == {check}
    assert re.search(SAID, found[check][1]), found


def test_a_batch_whose_making_ends_the_program_fails():
    made = []

    def make():
        made.append(Batch() if not made else leave())
        return made[-1]

    found = findings_of(make)
    assert re.search(f"a batch cannot be made: RuntimeError: {SAID}", found["batch"][1]), found


@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
def test_ways_to_vectorise_that_end_the_program_are_not_possible(method):
    assert re.search(SAID, measure(suite_gym.load(_broken(**{method: leave})), "sync", 2, 0.01).problem)


def test_closing_that_ends_the_program_ends_no_check(logged):
    assert not fails(findings_of(_broken(close=leave)))
    assert "Broken did not close: SystemExit(2)" in logged[0]


def test_a_loader_that_ends_the_program():
    with pytest.raises(RuntimeError, match=SAID):
        create_environment(env_load_fn=leave)


def test_an_environment_without_chance_is_no_fault():
    found = findings_of(ToyEnv, num_steps=50)
    assert found["seed"] == (OK, "one seed gives the same episodes, and so does another: nothing in it is random")
    assert "writes into the arrays that it has handed out" in found["buffers"][1]


class Batch(BatchedEnvironment):
    """Three rows of CountingEnvironment whose steps a test may change."""

    def __init__(self, change=lambda step: step):
        super().__init__()
        self.env, self.change = CountingEnvironment(3), change

    @property
    def batch_size(self):
        return 3

    def observation_spec(self):
        return self.env.observation_spec()

    def action_spec(self):
        return self.env.action_spec()

    def _reset(self):
        return self.env.reset()

    def _step(self, action):
        return self.change(self.env.step(action))


def _reused(turns):
    buffers = itertools.cycle([np.zeros((3, 3), np.float32) for _ in range(turns)])

    def change(step):
        buffer = next(buffers)
        buffer[:] = step.observation
        return step._replace(observation=buffer)

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda s: s._replace(reward=s.reward.astype(np.float64)),
            r"reward must be float32 \[3\]; it is float64 \[3\]",
        ),
        (lambda s: s._replace(discount=s.discount[:1]), r"discount must be float32 \[3\]"),
        (lambda s: s._replace(observation=s.observation[:, :2]), r"observation must be float32 \[3, 3\]"),
        (lambda s: s._replace(reward=s.reward + 1), "a row at FIRST must have reward 0"),
        (lambda s: s._replace(step_type=np.minimum(s.step_type, 1)), "FIRST must follow LAST"),
        (_reused(1), "writes into arrays of an earlier step"),
        (_reused(3), "writes into arrays of an earlier step"),
        (lambda s: ts.TimeStep(s.step_type, s.reward * np.nan, s.discount, s.observation), "the reward is nan"),
    ],
)
def test_batches_keep_to_the_interface(change, text):
    assert not fails(findings_of(Batch, num_steps=40))
    found = findings_of(lambda: Batch(change), num_steps=40)
    assert fails(found) == {"batch"}
    assert re.search(text, found["batch"][1]), found


def test_random_actions_keep_to_the_spec():
    env = suite_gym.load(NestedEnv)(3, 0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = sample_actions(env.action_spec(), 3, rng)
        assert action["move"].dtype == np.float32
        assert (action["move"] >= -1).all()
        assert (action["move"] <= 0.3).all()
        assert action["press"].shape == (3, 2)
        assert (action["press"] < [2, 3]).all()
    env.close()


def test_measurements():
    loader = suite_gym.load("CartPole-v1")
    found = measure(loader, "sync", 4, 0.01)
    assert found.problem is None
    assert found.rate == pytest.approx(4 / found.secs)
    assert "callable" in measure(suite_gym.load(Walk), "envpool", 4, 0.01).problem
    env = loader(2, 0)
    assert step_secs(env, 0.0) > 0
    env.close()
    assert thread_gain(lambda: loader(1, 0, "single"), 0.01) > 0
