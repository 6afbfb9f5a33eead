"""Atari preprocessing against a game whose every frame is known, and the games themselves in all three emulators."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from alf.environments import BatchedEnvironment, EnvPoolEnvironment, create_environment, gym_ids, suite_atari, suite_gym
from alf.environments.random_limits import load_with_random_max_episode_steps
from alf.environments.spaces import frames_per_step
from alf.environments.suite_atari import AleVectorEnvironment
from alf.environments.wrappers import DMAtariPreprocessing, FrameSkip, FrameStack

_PACKAGES = {"cv2": "OpenCV (alf[atari])", "ale_py": "ale-py (alf[atari])", "envpool": "EnvPool (alf[envpool])"}


def _needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"{_PACKAGES[module]} is not installed")


_NOOP, _FIRE, _RIGHT = 0, 1, 2
_MEANINGS = ["NOOP", "FIRE", "RIGHT"]
_SIZE = 12


class FlickeringGame(gymnasium.Env):
    """Looks like ALE; frame f shows its number in one of two alternating places, so that maxima of two show both.

    A life lasts `life` frames in which something but NOOP is pressed; there are 3. Each frame earns 1. A game is
    truncated after `limit` frames.
    """

    _frameskip = 1

    def __init__(self, life: int = 9, meanings: list[str] | None = None, limit: int = 10_000) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (_SIZE, _SIZE, 3), np.uint8)
        self.meanings = meanings or _MEANINGS
        self.action_space = gymnasium.spaces.Discrete(len(self.meanings))
        self.ale = self
        self.life, self.limit, self.actions, self.pressed = life, limit, [], 0

    def get_action_meanings(self) -> list[str]:
        return self.meanings

    def lives(self) -> int:
        return max(0, 3 - self.pressed // self.life)

    def screen(self, frame: int) -> np.ndarray:
        picture = np.zeros((_SIZE, _SIZE), np.uint8)
        half = _SIZE // 2
        picture[half * (frame % 2) : half * (frame % 2) + half] = 10 + frame % 200
        return picture

    def getScreenGrayscale(self, out: np.ndarray) -> None:
        out[:] = self.screen(len(self.actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.actions, self.pressed = [], 0
        return np.zeros((_SIZE, _SIZE, 3), np.uint8), {"lives": 3}

    def step(self, action: Any) -> Any:
        self.actions.append(int(action))
        self.pressed += action != _NOOP
        observation = np.zeros((_SIZE, _SIZE, 3), np.uint8)
        return observation, 1.0, self.lives() == 0, len(self.actions) >= self.limit, {"lives": self.lives()}


def _game(**kwargs: Any) -> tuple[DMAtariPreprocessing, FlickeringGame]:
    _needs("cv2")
    game = FlickeringGame(**{n: kwargs.pop(n) for n in ("life", "meanings", "limit") if n in kwargs})
    return DMAtariPreprocessing(game, screen_size=_SIZE, **kwargs), game


def _last_two(game: FlickeringGame) -> np.ndarray:
    now = len(game.actions)
    return np.maximum(game.screen(now), game.screen(now - 1))[..., np.newaxis]


def test_a_game_starts_with_one_to_thirty_no_ops_and_fire() -> None:
    env, game = _game(noop_max=5)
    counts = []
    for seed in range(60):
        env.reset(seed=seed)
        no_ops = game.actions.index(_FIRE)
        assert game.actions == [_NOOP] * no_ops + [_FIRE] * 4
        counts.append(no_ops)
    assert set(counts) == {1, 2, 3, 4, 5}
    env, game = _game(noop_max=0)
    env.reset(seed=0)
    assert game.actions == [_FIRE] * 4
    env, game = _game(noop_max=0, meanings=["NOOP", "UP", "RIGHT"])
    env.reset(seed=0)
    assert game.actions == []


@pytest.mark.parametrize("skip", [1, 2, 3, 4])
def test_a_step_holds_the_action_and_shows_the_brighter_of_the_last_two_frames(skip: int) -> None:
    env, game = _game(frame_skip=skip, life=1000)
    observation, _ = env.reset(seed=1)
    for step in range(12):
        action = step % 3
        before = len(game.actions)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert game.actions[before:] == [action] * skip
        assert reward == skip
        assert not terminated
        assert not truncated
        shown = _last_two(game) if skip > 1 else game.screen(len(game.actions))[..., np.newaxis]
        assert np.array_equal(observation, shown)
        assert observation.shape == env.observation_space.shape == (_SIZE, _SIZE, 1)
    assert env.metadata["frames_per_step"] == skip


# With the short one the first step already loses a life.
@pytest.mark.parametrize("life", [20, 7])
def test_the_button_is_pressed_after_a_lost_life_and_the_game_goes_on(life: int) -> None:
    env, game = _game(noop_max=0, life=life)
    env.reset(seed=0)
    lives, lost, terminated = 3, 0, False
    while not terminated:
        before = len(game.actions)
        observation, reward, terminated, truncated, info = env.step(_RIGHT)
        taken = game.actions[before:]
        if info["lives"] < lives and not terminated:
            lost += 1
            assert taken == [_RIGHT] * 4 + [_FIRE] * 4
            assert np.array_equal(observation, _last_two(game))
        else:
            assert taken == [_RIGHT] * len(taken)
        assert reward == len(taken)
        assert not truncated
        lives = info["lives"]
    assert lost == 2
    assert env.step(_NOOP)[0].shape == (_SIZE, _SIZE, 1)


def test_no_button_is_pressed_behind_the_time_limit() -> None:
    env, game = _game(noop_max=0, life=7, limit=8)
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step(_RIGHT)
    assert (terminated, truncated, info["lives"]) == (False, True, 2), "a life is lost on the last step"
    assert game.actions == [_FIRE] * 4 + [_RIGHT] * 4


def test_a_stack_goes_on_over_a_lost_life_and_begins_anew_with_a_game() -> None:
    preprocessed, game = _game(noop_max=0, life=20)
    env = FrameStack(preprocessed, 3)
    shown: list[np.ndarray] = []
    done = True
    for _ in range(60):
        if done:
            observation, _ = env.reset()
            shown = [_last_two(game)] * 3
            done = False
        else:
            observation, _, done, _, _ = env.step(_RIGHT)
            shown = [*shown[1:], observation[..., 2:] if done else _last_two(game)]
        assert np.array_equal(observation, np.concatenate(shown, axis=-1))


def test_what_is_no_single_frame_game_is_refused() -> None:
    _needs("cv2")
    with pytest.raises(ValueError, match="frameskip None: use an id such as"):
        DMAtariPreprocessing(gymnasium.make("CartPole-v1"))
    _needs("ale_py")
    load = functools.partial(suite_gym.load, gym_env_wrappers=(DMAtariPreprocessing,))
    with pytest.raises(ValueError, match=r"frameskip 4: use an id such as .*NoFrameskip"):
        create_environment("ALE/Pong-v5", load, num_parallel_environments=1)


# ---- the games themselves ----

_EMULATORS = {"sync": ("ale_py", "cv2"), "vector_entry_point": ("ale_py",), "envpool": ("envpool",)}


def _make(game: str, emulator: str, rows: int = 2, **kwargs: Any) -> Any:
    _needs(*_EMULATORS[emulator])
    seed = kwargs.pop("seed", 0)
    load = functools.partial(suite_atari.load, **kwargs)
    return create_environment(game, load, num_parallel_environments=rows, seed=seed, vectorization=emulator)


def _play(env: BatchedEnvironment, steps: int) -> list[Any]:
    rng = np.random.default_rng(0)
    actions = env.action_spec().maximum + 1
    played = [env.reset()]
    played += [env.step(rng.integers(actions, size=env.batch_size)) for _ in range(steps)]
    return played


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_every_emulator_gives_stacks_raw_rewards_and_lives(emulator: str) -> None:
    env = _make("SpaceInvaders", emulator, max_frames=4 * 100)
    kinds = {"vector_entry_point": AleVectorEnvironment, "envpool": EnvPoolEnvironment}
    if emulator in kinds:
        assert isinstance(env.env._env, kinds[emulator])
    spec = env.observation_spec()
    assert (spec.shape, spec.dtype, env.action_spec().maximum) == ((84, 84, 4), np.uint8, 5)
    assert env.frames_per_step == 4
    steps = _play(env, 250)
    assert env.lives.shape == (2,)
    assert 1 <= env.lives.min() <= env.lives.max() <= 3
    first = steps[0].observation
    assert first.shape == (2, 84, 84, 4)
    assert first.flags.c_contiguous
    rewards = np.stack([s.reward for s in steps])
    assert rewards.max() >= 5  # An invader is worth 5 points and more; clipped it would be 1.
    assert set(np.unique(rewards % 5)) == {0.0}
    firsts = 0
    for before, after in itertools.pairwise([None, *steps]):
        for row, kind in enumerate(after.step_type):
            seen = after.observation[row]
            # In a new game its first picture stands for those that are missing.
            older = np.repeat(seen[..., 3:], 3, -1) if kind == 0 else before.observation[row, ..., 1:]
            assert np.array_equal(seen[..., :3], older)
            assert seen.any(axis=(0, 1)).all()
            firsts += kind == 0
    assert firsts == 6
    assert len({s.observation.tobytes() for s in steps}) > 70
    env.close()


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_a_game_is_an_episode_and_a_life_is_an_end_for_the_learner(emulator: str) -> None:
    def run(**kwargs: Any) -> list[Any]:
        env = _make("Breakout", emulator, rows=1, sticky_actions=0.0, **kwargs)
        steps, lives = [env.reset()], [int(env.lives[0])]
        fire = np.array([_FIRE])
        while len(steps) < 700 and sum(int(s.step_type[0]) == 2 for s in steps) < 2:
            steps.append(env.step(fire))
            lives.append(int(env.lives[0]))
        env.close()
        assert lives[0] == 5
        for i in range(1, len(steps)):
            kind, ended = int(steps[i].step_type[0]), float(steps[i].discount[0]) == 0
            if kind == 2:
                assert ended
                assert lives[i] == 0
            elif kind == 1:
                assert ended == (lives[i] < lives[i - 1] and kwargs.get("episodic_life", True))
        return steps

    counted, plain = run(), run(episodic_life=False)
    assert len(counted) == len(plain)
    assert sum(int(s.step_type[0]) == 2 for s in counted) == 2
    # Each game loses five lives, the last of them as its end.
    assert sum(float(s.discount[0]) == 0 for s in counted) == 10
    assert sum(float(s.discount[0]) == 0 for s in plain) == 2
    for a, b in zip(counted, plain, strict=True):
        assert np.array_equal(a.observation, b.observation)
        assert a.reward == b.reward


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_seeds_and_truncation(emulator: str) -> None:
    def play(seed: int) -> np.ndarray:
        env = _make("Pong", emulator, seed=seed, max_frames=4 * 20, noop_max=5, sticky_actions=0.25)
        steps = _play(env, 30)
        env.close()
        lasts = [
            (i, float(d)) for i, s in enumerate(steps) for t, d in zip(s.step_type, s.discount, strict=True) if t == 2
        ]
        assert lasts
        assert {d for _, d in lasts} == {1.0}
        return np.stack([s.observation for s in steps])

    first, again, other = play(1), play(1), play(2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:, 0], first[:, 1])


def _first_ends(emulator: str, steps: int, **kwargs: Any) -> list[tuple[int, float]]:
    """Of both rows of Pong, after how many steps their first game ended, and with which discount."""
    env = _make("Pong", emulator, noop_max=0, **kwargs)
    ends: dict[int, tuple[int, float]] = {}
    for i, step in enumerate(_play(env, steps)):
        for row in np.flatnonzero(step.step_type == 2):
            ends.setdefault(int(row), (i, float(step.discount[row])))
    env.close()
    return [ends[row] for row in sorted(ends)]


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_no_limit(emulator: str) -> None:
    assert _first_ends(emulator, 8, max_frames=0) == []
    assert _first_ends(emulator, 8, max_frames=4 * 6 + 3) == [(6, 1.0)] * 2


@pytest.mark.parametrize(
    "limit",
    [{"max_frames": -1}, {"max_frames": 3}, {"max_frames": 7, "frame_skip": 8}, {"max_episode_steps": -1}],
)
def test_a_limit_has_room_for_a_step(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="{}={} must be at least".format(*next(iter(limit.items())))):
        suite_atari.load("Pong", **limit)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"frame_skip": 0}, "frame_skip=0 must be a whole number of at least 1."),
        ({"frame_skip": 1.5}, "frame_skip=1.5 must be a whole number of at least 1."),
        ({"noop_max": -1}, "noop_max=-1 must be a whole number of at least 0."),
        ({"screen_size": 0}, "screen_size=0 must be a whole number of at least 1."),
        ({"screen_size": (84, 84)}, "screen_size=(84, 84) must be a whole number of at least 1."),
    ],
)
def test_preprocessing_without_sense_is_refused(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        suite_atari.load("Pong", **numbers)
    _needs("cv2")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        DMAtariPreprocessing(FlickeringGame(), **numbers)


def test_no_stacks_and_no_chances_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^stack_size=0 must be a whole number of at least 1\."):
        suite_atari.load("Pong", stack_size=0)
    with pytest.raises(ValueError, match=r"^sticky_actions=1.5 must be in \[0, 1\]\."):
        suite_atari.load("Pong", sticky_actions=1.5)


def _probability(env: Any) -> float:
    return env.env._env.unwrapped.ale.getFloat("repeat_action_probability")


def test_sticky_actions_by_id_or_by_argument() -> None:
    _needs("ale_py", "cv2")
    wrappers = (DMAtariPreprocessing, FrameStack)
    load = functools.partial(suite_gym.load, gym_env_wrappers=wrappers)
    for name, expected in (("MontezumaRevengeNoFrameskip-v0", 0.25), ("BreakoutNoFrameskip-v4", 0.0)):
        env = create_environment(name, load, num_parallel_environments=1, seed=0)
        assert _probability(env) == pytest.approx(expected)
        assert env.observation_spec().shape == (84, 84, 4)
        assert env.frames_per_step == 4
        env.close()
    load = functools.partial(suite_gym.load, gym_env_wrappers=wrappers, frameskip=1)
    env = create_environment("ALE/Pong-v5", load, num_parallel_environments=3, seed=0)
    assert env.reset().observation.shape == (3, 84, 84, 4)
    env.close()


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_max_episode_steps_are_decisions(emulator: str) -> None:
    env = _make("Pong", emulator, max_episode_steps=6)
    steps = _play(env, 20)
    env.close()
    lasts = [i for i, step in enumerate(steps) if step.step_type[0] == 2]
    assert lasts == [6, 13, 20]
    assert all(step.discount.tolist() == [1.0, 1.0] for step in steps)
    assert _first_ends(emulator, 8, max_episode_steps=0, max_frames=4 * 6) == []


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4", "ale_py:ALE/Pong-v5"])
def test_a_limit_in_decisions_takes_the_place_of_an_ids_limit_in_frames(name: str) -> None:
    _needs("ale_py")

    def frames(**kwargs: Any) -> int:
        env = suite_gym.load(name, **kwargs).make_one(0)
        most = env.unwrapped.ale.getInt("max_num_frames_per_episode")
        env.close()
        return most

    assert frames() == 108_000
    assert frames(max_episode_steps=0) == frames(max_episode_steps=50_000) == 2**31 - 1
    assert frames(max_episode_steps=0, max_num_frames_per_episode=7_000) == 7_000


def test_each_row_of_a_game_may_have_a_limit_of_its_own() -> None:
    _needs("ale_py", "cv2")
    load = functools.partial(load_with_random_max_episode_steps, env_load_fn=suite_atari.load, min_steps=5, max_steps=5)
    env = create_environment("Pong", load, num_parallel_environments=2, seed=0)
    assert [step.step_type.tolist() for step in _play(env, 5)] == [[0, 0], *[[1, 1]] * 4, [2, 2]]
    env.close()


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_threads_are_for_those_emulators_that_have_some(emulator: str) -> None:
    env = _make("Pong", emulator, num_threads=1, noop_max=1)
    assert env.reset().observation.shape == (2, 84, 84, 4)
    if emulator == "envpool":
        assert env.env._env._env.config["num_threads"] == 1
    env.close()


@pytest.mark.parametrize(("name", "skip"), [("ALE/Pong-v5", 4), ("PongNoFrameskip-v4", 1), ("Pong-v4", 1)])
def test_frames_that_a_game_skips_by_itself(name: str, skip: int) -> None:
    _needs("ale_py")
    for vectorization in ("single", "sync"):
        env = create_environment(name, num_parallel_environments=1, seed=0, vectorization=vectorization)
        # The oldest ids skip 2 to 4 frames at random.
        assert env.frames_per_step == skip
        env.close()
    assert frames_per_step(FrameSkip(suite_gym.load(name).make_one(0), 2)) == 2 * skip


def test_sticky_actions_of_envpool() -> None:
    env = _make("Pong", "envpool", sticky_actions=0.25, noop_max=7)
    config = env.env._env._env.config
    assert config["repeat_action_probability"] == 0.25
    assert (config["noop_max"], config["reward_clip"], config["episodic_life"]) == (7, False, False)
    env.close()


class _OverAtTheLimit(VectorEnv):
    """An EnvPool of a game that is over at its very last step: it says truncated, and terminated only in its info."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    config: dict[str, Any] = {"num_envs": 2, "frame_skip": 4, "zero_discount_on_life_loss": False}
    is_async = False

    def __init__(self) -> None:
        self.num_envs = 2
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (4, 2, 3), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(3)
        self.picture = np.arange(2 * 4 * 2 * 3).reshape(2, 4, 2, 3).astype(np.uint8)

    def reset(self, **kwargs: Any) -> Any:
        return self.picture, {"lives": np.array([1, 1])}

    def step(self, action: Any) -> Any:
        info = {"lives": np.array([0, 1]), "terminated": np.array([1, 0])}
        return self.picture, np.ones(2), np.zeros(2, bool), np.ones(2, bool), info


