"""Environments that never worked are told in a sentence, and not built again and again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from alf.environments import BatchedEnvironment, RestartingEnvironment, create_environment
from alf.environments.crash_isolation import BrokenEnvironmentError
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter


class Scripted(gymnasium.Env):
    """Its reset and step return what they are given."""

    observation_space: gymnasium.Space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: Any, after: Any) -> None:
        self.first, self.after = first, after

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.first

    def step(self, action: Any) -> Any:
        if isinstance(self.after, Exception):
            raise self.after
        return self.after


class ScriptedDict(Scripted):
    observation_space = gymnasium.spaces.Dict({"a": Scripted.observation_space, "b": Scripted.observation_space})


SOUND, WRONG = np.zeros(3, np.float32), np.zeros(4, np.float32)
STEP = (SOUND, 1.0, False, False, {})
BROKEN = [
    ((WRONG, {}), STEP, "at reset observation has shape (4,) where its space says (3,): correct one."),
    ((None, {}), STEP, "at reset observation is None where its space says (3,): correct one."),
    (SOUND, STEP, "reset() must return (observation, info); it returned a ndarray."),
    ((SOUND, {}), (WRONG, *STEP[1:]), "at step 0 observation has shape (4,) where its space says (3,): correct one."),
    ((SOUND, {}), (None, *STEP[1:]), "at step 0 observation is None where its space says (3,): correct one."),
    (
        (SOUND, {}),
        STEP[:4],
        "step() must return (observation, reward, terminated, truncated, info); it returned a tuple of 4.",
    ),
]


def _play(env: BatchedEnvironment, steps: int = 3) -> None:
    env.reset()
    for _ in range(steps):
        env.step(np.zeros(env.batch_size, np.int64))


def _counted(made: list[Any], make: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        made.append(make())
        return made[-1]

    return build


@pytest.mark.parametrize(
    ("rows", "first", "after", "message"), [(2, *case) for case in BROKEN] + [(1, *BROKEN[i]) for i in (0, 1, 2, 5)]
)
def test_what_is_wrong_is_told_as_the_checks_tell_it(rows: int, first: Any, after: Any, message: str) -> None:
    made: list[Any] = []
    env = create_environment(_counted(made, lambda: Scripted(first, after)), num_parallel_environments=rows)
    with pytest.raises(BrokenEnvironmentError) as told:
        _play(env)
    assert str(told.value) == f"The environment cannot be used: {message}"
    assert env.restarts == 0
    assert len(made) == rows + 1  # One more is looked at.
    env.close()


@pytest.mark.parametrize(
    ("first", "after", "message"),
    [BROKEN[i] for i in (0, 3, 5)]
    + [
        # Shared memory would take these, and spread them over the places of the observation.
        ((SOUND[:1], {}), STEP, "at reset observation has shape (1,) where its space says (3,): correct one."),
        ((SOUND, {}), (0.5, *STEP[1:]), "at step 0 observation has shape () where its space says (3,): correct one."),
    ],
)
def test_processes_are_told_of_too(first: Any, after: Any, message: str) -> None:
    env = create_environment(lambda: Scripted(first, after), num_parallel_environments=2, vectorization="async")
    with pytest.warns(UserWarning, match="Worker"), pytest.raises(BrokenEnvironmentError) as told:
        _play(env)
    assert message in str(told.value)
    env.close()


class ScriptedPicture(Scripted):
    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
@pytest.mark.parametrize(
    ("wrong", "holds"),
    [(np.array([1.0, 0.5]), "float64 holds 0.5"), (np.array([255, -1]), "int64 holds -1"), ([0, 300], "300")],
)
def test_numbers_that_a_cast_would_change_are_told(vectorization: str, wrong: Any, holds: str) -> None:
    """Pictures from 0 to 1 in a space of uint8 would all be black, and what is below 0 would be bright."""
    rows = 1 if vectorization == "single" else 2

    def played(first: Any, after: Any) -> Any:
        make = lambda: ScriptedPicture((first, {}), (after, *STEP[1:]))  # noqa: E731
        env = create_environment(make, num_parallel_environments=rows, vectorization=vectorization)
        try:
            env.reset()
            return env.step(np.zeros(rows, np.int64)).observation
        finally:
            env.close()

    for as_given in (np.array([3.0, 255.0]), [3, 255], np.array([3, 255], np.int64)):
        seen = played(as_given, as_given)
        assert (seen.dtype, seen.tolist()) == (np.uint8, [[3, 255]] * rows)
    sound = np.zeros(2, np.uint8)
    for first, after in ((wrong, sound), (sound, wrong)):
        with warnings.catch_warnings(), pytest.raises(BrokenEnvironmentError) as told:
            warnings.simplefilter("ignore")  # Gymnasium's, of workers
            played(first, after)
        assert f"{holds}, which the uint8 of its space, Box(0, 255, (2,), uint8), cannot be: give the space" in str(
            told.value
        )


def test_an_observation_without_a_part_is_told() -> None:
    env = create_environment(lambda: ScriptedDict(({"a": SOUND}, {}), STEP), num_parallel_environments=1)
    with pytest.raises(BrokenEnvironmentError, match=r"not built as its space says: KeyError\('b'\)"):
        _play(env)


def test_an_error_of_the_environments_own_comes_at_once() -> None:
    error = AttributeError("'MyEnv' object has no attribute 'tmie'")
    env = create_environment(lambda: Scripted((SOUND, {}), error), num_parallel_environments=2)
    with pytest.raises(AttributeError) as told:
        _play(env)
    assert told.value is error
    assert "so it is not rebuilt" in told.value.__notes__[-1]
    assert env.restarts == 0
    env.close()


def test_what_cannot_be_looked_at_raises_its_own_error() -> None:
    def only_once() -> Any:
        if made:
            raise OSError("there is one already")
        made.append(Scripted((None, {}), STEP))
        return made[-1]

    made: list[Any] = []
    env = create_environment(only_once, num_parallel_environments=1)
    with pytest.raises((TypeError, ValueError)) as told:
        _play(env)
    assert not isinstance(told.value, BrokenEnvironmentError)
    env.close()


@pytest.mark.parametrize(("error", "restarts"), [(RuntimeError("lost"), 1), (OSError("busy"), 1), (KeyError("x"), 0)])
def test_what_may_pass_is_tried_again(error: Exception, restarts: int) -> None:
    counter = StepCounter()
    env = RestartingEnvironment(
        lambda seed: FaultyEnvironment(CountingEnvironment(2), counter=counter, raise_at=[0], error=error), seed=1
    )
    if restarts:
        _play(env)
    else:
        with pytest.raises(KeyError):
            _play(env)
    assert env.restarts == restarts


def test_what_has_worked_is_rebuilt_whatever_it_raises() -> None:
    counter = StepCounter()
    env = RestartingEnvironment(
        lambda seed: FaultyEnvironment(CountingEnvironment(2), counter=counter, raise_at=[1], error=KeyError("x")),
        seed=1,
    )
    _play(env)
    assert env.restarts == 1
