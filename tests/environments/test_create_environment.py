"""`create_environment`: ids, callables, gin, seeds, wrappers, errors."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from alf.environments import (
    BatchedEnvironment,
    EnvPoolEnvironment,
    ProcessEnvironment,
    SingleEnvironment,
    VectorEnvironment,
    create_environment,
    spawn_environment_seeds,
    suite_gym,
)
from alf.environments.seeding import distinct_seeds
from alf.environments.testing import CountingEnvironment
from alf.environments.vectorization import row_seeds
from tests.environments.toy_environments import NestedEnv, ToyEnv, ToyVectorEnv


def _rollout(env: BatchedEnvironment, steps: int = 40) -> np.ndarray:
    spec = env.action_spec()
    rng = np.random.default_rng(0)
    observations = [env.reset().observation]
    for _ in range(steps):
        action = rng.integers(spec.minimum, spec.maximum + 1, size=(env.batch_size, *spec.shape))
        observations.append(env.step(action).observation)
    env.close()
    return np.stack(observations)


@pytest.mark.parametrize(
    ("vectorization", "size", "kind"),
    [
        (None, 3, VectorEnvironment),
        ("auto", 1, SingleEnvironment),
        ("single", 2, VectorEnvironment),
        ("sync", 1, VectorEnvironment),
        ("async", 2, ProcessEnvironment),
        ("vector_entry_point", 1, VectorEnvironment),
    ],
)
def test_cart_pole_in_every_vectorization(vectorization: str | None, size: int, kind: type) -> None:
    def make(seed: int) -> Any:
        return create_environment("CartPole-v1", num_parallel_environments=size, seed=seed, vectorization=vectorization)

    env = make(3)
    assert type(env.env) is kind
    assert env.batch_size == size
    assert env.batched
    first, again, other = _rollout(env), _rollout(make(3)), _rollout(make(4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    for row in range(1, size):
        assert not np.array_equal(first[:, 0], first[:, row])


def test_the_numpy_vectorised_form_is_the_default_where_it_can_be() -> None:
    def inner(**kwargs: Any) -> Any:
        env = create_environment("CartPole-v1", num_parallel_environments=2, **kwargs)
        return env.env._env.unwrapped

    assert not isinstance(inner(), SyncVectorEnv)
    wrapped = functools.partial(suite_gym.load, gym_env_wrappers=(gymnasium.wrappers.TimeAwareObservation,))
    assert isinstance(inner(env_load_fn=wrapped), SyncVectorEnv)
    with pytest.raises(ValueError, match=r"no numpy-vectorised form.*leave create_environment.vectorization out"):
        inner(env_load_fn=wrapped, vectorization="vector_entry_point")


def test_load_arguments() -> None:
    load = functools.partial(
        suite_gym.load,
        gym_env_wrappers=(gymnasium.wrappers.TimeAwareObservation,),
        env_wrappers=(_Doubled,),
        max_episode_steps=2,
    )
    for name in ("CartPole-v1", ToyEnv):
        env = create_environment(name, env_load_fn=load, num_parallel_environments=2)
        assert isinstance(env.env, _Doubled)
        types = [env.reset().step_type[0]]
        types += [env.step(np.full(2, env.action_spec().minimum)).step_type[0] for _ in range(3)]
        assert types[:2] != types[2:]
        assert 2 in types
        assert env.observation_spec().shape == (5,)


class _Doubled(BatchedEnvironment):
    """A pass-through wrapper."""

    def __init__(self, env: BatchedEnvironment) -> None:
        super().__init__()
        self.inner = env

    @property
    def batch_size(self) -> int:
        return self.inner.batch_size

    def observation_spec(self) -> Any:
        return self.inner.observation_spec()

    def action_spec(self) -> Any:
        return self.inner.action_spec()

    def _reset(self) -> Any:
        return self.inner.reset()

    def _step(self, action: Any) -> Any:
        return self.inner.step(action)


def _numbered() -> Any:
    numbers = itertools.count()
    return lambda: ToyEnv(row=next(numbers))


@pytest.mark.parametrize("nonparallel", [False, True])
def test_no_environment_is_built_in_vain(nonparallel: bool) -> None:
    built, closed = [], []

    class Counted(ToyEnv):
        def __init__(self) -> None:
            super().__init__()
            built.append(self)

        def close(self) -> None:
            closed.append(self)

    env = create_environment(Counted, num_parallel_environments=3, nonparallel=nonparallel)
    assert len(built) == env.batch_size == (1 if nonparallel else 3)
    env.close()
    env.close()
    assert sorted(map(id, closed)) == sorted(map(id, built))


def test_environments_are_closed_when_building_fails() -> None:
    closed = []
    calls = itertools.count()

    class Fails(ToyEnv):
        def __init__(self) -> None:
            super().__init__()
            if next(calls) == 2:
                raise KeyError("third")

        def close(self) -> None:
            closed.append(self)

    with pytest.raises(KeyError, match="third"):
        create_environment(Fails, num_parallel_environments=3)
    assert len(closed) == 2


def test_callables_of_each_kind() -> None:
    assert _rollout(create_environment(_numbered(), num_parallel_environments=3)).shape == (41, 3, 4)
    assert create_environment(ToyVectorEnv, num_parallel_environments=5).batch_size == 5
    counting = create_environment(CountingEnvironment, num_parallel_environments=4)
    assert isinstance(counting.env, CountingEnvironment)
    assert counting.batch_size == 4
    by_path = create_environment("tests.environments.toy_environments:ToyEnv", num_parallel_environments=2)
    assert by_path.action_spec().maximum == 3
    loaded = create_environment("anything", env_load_fn=lambda name: NestedEnv(), num_parallel_environments=2)
    assert set(loaded.observation_spec()) == {"image", "pair", "vector"}


def test_gin_lines() -> None:
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config(
            [
                'create_environment.env_name = "tests.environments.toy_environments:ToyEnv"',
                "create_environment.num_parallel_environments = 2",
                "create_environment.env_load_fn = @suite_gym.load",
                "suite_gym.load.max_episode_steps = 1",
            ]
        )
    try:
        env = create_environment()
        env.reset()
        assert env.batch_size == 2
        assert env.step(np.full(2, 2)).step_type.tolist() == [2, 2]
    finally:
        with gin.unlock_config():
            gin.clear_config()


@pytest.mark.parametrize("what", ["Registered", "Registered-v0"])
def test_a_module_that_is_named_may_register_configurables(what, tmp_path, monkeypatch):
    name = f"registers_{what.lower().replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import gin\nimport gymnasium\nfrom tests.environments.toy_environments import ToyEnv\n"
        f"@gin.configurable(module={name!r})\nclass Registered(ToyEnv):\n    pass\n"
        "gymnasium.register('Registered-v0', Registered)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        gin.finalize()
        env = create_environment(f"{name}:{what}", num_parallel_environments=2)
        assert env.reset().observation.shape == (2, 4)
        assert gin.config_is_locked()
    finally:
        gymnasium.registry.pop("Registered-v0", None)
        with gin.unlock_config():
            gin.clear_config()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("Pendulum-v0", "use 'Pendulum-v1'"),
        ("BipedalWalker-v2", "use 'BipedalWalker-v3'"),
        ("NoSuchThing-v1", "knows no environment 'NoSuchThing-v1'"),
        ("CartPole-v9", "the newest is 'CartPole-v1'"),
        ("ALE/NoSuchPong-v5", "knows no environment|needs a package"),
        (
            "tests.environments.toy_environments.ToyEnv",
            "write 'tests.environments.toy_environments:ToyEnv' for ToyEnv of",
        ),
        ("no_such_module.ToyEnv", "check the spelling"),
        ("tests.no_such_module.ToyEnv", "check the spelling"),
    ],
)
def test_unknown_ids_are_explained(name: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        create_environment(name, num_parallel_environments=2)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"vectorization": "threads"}, "must be one of"),
        ({"num_parallel_environments": 0}, "at least one row"),
        ({"env_name": functools.partial(ToyVectorEnv, 3)}, "has 3 rows where 2 are wanted"),
        (
            {"env_name": functools.partial(ToyVectorEnv, 16), "num_parallel_environments": 16, "nonparallel": True},
            r"has 16 rows where 1 are wanted: let its callable take num_envs .* evaluation and play ask for fewer rows",
        ),
        ({"env_name": ToyVectorEnv, "vectorization": "sync"}, "a batch already"),
        ({"env_name": ToyEnv, "vectorization": "envpool"}, "needs the id"),
        ({"env_name": ToyEnv, "vectorization": "vector_entry_point"}, "no numpy-vectorised"),
        ({"env_name": "CartPol-v1", "vectorization": "vector_entry_point"}, "knows no environment 'CartPol-v1'"),
        ({"env_name": "Lunar Lander-v3"}, "cannot make 'Lunar Lander-v3': Malformed environment ID"),
        ({"env_name": ""}, "cannot make '': Malformed environment ID"),
        ({"env_name": "tests.environments.toy_environments:ToyEnvv"}, "has no function of this name"),
        ({"nonfinite": "ignore"}, "nonfinite"),
        ({"max_restarts": -1}, "must be >= 0"),
    ],
)
def test_bad_arguments_are_explained(kwargs: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        create_environment(**{"num_parallel_environments": 2, **kwargs})


@pytest.mark.parametrize("wrap", [lambda env: env, gymnasium.wrappers.OrderEnforcing])
def test_one_environment_is_not_several_rows(wrap: Any) -> None:
    closed: list[int] = []

    class Closed(ToyEnv):
        def close(self) -> None:
            closed.append(1)

    env = Closed()
    with pytest.raises(
        ValueError, match=r"Of 3 environments several are the same object, such as .* make a new one at each call"
    ):
        create_environment(lambda: wrap(env), num_parallel_environments=3)
    assert closed
    create_environment(lambda: wrap(env), nonparallel=True).close()


def test_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="got int"):
        create_environment(lambda: 3, num_parallel_environments=2)
    with pytest.raises(
        TypeError, match=r"got RockPaperScissors from <class .*RockPaperScissors.>.* @suite_agents\.load"
    ):
        create_environment("alf.environments.agent_tasks:RockPaperScissors", num_parallel_environments=2)


def test_seeds_do_not_collide() -> None:
    seeds = spawn_environment_seeds(7, 200, 128)
    assert len({seed for row in seeds for seed in row}) == 200 * 128
    assert seeds == spawn_environment_seeds(7, 200, 128)
    assert not {s for row in seeds for s in row} & {s for row in spawn_environment_seeds(8, 2, 128) for s in row}
    assert distinct_seeds(None, 3) != distinct_seeds(None, 3)
    assert row_seeds([5, 6], 2) == [5, 6]
    assert row_seeds(np.random.SeedSequence(3), 4) == row_seeds(3, 4)


@pytest.mark.parametrize("seed", [-1, 1.5, [3, -2, 1]])
def test_a_seed_that_is_none_is_told(seed: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"A seed is a whole number of at least 0, or several; got {re.escape(str(seed))}"
    ):
        create_environment("CartPole-v1", num_parallel_environments=2, seed=seed)


@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
def test_a_class_of_environments_has_a_batch_size_of_its_own(vectorization: str) -> None:
    class Learns(ToyEnv):
        def __init__(self, batch_size: int = 64, num_envs: int = 7) -> None:
            super().__init__()
            self.batch_size, self.num_envs = batch_size, num_envs

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, 1000.0 * self.num_envs + self.batch_size, *rest

    rows = 1 if vectorization == "single" else 2
    for load, reward in ((suite_gym.load, 7064), (functools.partial(suite_gym.load, batch_size=9), 7009)):
        env = create_environment(Learns, load, num_parallel_environments=rows, vectorization=vectorization)
        env.reset()
        assert env.step(np.zeros(rows, np.int64)).reward.tolist() == [reward] * rows
        env.close()


def test_given_row_seeds_reach_the_rows() -> None:
    env = create_environment("CartPole-v1", num_parallel_environments=3, seed=[11, 22, 33], vectorization="sync")
    expected = [gymnasium.make("CartPole-v1").reset(seed=seed)[0] for seed in (11, 22, 33)]
    assert np.array_equal(env.reset().observation, np.stack(expected))
    assert not np.array_equal(env.reset().observation, np.stack(expected))


def test_envpool_is_like_the_others() -> None:
    pytest.importorskip("envpool")

    def make(seed: int) -> Any:
        load = functools.partial(suite_gym.load, max_episode_steps=9)
        return create_environment("CartPole-v1", load, num_parallel_environments=3, seed=seed, vectorization="envpool")

    env = make(1)
    assert isinstance(env.env, EnvPoolEnvironment)
    assert env.action_spec().dtype == np.int64
    assert env.observation_spec().dtype == np.float32
    first, again, other = _rollout(env), _rollout(make(1)), _rollout(make(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:, 0], first[:, 1])
    env = make(1)
    steps = [env.reset()]
    steps += [env.step(np.arange(3) % 2) for _ in range(300)]
    copies = [step.observation.copy() for step in steps]
    for before, after in itertools.pairwise(steps):
        assert ((after.step_type == 0) == (before.step_type == 2)).all()
        first_rows = after.step_type == 0
        assert (after.reward == np.where(first_rows, 0.0, 1.0)).all()
        assert (np.abs(after.observation[first_rows]) <= 0.05).all()
    lengths = _episode_lengths(steps)
    truncated = {length for length, discount in lengths if discount == 1}
    assert truncated == {9}
    assert {length for length, _ in lengths} - {9}
    env.close()
    for step, copy in zip(steps, copies, strict=True):
        assert np.array_equal(step.observation, copy)


def _episode_lengths(steps: list[Any]) -> list[tuple[int, float]]:
    found = []
    for row in range(len(steps[0].step_type)):
        length = 0
        for step in steps:
            length = 0 if step.step_type[row] == 0 else length + 1
            if step.step_type[row] == 2:
                found.append((length, float(step.discount[row])))
    return found


def test_envpool_errors_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[envpool\]"'):
        create_environment("CartPole-v1", num_parallel_environments=2, vectorization="envpool")
    monkeypatch.undo()
    pytest.importorskip("envpool")
    with pytest.raises(ValueError, match="no task 'NoSuchTask-v1'"):
        create_environment("NoSuchTask-v1", num_parallel_environments=2, vectorization="envpool")


def test_an_envpool_by_callable_goes_by_the_seed_where_it_takes_one(logged: list[str]) -> None:
    envpool = pytest.importorskip("envpool")
    make: Any = functools.partial(envpool.make, "CartPole-v1", env_type="gymnasium")

    def begun(load: Any, seed: int) -> np.ndarray:
        env = create_environment(load, num_parallel_environments=2, seed=seed)
        observation = np.array(env.reset().observation)
        env.close()
        return observation

    def seeded(num_envs: int, seed: int) -> Any:
        return make(num_envs=num_envs, seed=seed)

    np.testing.assert_array_equal(begun(seeded, 1), begun(seeded, 1))
    assert not np.array_equal(begun(seeded, 1), begun(seeded, 2))
    assert not logged
    begun(lambda num_envs: make(num_envs=num_envs), 1)
    assert "makes an EnvPool and takes no seed" in logged[0]


@pytest.mark.parametrize("wrap", [gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward])
@pytest.mark.parametrize("kind", ["single", "sync", "async", "vector"])
def test_averages_that_stay_with_the_environment_are_warned_of(kind: str, wrap: Any, logged: list[str]) -> None:
    def limited() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(wrap(ToyEnv()), 5)

    def vector(num_envs: int) -> Any:
        return getattr(gymnasium.wrappers.vector, wrap.__name__)(SyncVectorEnv([ToyEnv] * num_envs))

    rows, vectorization = (1 if kind == "single" else 2), (None if kind == "vector" else kind)
    make: Any = vector if kind == "vector" else limited
    env = create_environment(make, num_parallel_environments=rows, vectorization=vectorization)
    env.close()
    told = [line for line in logged if "bind Agent.observation_normalizer = @ObservationNormalizer()" in line]
    # Rewards are scaled for learning alone, which is over when it matters.
    assert len(told) == (wrap is gymnasium.wrappers.NormalizeObservation)


def test_an_envpool_by_callable() -> None:
    envpool = pytest.importorskip("envpool")
    env = create_environment(
        lambda num_envs: envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=num_envs, seed=3),
        num_parallel_environments=2,
    )
    assert isinstance(env.env, EnvPoolEnvironment)
    env.reset()
    assert env.step(np.zeros((2, 1), np.float32)).step_type.tolist() == [1, 1]
    env.close()


@pytest.mark.parametrize("dtype", [np.float16, np.uint8, np.float64])
@pytest.mark.parametrize(("vectorization", "size"), [("single", 1), ("sync", 2), ("async", 2)])
def test_environments_get_the_dtype_of_their_action_space(vectorization: str, size: int, dtype: Any) -> None:
    class Picky(ToyEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Box(dtype(0), dtype(200), (), dtype)  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            assert np.asarray(action).dtype == dtype
            return super().step(action)

    env = create_environment(Picky, num_parallel_environments=size, vectorization=vectorization, max_restarts=0)
    try:
        env.reset()
        taken = np.full(size, 130, env.action_spec().dtype)
        assert env.step(taken).observation[:, 3].tolist() == [130.0] * size
    finally:
        env.close()
