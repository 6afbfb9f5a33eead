"""MuJoCo, Box2D, MiniGrid and classic control, as far as they are installed; what is missing is named."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest
from tf_agents.environments import tf_py_environment
from tf_agents.environments.random_py_environment import RandomPyEnvironment
from tf_agents.specs.array_spec import ArraySpec

from alf.environments import BatchedEnvironment, create_environment, gym_ids, suite_gym, suite_mujoco
from alf.environments.wrappers import FrameStack, SelectFields, TextToBytes
from tests.environments.toy_environments import ToyEnv


def _needs(module: str, extra: str) -> None:
    pytest.importorskip(module, reason=f"{module} (alf[{extra}]) is not installed")


def _play(env: BatchedEnvironment, steps: int = 6) -> list[Any]:
    rng = np.random.default_rng(0)
    spec = env.action_spec()
    played = [env.reset()]
    for _ in range(steps):
        if np.issubdtype(spec.dtype, np.integer):
            action = rng.integers(spec.minimum, spec.maximum + 1, (env.batch_size, *spec.shape))
        else:
            action = rng.uniform(spec.minimum, spec.maximum, (env.batch_size, *spec.shape)).astype(spec.dtype)
        played.append(env.step(action))
    env.close()
    return played


@pytest.mark.parametrize(
    ("name", "shape", "action"),
    [
        ("CartPole-v1", (4,), ()),
        ("Acrobot-v1", (6,), ()),
        ("MountainCar-v0", (2,), ()),
        ("MountainCarContinuous-v0", (2,), (1,)),
        ("Pendulum-v1", (3,), (1,)),
    ],
)
def test_classic_control(name: str, shape: tuple[int, ...], action: tuple[int, ...]) -> None:
    env = create_environment(name, num_parallel_environments=2, seed=0)
    assert env.observation_spec().shape == shape
    assert env.action_spec().shape == action
    assert _play(env)[-1].observation.dtype == np.float32


@pytest.mark.parametrize(("name", "rows"), [("CartPole-v1", 1), ("CartPole-v1", 2), (ToyEnv, 1)])
@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("discount", r" Rewards are discounted by the algorithm: bind its gamma, such as ActorCriticLoss\.gamma\."),
        ("gym_kwargs", r" Bind what was in it by its own name, suite_gym\.load\.NAME\."),
        ("spec_dtype_map", " Specs have the dtypes of the spaces; an observation_transformer makes others of them."),
        ("lenght", ""),
    ],
)
def test_a_keyword_that_an_environment_does_not_take_is_told(name: Any, rows: int, keyword: str, advice: str) -> None:
    load = functools.partial(suite_gym.load, **{keyword: 0.9})
    called = name if isinstance(name, str) else re.escape(repr(name))
    with pytest.raises(
        ValueError,
        match=rf"^{called} takes no argument {keyword!r}: take suite_gym\.load\.{keyword} out\.{advice}(\n|$)",
    ):
        create_environment(name, load, num_parallel_environments=rows, seed=0)


def test_an_environment_may_take_a_keyword_of_earlier_loaders() -> None:
    given = []

    def make(discount: float) -> gymnasium.Env:
        given.append(discount)
        return ToyEnv()

    create_environment(make, functools.partial(suite_gym.load, discount=0.9), num_parallel_environments=1).close()
    assert given == [0.9]


@pytest.mark.parametrize("wrap", [lambda env: env, tf_py_environment.TFPyEnvironment])
def test_an_environment_of_tf_agents_is_told_what_to_return(wrap: Any) -> None:
    with pytest.raises(TypeError, match=r"got (TFPy|Random)\w+ from .*: have it return the gymnasium\.Env"):
        create_environment("CartPole-v1", lambda name: wrap(RandomPyEnvironment(ArraySpec((2,), np.float32))), 1)


@pytest.mark.parametrize("vectorization", ["single", "auto", "sync", "envpool"])
def test_threads_are_for_envpool(vectorization: str) -> None:
    if vectorization == "envpool":
        _needs("envpool", "envpool")
    load = functools.partial(suite_gym.load, num_threads=1)
    rows = 1 if vectorization == "single" else 2
    env = create_environment("CartPole-v1", load, num_parallel_environments=rows, seed=0, vectorization=vectorization)
    assert _play(env)[-1].observation.shape == (rows, 4)


def test_a_callable_gets_the_number_of_threads() -> None:
    def make(num_threads: int) -> gymnasium.Env:
        assert num_threads == 3
        return gymnasium.make("CartPole-v1")

    load = functools.partial(suite_gym.load, num_threads=3)
    create_environment(make, load, num_parallel_environments=1, seed=0).close()


@pytest.mark.parametrize(("name", "size", "actions"), [("LunarLander-v3", 8, ()), ("BipedalWalker-v3", 24, (4,))])
def test_box2d(name: str, size: int, actions: tuple[int, ...]) -> None:
    _needs("Box2D", "box2d")
    env = create_environment(name, num_parallel_environments=2, seed=0)
    assert env.observation_spec().shape == (size,)
    assert env.action_spec().shape == actions
    steps = _play(env)
    assert steps[-1].observation.dtype == np.float32
    assert not np.array_equal(steps[0].observation[0], steps[0].observation[1])


@pytest.mark.parametrize(
    ("name", "size", "actions"),
    [("HalfCheetah-v5", 17, 6), ("Hopper-v5", 11, 3), ("Humanoid-v5", 348, 17), ("Humanoid-v4", 376, 17)],
)
def test_mujoco(name: str, size: int, actions: int) -> None:
    _needs("mujoco", "mujoco")
    env = create_environment(name, suite_mujoco.load, num_parallel_environments=2, seed=0)
    assert (env.observation_spec().shape, env.observation_spec().dtype) == ((size,), np.float32)
    assert (env.action_spec().shape, env.action_spec().dtype) == ((actions,), np.float32)
    # What it calls its frame skip are substeps of the physics, not frames of a game.
    assert env.frames_per_step == 1
    assert np.isfinite(_play(env)[-1].observation).all()


@pytest.mark.parametrize(("name", "size"), [("HalfCheetah-v4", 17), ("Hopper-v4", 11)])
def test_mujoco_by_envpool(name: str, size: int) -> None:
    _needs("envpool", "envpool")
    env = create_environment(name, suite_mujoco.load, num_parallel_environments=3, seed=0, vectorization="envpool")
    assert (env.observation_spec().shape, env.observation_spec().dtype) == ((size,), np.float32)
    assert env.frames_per_step == 1
    steps = _play(env)
    assert steps[-1].observation.dtype == np.float32
    assert not np.array_equal(steps[0].observation[0], steps[0].observation[1])


def test_envpool_tells_the_time_limit_alone() -> None:
    _needs("envpool", "envpool")

    def last(limit: int) -> tuple[int, float]:
        load = functools.partial(suite_gym.load, max_episode_steps=limit)
        env = create_environment("CartPole-v1", load, 1, seed=0, vectorization="envpool")
        env.reset()
        lasts = ((n, step) for n in range(1, 100) if (step := env.step(np.ones(1, np.int64))).step_type[0] == 2)
        length, step = next(lasts)
        env.close()
        return length, float(step.discount[0])

    length, discount = last(0)
    assert discount == 0
    # A limitation of EnvPool that the documentation tells of; an EnvPool that tells the end should show here.
    assert last(length) == (length, 1.0)


def test_minigrid_gives_dicts() -> None:
    _needs("minigrid", "minigrid")
    select = functools.partial(SelectFields, fields=["image", "direction"])
    stack = functools.partial(FrameStack, stack_size=2, fields=["image"])
    load = functools.partial(suite_gym.load, gym_env_wrappers=(select, stack))
    env = create_environment("MiniGrid-DoorKey-5x5-v0", load, num_parallel_environments=3, seed=0)
    spec = env.observation_spec()
    assert (spec["image"].shape, spec["image"].dtype) == ((7, 7, 6), np.uint8)
    assert (spec["direction"].shape, spec["direction"].minimum, spec["direction"].maximum) == ((), 0, 3)
    steps = _play(env)
    assert steps[-1].observation["image"].shape == (3, 7, 7, 6)
    assert steps[-1].observation["direction"].shape == (3,)
    with pytest.raises(ValueError, match="SelectFields"):
        create_environment("MiniGrid-DoorKey-5x5-v0", num_parallel_environments=1)


def test_minigrid_tells_its_mission_in_numbers() -> None:
    _needs("minigrid", "minigrid")
    load = functools.partial(suite_gym.load, gym_env_wrappers=(TextToBytes,))
    env = create_environment("MiniGrid-DoorKey-5x5-v0", load, num_parallel_environments=2, seed=0)
    missions = [bytes(codes).rstrip(b"\0").decode() for step in _play(env) for codes in step.observation["mission"]]
    assert set(missions) == {"use the key to open the door and then get to the goal"}


def test_the_mujoco_loader_of_old_gin_files() -> None:
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config(
            [
                "import alf.environments.suite_gym",
                "import tf_agents.environments.suite_mujoco",
                "create_environment.env_load_fn = @suite_mujoco.load",
                "suite_mujoco.load.max_episode_steps = 3",
                "create_environment.env_name = 'Pendulum-v1'",
                "create_environment.num_parallel_environments = 2",
            ]
        )
    try:
        types = [step.step_type.tolist() for step in _play(create_environment(seed=0), 3)]
        assert types == [[0, 0], [1, 1], [1, 1], [2, 2]]
    finally:
        with gin.unlock_config():
            gin.clear_config()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Pendulum-v0", "'Pendulum-v1'"),
        ("BipedalWalker-v2", "'BipedalWalker-v3'"),
        ("LunarLander-v2", "'LunarLander-v3'"),
        ("Humanoid-v2", "'Humanoid-v5'"),
        ("HalfCheetah-v3", "'HalfCheetah-v5'"),
    ],
)
def test_an_old_id_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=f"no '{old}' any more: use {new}."):
        create_environment(old, num_parallel_environments=2)


@pytest.mark.parametrize(("name", "newest"), [("CartPole-v9", "CartPole-v1"), ("Humanoid-v77", "Humanoid-v5")])
def test_a_version_that_never_was_names_the_newest(name: str, newest: str) -> None:
    with pytest.raises(ValueError, match=f"^Gymnasium has no '{name}': the newest is '{newest}'."):
        create_environment(name, num_parallel_environments=2)


@pytest.mark.parametrize(
    ("name", "module", "install"),
    [
        ("ALE/Pong-v5", "ale_py", '".[atari]"'),
        ("BreakoutNoFrameskip-v4", "ale_py", '".[atari]"'),
        ("MiniGrid-Empty-5x5-v0", "minigrid", '".[minigrid]"'),
        ("HumanoidBulletEnv-v0", "pybullet_envs_gymnasium", "pybullet_envs_gymnasium"),
    ],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str, install: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {})
    monkeypatch.setattr(gymnasium, "registry", {})
    with pytest.raises(ValueError, match="needs a package") as raised:
        gym_ids.make(name)
    assert f"pip install {install}" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("Hopper-v5", "mujoco", "mujoco"), ("LunarLander-v3", "Box2D", "box2d")]
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for loaded in [m for m in sys.modules if m.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(ValueError, match=rf'pip install "\.\[{extra}\]"'):
        create_environment(name, num_parallel_environments=1)
