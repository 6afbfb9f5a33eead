"""Every way to vectorise gives the segments of the single environment, and owns what it hands out."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from alf.environments import BatchedEnvironment, SingleEnvironment, VectorEnvironment, create_environment, suite_gym
from tests.environments.toy_environments import ENDS, NestedEnv, ToyEnv, ToyVectorEnv

_ROWS = 3
_STEPS = 14


def _actions(rows: int) -> np.ndarray:
    return np.arange(_STEPS * rows).reshape(_STEPS, rows) * 7 % 4


def _expected(ends: str, rows: int) -> list[list[tuple[int, float, float, list[float]]]]:
    """For each row its time steps, by a plain loop over the single environment."""
    streams = []
    for row in range(rows):
        env, steps, done = ToyEnv(row, ends), [], True
        for action in [0, *_actions(rows)[:, row]]:
            if done:
                steps.append((0, 0.0, 1.0, env.reset()[0].tolist()))
                done = False
            else:
                observation, reward, terminated, truncated, _ = env.step(env.action_space.start + np.int64(action))
                done = terminated or truncated
                steps.append((2 if done else 1, reward, 0.0 if terminated else 1.0, observation.tolist()))
        streams.append(steps)
    return streams


def _played(env: BatchedEnvironment) -> list[list[tuple[int, float, float, list[float]]]]:
    """The same from a batched environment; all arrays are read at the end, so that reused buffers show (E31)."""
    steps = [env.reset()]
    steps += [env.step(action) for action in _actions(env.batch_size)]
    env.close()
    for step in steps:
        assert step.step_type.dtype == np.int32
        assert step.reward.dtype == step.discount.dtype == step.observation.dtype == np.float32
    return [
        [
            (int(s.step_type[row]), float(s.reward[row]), float(s.discount[row]), s.observation[row].tolist())
            for s in steps
        ]
        for row in range(env.batch_size)
    ]


def _own(kind: type, mode: AutoresetMode, ends: str) -> Callable[[], VectorEnv]:
    rows = [functools.partial(ToyEnv, row, ends) for row in range(_ROWS)]
    if kind is SyncVectorEnv:
        return lambda: SyncVectorEnv(rows, autoreset_mode=mode)
    return lambda: AsyncVectorEnv(rows, autoreset_mode=mode)


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_all_autoreset_modes_give_the_same_segments(kind: type, mode: AutoresetMode, ends: str) -> None:
    env = create_environment(_own(kind, mode, ends), num_parallel_environments=_ROWS, seed=1)
    assert _played(env) == _expected(ends, _ROWS)


@pytest.mark.parametrize("ends", ENDS)
def test_a_reset_behind_an_end_is_made_once(ends: str) -> None:
    """By the workers of a vector environment without shared memory too, which reset once more at the next step."""
    rows = [functools.partial(ToyEnv, row, ends) for row in range(_ROWS)]
    make = lambda: AsyncVectorEnv(rows, shared_memory=False, autoreset_mode=AutoresetMode.NEXT_STEP)  # noqa: E731
    env = create_environment(make, num_parallel_environments=_ROWS, seed=1)
    step = env.reset()
    while not (step.step_type == 2).any():
        step = env.step(np.zeros(_ROWS, np.int64))
    first = env.reset()
    second = env.step(np.zeros(_ROWS, np.int64))
    env.close()
    assert (first.step_type == 0).all()
    assert (second.reward != 0).all(), "a step, not another reset"


@pytest.mark.parametrize("ends", ENDS)
def test_numpy_vectorised_gives_the_same_segments(ends: str) -> None:
    env = create_environment(functools.partial(ToyVectorEnv, ends=ends), num_parallel_environments=_ROWS, seed=1)
    assert _played(env) == _expected(ends, _ROWS)


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("vectorization", [None, "single", "sync", "async"])
def test_one_environment_gives_the_same_segments(vectorization: str | None, ends: str) -> None:
    env = create_environment(
        functools.partial(ToyEnv, ends=ends), num_parallel_environments=1, seed=1, vectorization=vectorization
    )
    assert _played(env) == _expected(ends, 1)


class GlobalEnv(gymnasium.Env):
    """Draws from the generators of its process, and not from the one that it has."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.array([np.random.rand(), random.random()]), {}

    def step(self, action: Any) -> Any:
        return np.array([np.random.rand(), random.random()]), 0.0, False, False, {}


