"""A user's own vector of environments is told of phases, as far as its rows ask."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from alf.environments import create_environment
from alf.environments.phases import PhasedWrapper
from alf.environments.wrappers import RandomFirstEpisodeLength
from tests.environments.toy_environments import ToyEnv


class _Phases(PhasedWrapper):
    """Rewards are the number of phases that it was told of."""

    told = 0

    def enter_phase(self, phase: str) -> None:
        self.told += 1

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, float(self.told), *rest


@pytest.mark.parametrize("kind", [AsyncVectorEnv, SyncVectorEnv])
def test_a_users_vector_of_environments_is_told_of_phases(kind: Any) -> None:
    """All of the phased wrappers in each row, whatever is around them; and rows that have none bear it."""
    cut = functools.partial(RandomFirstEpisodeLength, random_length_range=1)
    row = lambda: gymnasium.wrappers.TimeLimit(cut(_Phases(ToyEnv(1))), 100)  # noqa: E731
    for phase, ends in (("train", True), ("test", False)):
        env = create_environment(lambda: kind([row] * 2), num_parallel_environments=2)
        env.enter_phase(phase)
        env.reset()
        step = env.step(np.zeros(2, np.int64))
        env.close()
        assert (step.step_type == 2).tolist() == [ends] * 2
        assert step.reward.tolist() == [1.0] * 2
    env = create_environment(lambda: kind([lambda: ToyEnv(1)] * 2), num_parallel_environments=2, max_restarts=0)
    env.enter_phase("test")
    env.reset()
    env.close()


def test_that_not_all_of_a_users_processes_can_be_told_of_phases_is_warned_of(logged: list[str]) -> None:
    env = create_environment(
        lambda: AsyncVectorEnv([lambda: ToyEnv(1), lambda: _Phases(ToyEnv(1))]), num_parallel_environments=2
    )
    for _ in range(2):
        env.enter_phase("test")
    env.reset()
    env.close()
    assert [text for text in logged if "phase" in text] == [
        "Of the AsyncVectorEnv's 2 environments only some have wrappers that ask for the phase, and none is told, so that "
        "RandomFirstEpisodeLength cuts evaluations too: wrap all of them alike."
    ]
