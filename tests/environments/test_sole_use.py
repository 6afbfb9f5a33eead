"""That no environment is stepped by two who do not know of each other."""

from __future__ import annotations

import gc
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from alf.environments.gymnasium_environment import VectorEnvironment
from alf.environments.utils import create_environment
from alf.trainers.run_environments import create_evaluation_environment

MIXED = r"CartPoleEnv.* is stepped already by another environment of alf's, .*: let .* make a new one at each call, or close "


@pytest.fixture
def env() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def _create(make: Callable[[], gymnasium.Env], size: int = 1) -> VectorEnvironment:
    return create_environment(env_name=make, num_parallel_environments=size)


def test_training_and_evaluation_in_the_same_environment_are_told(env: gymnasium.Env) -> None:
    training = _create(lambda: env)
    with pytest.raises(ValueError, match=MIXED):
        create_evaluation_environment(1, np.random.SeedSequence(1), lambda **_: _create(lambda: env))
    training.close()


def test_it_is_the_same_below_wrappers_and_in_vectors(env: gymnasium.Env) -> None:
    first = _create(lambda: gymnasium.wrappers.TimeLimit(env, 3))
    with pytest.raises(ValueError, match=MIXED):
        VectorEnvironment(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1"), lambda: env]))
    first.close()


def test_a_vector_with_one_environment_in_several_rows_is_told(env: gymnasium.Env) -> None:
    with pytest.raises(ValueError, match=r"Of 2 environments several are the same object, such as <CartPoleEnv"):
        VectorEnvironment(SyncVectorEnv([lambda: env] * 2))


def test_what_was_closed_or_is_held_by_nobody_may_be_used_again(env: gymnasium.Env) -> None:
    _create(lambda: env).close()
    held = [_create(lambda: env)]
    held.append(held)  # type: ignore[arg-type]
    gc.disable()
    try:
        del held
        again = _create(lambda: env)
    finally:
        gc.enable()
    assert again.reset().observation.shape == (1, 4)
    again.close()


def test_a_refusal_uses_nothing(env: gymnasium.Env) -> None:
    other = gymnasium.make("CartPole-v1")
    first = _create(lambda: env)
    with pytest.raises(ValueError, match=MIXED):
        VectorEnvironment(SyncVectorEnv([lambda: other, lambda: env]))
    _create(lambda: other).close()
    first.close()