def test_a_game_over_at_the_time_limit_is_over() -> None:
    env = EnvPoolEnvironment(_OverAtTheLimit())
    first = env.reset()
    assert np.array_equal(first.observation, np.moveaxis(env._env.picture, 1, -1))
    assert not np.shares_memory(first.observation, env._env.picture)
    assert env.observation_spec().shape == (2, 3, 4)
    step = env.step(np.zeros(2, np.int64))
    assert step.step_type.tolist() == [2, 2]
    assert step.discount.tolist() == [0.0, 1.0]
    assert env.frames_per_step == 4


def test_an_id_is_no_name_of_a_game() -> None:
    with pytest.raises(ValueError, match="takes the name of a game"):
        suite_atari.load("PongNoFrameskip-v4")


@pytest.mark.parametrize("emulator", _EMULATORS)
def test_unknown_games(emulator: str) -> None:
    with pytest.raises(ValueError, match="NoSuchGame"):
        _make("NoSuchGame", emulator)


def test_old_ids_name_the_new_ones() -> None:
    _needs("ale_py")
    gym_ids.make("Breakout-v4").close()
    with pytest.raises(ValueError, match=r"use 'BreakoutNoFrameskip-v4' or 'ALE/Breakout-v5'"):
        create_environment("BreakoutNoFrameskip-v3", num_parallel_environments=1)