def test_generators_of_worker_processes_go_by_the_seeds_of_their_rows() -> None:
    def drawn(seed: int) -> np.ndarray:
        env = create_environment(GlobalEnv, num_parallel_environments=3, seed=seed, vectorization="async")
        steps = [env.reset(), env.step(np.zeros(3, np.int64))]
        env.close()
        return np.concatenate([step.observation for step in steps])

    first, again, other = drawn(1), drawn(1), drawn(2)
    np.testing.assert_array_equal(first, again)
    assert len(np.unique([first, other])) == 2 * first.size


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("mode", [None, "odd", AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_third_party_modes_are_refused(mode: Any, wrapped: bool) -> None:
    class Other(ToyVectorEnv):
        metadata = {} if mode is None else {"autoreset_mode": mode}

    def make() -> VectorEnv:
        env: VectorEnv = Other(2)
        return gymnasium.vector.VectorWrapper(env) if wrapped else env

    with pytest.raises(ValueError, match=r"autoreset mode .*NEXT_STEP"):
        create_environment(make, num_parallel_environments=2)


def test_a_wrapped_vector_env_in_the_wrong_mode_is_refused() -> None:
    make = _own(SyncVectorEnv, AutoresetMode.SAME_STEP, "terminate")
    with pytest.raises(ValueError, match="NEXT_STEP"):
        VectorEnvironment(gymnasium.vector.VectorWrapper(make()))


def test_wrapped_processes_that_would_reset_once_more_are_refused() -> None:
    def make(shared_memory: bool) -> VectorEnv:
        rows = [functools.partial(ToyEnv, row) for row in range(_ROWS)]
        return gymnasium.vector.VectorWrapper(AsyncVectorEnv(rows, shared_memory=shared_memory))

    with pytest.raises(ValueError, match=r"^The AsyncVectorEnv of VectorWrapper .* shared_memory=False out\."):
        create_environment(functools.partial(make, False), num_parallel_environments=_ROWS)
    env = create_environment(functools.partial(make, True), num_parallel_environments=_ROWS, seed=1)
    assert _played(env) == _expected("terminate", _ROWS)


@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
def test_nested_specs_match_what_is_delivered(vectorization: str) -> None:
    size = 1 if vectorization == "single" else 2
    env = create_environment(NestedEnv, num_parallel_environments=size, seed=3, vectorization=vectorization)
    rng = np.random.default_rng(0)
    step = env.reset()
    for _ in range(4):
        tf.nest.assert_same_structure(env.observation_spec(), step.observation)
        for spec, leaf in zip(tf.nest.flatten(env.observation_spec()), tf.nest.flatten(step.observation), strict=True):
            assert (leaf.shape, leaf.dtype) == ((size, *spec.shape), spec.dtype)
        step = env.step(
            {"move": rng.normal(size=(size, 2)).astype(np.float32), "press": rng.integers(2, size=(size, 2))}
        )
    env.close()


@pytest.mark.parametrize("vectorization", ["single", "sync", "async", "auto"])
def test_a_reward_may_have_an_axis_of_one(vectorization: str) -> None:
    class Arrays(ToyEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.array([reward]), *rest

    class Vector(ToyVectorEnv):
        def step(self, actions: np.ndarray) -> Any:
            observation, reward, *rest = super().step(actions)
            return observation, reward[:, np.newaxis], *rest

    kind: Any = Vector if vectorization == "auto" else Arrays
    env = create_environment(kind, num_parallel_environments=1, seed=1, vectorization=vectorization)
    env.reset()
    step = env.step(np.array([1]))
    assert (step.reward.tolist(), step.reward.dtype) == ([13.0], np.float32)
    env.close()


class _Row(ToyEnv):
    """Its row is its first seed, and what a step gives, the info among it, is changed by `change`."""

    def __init__(self, change: Callable[[int, bool, Any], Any]) -> None:
        super().__init__()
        self.change = change

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.row = self.row if seed is None else seed
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return self.change(self.row, result[2], result)


def _changed(vectorization: str, change: Callable[[int, bool, Any], Any]) -> BatchedEnvironment:
    rows = 1 if vectorization == "single" else _ROWS
    return suite_gym.load(functools.partial(_Row, change))(rows, [*range(rows)], vectorization)


_INFOS: dict[str, Callable[[int, bool], Any]] = {
    "lengths": lambda row, done: {"visited": np.arange(row)},
    "kinds": lambda row, done: {"score": None if row else 3, "end": {"won": 1.0} if done else "running"},
    "large": lambda row, done: {"n": 2**70},
    "lock": lambda row, done: {"lock": threading.Lock()},
    "list": lambda row, done: ["nothing"],
    "none": lambda row, done: None,
    "players": lambda row, done: {"success": [done] * 2, "lives": {"ann": row}},
    "doors": lambda row, done: {"success": {"front": False, "back": False}},
    "text": lambda row, done: {"is_success": "no", "lives": "none"},
    "not a number": lambda row, done: {"success": np.nan},
    "thing": lambda row, done: {"success": threading.Lock()},
}


@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
@pytest.mark.parametrize("info", _INFOS.values(), ids=_INFOS.keys())
def test_rows_may_tell_what_they_like(vectorization: str, info: Callable[[int, bool], Any]) -> None:
    env = _changed(vectorization, lambda row, done, step: (*step[:4], info(row, done)))
    assert _played(env) == _expected("terminate", env.batch_size)
    assert env.successes is None or not env.successes.any()


@pytest.mark.parametrize("name", ["players", "doors", "text", "not a number", "thing"])
def test_a_vector_of_ones_own_may_tell_something_else_of_these_names(name: str) -> None:
    change = lambda row, done, step: (*step[:4], _INFOS[name](0, done))  # noqa: E731
    rows = [functools.partial(_Row, change)] * _ROWS
    env = create_environment(lambda: SyncVectorEnv(rows), num_parallel_environments=_ROWS)
    env.reset()
    for action in _actions(_ROWS):
        env.step(action)
        assert env.successes is None or not env.successes.any()
        assert env.lives is None
    env.close()


@pytest.mark.parametrize("told", [bool, np.bool_, int, lambda done: np.array([done])])
@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
def test_success_is_read_in_every_form_of_one_number(vectorization: str, told: Callable[[bool], Any]) -> None:
    env = _changed(vectorization, lambda row, done, step: (*step[:4], {"is_success": told(done), "x": [0] * row}))
    env.reset()
    for action in _actions(env.batch_size):
        step = env.step(action)
        if (step.step_type == 0).all():
            continue
        assert env.successes is not None
        assert env.successes.tolist() == (step.step_type == 2).tolist()
    env.close()


@pytest.mark.filterwarnings("error:Conversion of an array with ndim > 0:DeprecationWarning")
@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
@pytest.mark.parametrize(
    "put", [lambda x: np.reshape(x, (1,)), lambda x: np.reshape(x, (1, 1)), lambda x: [x], lambda x: ((x,),)]
)
def test_rewards_and_flags_may_have_axes_of_one(vectorization: str, put: Callable[[Any], Any]) -> None:
    def change(row: int, done: bool, step: Any) -> Any:
        observation, *numbers, info = step
        return observation, *map(put, numbers), info

    env = _changed(vectorization, change)
    assert _played(env) == _expected("terminate", env.batch_size)


def test_flags_of_a_vector_may_have_an_axis_of_one() -> None:
    class Vector(ToyVectorEnv):
        def step(self, actions: np.ndarray) -> Any:
            observation, reward, *flags, info = super().step(actions)
            return observation, reward, *(flag[:, np.newaxis] for flag in flags), info

    env = create_environment(Vector, num_parallel_environments=_ROWS)
    assert _played(env) == _expected("terminate", _ROWS)


def test_an_observation_unlike_its_space_is_named() -> None:
    class Wrong(ToyEnv):
        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            return np.zeros(5), {}

    with pytest.raises(ValueError, match=r"shape \(5,\) where its observation space says \(4,\)"):
        SingleEnvironment(Wrong()).reset()


class _EmptyEpisodes(ToyVectorEnv):
    """Done again in the step that resets a row, `times` times over."""

    def __init__(self, num_envs: int, times: int) -> None:
        super().__init__(num_envs)
        self.times = times

    def step(self, actions: np.ndarray) -> Any:
        resets = (self.buffers[2] | self.buffers[3])[0]
        result = super().step(actions)
        if resets and self.times:
            self.times -= 1
            self.buffers[2][0] = True
        return result


def test_an_environment_done_at_reset_is_reset_again() -> None:
    steps = _played(VectorEnvironment(_EmptyEpisodes(1, 4)))[0]
    # Episode 0 takes one action; 1 to 4 are empty; 5 to 8 take 3, 1, 2 and 3.
    assert [step[0] for step in steps] == [0, 2, *(0, 1, 1, 2), *(0, 2), *(0, 1, 2), *(0, 1, 1, 2)]
    assert [step[3][1] for step in steps] == [0.0] * 2 + [5.0] * 4 + [6.0] * 2 + [7.0] * 3 + [8.0] * 4


@pytest.mark.parametrize(("rows", "times"), [(1, 10**6), (3, 1)])
def test_an_environment_that_stays_done_is_an_error(rows: int, times: int) -> None:
    env = VectorEnvironment(_EmptyEpisodes(rows, times))
    env.reset()
    with pytest.raises(RuntimeError, match="done as soon as"):
        for action in _actions(rows):
            env.step(action)


def test_render_gives_the_picture_of_row_0() -> None:
    for vectorization in ("single", "sync", "async"):
        env = create_environment(
            functools.partial(ToyEnv, render_mode="rgb_array"), num_parallel_environments=1, vectorization=vectorization
        )
        env.reset()
        picture = env.render()
        assert picture is not None
        assert picture.shape == (2, 3, 3)
        env.close()
    with pytest.raises(NotImplementedError, match="render_mode"):
        create_environment(ToyEnv, nonparallel=True).render()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("space", [gymnasium.spaces.Tuple(()), gymnasium.spaces.Dict({"a": gymnasium.spaces.Dict()})])
def test_several_rows_have_no_empty_actions(space: gymnasium.Space, vectorization: str) -> None:
    class Idle(ToyEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

    with pytest.raises(ValueError, match=r"The action space .* has an empty part, .*: leave that out"):
        create_environment(Idle, num_parallel_environments=2, vectorization=vectorization)
    create_environment(Idle, num_parallel_environments=1, vectorization="single").reset()
