"""Random actions of checks and measurements are those that the environment allows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tf_agents.specs import BoundedArraySpec

from alf.environments import suite_gym
from alf.environments.batch_checker import FAIL
from alf.environments.checker import check_environment
from alf.environments.random_actions import sample_action, sample_actions
from alf.environments.timing import measure


class Refuses(gymnasium.Env):
    """Allows one or two actions at a time, and raises where another is taken."""

    name = "mask"
    action_space: gymnasium.Space = spaces.Discrete(3, start=1)

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"seen": spaces.Box(0.0, 1.0, (1,)), self.name: spaces.MultiBinary(self._shape())}
        )

    def _shape(self) -> tuple[int, ...]:
        return (3,)

    def _observation(self) -> dict[str, np.ndarray]:
        self.allowed = np.zeros(self._shape(), np.int8)
        for row in self.allowed.reshape(-1, self._shape()[-1]):
            # The last of several choices has two numbers only.
            row[self.np_random.integers(0, 2, 2)] = 1
        return {"seen": self.np_random.random(1).astype(np.float32), self.name: self.allowed}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        taken = np.asarray(action) - getattr(self.action_space, "start", 0)
        assert np.take_along_axis(self.allowed, taken[..., None], -1).all(), "forbidden"
        self.time += 1
        return self._observation(), 0.0, bool(self.np_random.random() < 0.05), self.time == 50, {}


class RefusesOneOfSeveral(Refuses):
    """The same for two choices at once."""

    name = "action_mask"
    action_space = spaces.MultiDiscrete([3, 2])

    def _shape(self) -> tuple[int, ...]:
        return (2, 3)


@pytest.mark.parametrize("make", [Refuses, RefusesOneOfSeveral])
def test_environments_that_refuse_are_checked_and_measured(make):
    loader = suite_gym.load(make)
    found = check_environment(loader, num_steps=200)
    assert not [f for f in found if f.level == FAIL]
    assert {"run", "seed", "batch"} <= {f.check for f in found}
    assert measure(loader, "sync", 2, seconds=0.05).problem is None


def test_every_allowed_action_is_drawn_as_often_and_no_other():
    rng = np.random.default_rng(3)
    mask = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    spec = BoundedArraySpec([], np.int32, 2, 5)
    drawn = np.array([sample_actions(spec, 3, rng, {"seen": np.zeros([3]), "mask": mask}) for _ in range(3000)])
    assert drawn.dtype == np.int32
    shares = [{n: count / 3000 for n, count in Counter(drawn[:, row].tolist()).items()} for row in range(3)]
    assert shares[0] == pytest.approx({2: 1 / 3, 4: 1 / 3, 5: 1 / 3}, abs=0.04)
    assert shares[1] == {4: 1.0}
    # What allows nothing allows everything.
    assert shares[2] == pytest.approx({2: 0.25, 3: 0.25, 4: 0.25, 5: 0.25}, abs=0.04)


@pytest.mark.parametrize("observation", [np.zeros(3), {"mask": np.zeros([7])}, {"seen": np.zeros([3])}, None])
def test_without_a_mask_that_fits_the_space_draws(observation):
    space = spaces.Discrete(3)
    space.seed(0)
    taken = [sample_action(space, np.random.default_rng(0), observation) for _ in range(60)]
    space.seed(0)
    assert taken == [space.sample() for _ in range(60)]
    assert set(taken) == {0, 1, 2}
