"""Wrappers of single environments against plain loops."""

from __future__ import annotations

import copy
import functools
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.environments import BatchedEnvironment, create_environment, gym_ids, spaces, suite_gym, wrappers
from alf.environments.batch_wrappers import BatchWrapper, NonEpisodicAgent
from alf.environments.random_limits import RandomTimeLimit
from tests.environments.toy_environments import ToyEnv


class Frames(gymnasium.Env):
    """Numbered frames of any shape, each other than all before, in one buffer; episodes of 1, 2, 3, ... steps."""

    def __init__(self, shape: tuple[int, ...] = (2, 3), kind: Any = np.float32, nested: bool = False) -> None:
        box = gymnasium.spaces.Box(0, 200, shape, kind)
        self.nested = nested
        other = gymnasium.spaces.Discrete(300)
        inner = gymnasium.spaces.Dict({"camera": box, "other": other})
        self.observation_space = gymnasium.spaces.Dict({"robot": inner, "other": other}) if nested else box
        self.action_space = gymnasium.spaces.Discrete(2)
        self.shape, self.kind = shape, kind
        self.count = self.episode = self.time = 0
        self.buffer = np.zeros(shape, kind)

    def frame(self) -> np.ndarray:
        self.buffer.flat = self.count + np.arange(self.buffer.size) % 7
        return self.buffer

    def _observe(self) -> Any:
        self.count += 1
        if self.nested:
            return {"robot": {"camera": self.frame(), "other": self.count}, "other": self.count}
        return self.frame()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._observe(), 1.0 + float(action), self.time >= self.episode, False, {}


def _frames(env: gymnasium.Env, steps: int) -> list[tuple[bool, Any]]:
    """(whether it begins an episode, observation) of a loop of resets and steps."""
    seen: list[tuple[bool, Any]] = []
    done = True
    for _ in range(steps):
        if done:
            seen.append((True, env.reset()[0]))
            done = False
        else:
            observation, _, done, _, _ = env.step(0)
            seen.append((False, observation))
        if isinstance(env, Frames):
            seen[-1] = (seen[-1][0], seen[-1][1].copy())
    return seen


def _stack(frames: list[tuple[bool, np.ndarray]], now: int, size: int, axis: int) -> np.ndarray:
    """The stack at `now`: never before the start of the episode, whose first frame stands for what is missing."""
    start = max(i for i in range(now + 1) if frames[i][0])
    found = [frames[max(i, start)][1] for i in range(now - size + 1, now + 1)]
    if found[0].ndim == 2:
        return np.stack(found, axis=axis)
    return np.concatenate(found, axis=axis)


@given(
    shape=st.sampled_from([(3,), (2, 3), (2, 3, 1), (2, 3, 2)]),
    size=st.integers(1, 5),
    order=st.sampled_from(wrappers.CHANNEL_ORDERS),
    steps=st.integers(1, 20),
)
def test_frame_stack_is_a_plain_loop(shape: tuple[int, ...], size: int, order: str, steps: int) -> None:
    env = wrappers.FrameStack(Frames(shape), size, order)
    plain, stacked = _frames(Frames(shape), steps), _frames(env, steps)
    axis = -1 if order == "channels_last" else 0
    for now, (_, observation) in enumerate(stacked):
        expected = _stack(plain, now, size, axis)
        assert np.array_equal(observation, expected)
        assert observation.shape == expected.shape == env.observation_space.shape
        assert observation.dtype == env.observation_space.dtype


def test_stacks_are_not_written_again() -> None:
    seen = _frames(wrappers.FrameStack(Frames(), 3), 15)
    plain = _frames(Frames(), 15)
    assert all(np.array_equal(seen[i][1], _stack(plain, i, 3, -1)) for i in range(15))


def test_a_stack_of_one_field_leaves_the_others() -> None:
    env = wrappers.FrameStack(Frames(nested=True), 3, fields=["robot.camera"])
    assert env.observation_space["robot"]["camera"].shape == (2, 3, 3)
    assert env.observation_space["other"].n == env.observation_space["robot"]["other"].n == 300
    plain = _frames(Frames(), 12)
    for now, (_, observation) in enumerate(_frames(env, 12)):
        assert np.array_equal(observation["robot"]["camera"], _stack(plain, now, 3, -1))
        assert observation["other"] == observation["robot"]["other"] == now + 1


def test_specs_follow_the_wrappers() -> None:
    load = functools.partial(suite_gym.load, gym_env_wrappers=(wrappers.FrameStack,))
    env = create_environment(functools.partial(Frames, (4, 5, 2)), load, num_parallel_environments=3)
    assert env.observation_spec().shape == (4, 5, 8)
    assert env.reset().observation.shape == (3, 4, 5, 8)
    env.close()


class _OfBatches(BatchWrapper):
    """Changes observations, and nothing else."""

    def __init__(self, env: BatchedEnvironment, change: Any) -> None:
        super().__init__(env)
        self._change = change

    def _reset(self) -> Any:
        return self._changed(super()._reset())

    def _step(self, action: Any) -> Any:
        return self._changed(super()._step(action))

    def _changed(self, time_step: Any) -> Any:
        return time_step._replace(observation=self._change(time_step.observation))


def test_wrappers_change_what_those_before_them_gave() -> None:
    """Of one environment, and then of the batch, each list from its beginning: (((x + 1) * 2) + 1) * 2."""
    changes = [lambda o: o + np.float32(1), lambda o: o * np.float32(2)]
    of_one = [
        functools.partial(lambda change, env: gymnasium.wrappers.TransformObservation(env, change, None), change)
        for change in changes
    ]
    of_all = [functools.partial(_OfBatches, change=change) for change in changes]
    load = functools.partial(suite_gym.load, gym_env_wrappers=of_one, env_wrappers=of_all)
    raw = Frames().reset()[0]
    env = create_environment(Frames, load, num_parallel_environments=2)
    np.testing.assert_array_equal(env.reset().observation[0], ((raw + 1) * 2 + 1) * 2)
    env.close()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: wrappers.FrameStack(Frames(), 0), "stack_size >= 1"),
        (lambda: wrappers.FrameStack(Frames(), 2, "last"), "channel_order"),
        (lambda: wrappers.FrameStack(Frames(nested=True), 2), "name the arrays by `fields`"),
        (lambda: wrappers.FrameStack(Frames(nested=True), 2, fields=["robot.eye"]), "no observation field 'eye'"),
        (lambda: wrappers.FrameStack(Frames(), 2, fields=["eye"]), "no observation field 'eye'"),
        (lambda: wrappers.FrameSkip(Frames(), 0), "skip >= 1"),
        (lambda: wrappers.RandomFirstEpisodeLength(Frames(), 0), "random_length_range >= 1"),
        (lambda: wrappers.SelectFields(Frames(nested=True), ["eye"]), "eye"),
    ],
)
def test_bad_arguments_are_explained(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


class TruncatedFrames(Frames):
    """Whose episodes end by truncation."""

    def step(self, action: Any) -> Any:
        observation, reward, ended, _, info = super().step(action)
        return observation, reward, False, ended, info


@pytest.mark.parametrize("kind", [Frames, TruncatedFrames])
def test_frame_skip_adds_rewards_up_and_stops_at_the_end(kind: type[Frames]) -> None:
    env = wrappers.FrameSkip(kind(), 3)
    env.reset()
    for episode in range(1, 8):
        taken, ended = 0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(1)
            ended = terminated or truncated
            skipped = min(3, episode - taken)
            taken += skipped
            assert reward == 2.0 * skipped
            assert np.array_equal(observation, env.unwrapped.frame())
        assert taken == episode
        env.reset()


def test_max_episode_steps_counts_decisions_not_frames() -> None:
    skip = functools.partial(wrappers.FrameSkip, skip=4)
    for name, wrap in (("MountainCar-v0", skip), (lambda: gymnasium.make("MountainCar-v0"), skip)):
        load = functools.partial(suite_gym.load, gym_env_wrappers=(wrap,), max_episode_steps=7)
        env = create_environment(name, load, num_parallel_environments=1)
        types = [int(env.reset().step_type[0])]
        types += [int(env.step(np.zeros(1, np.int64)).step_type[0]) for _ in range(8)]
        assert types == [0, 1, 1, 1, 1, 1, 1, 2, 0]
        assert env.frames_per_step == 4
        env.close()
    plain = create_environment("CartPole-v1", num_parallel_environments=2)
    assert plain.frames_per_step == 1
    plain.close()


def _length(env: gymnasium.Env, seed: int | None = None) -> tuple[int, bool]:
    env.reset(seed=seed)
    for length in range(1, 1000):
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            assert terminated != truncated
            return length, truncated
    raise AssertionError("no end")


def test_first_episodes_are_cut_at_random_lengths() -> None:
    firsts = []
    for seed in range(60):
        env = wrappers.RandomFirstEpisodeLength(gymnasium.make("MountainCar-v0"), 10, num_episodes=2)
        lengths = [_length(env, seed), *(_length(env) for _ in range(2))]
        assert all(truncated for _, truncated in lengths)
        assert lengths[2] == (200, True)
        assert lengths[1][0] <= 10
        firsts.append(lengths[0][0])
        again = wrappers.RandomFirstEpisodeLength(gymnasium.make("MountainCar-v0"), 10)
        assert _length(again, seed) == lengths[0]
    assert set(firsts) == set(range(1, 11))


@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
def test_episodes_of_evaluation_are_not_cut(vectorization: str) -> None:
    """However the environments are stepped; those of training are."""
    rows = 1 if vectorization == "single" else 2
    gin.parse_config(
        [
            "suite_gym.load.gym_env_wrappers = (@RandomFirstEpisodeLength,)",
            "RandomFirstEpisodeLength.random_length_range = 20",
        ]
    )
    for phase, most in (("test", 200), ("train", 20)):
        env = create_environment("MountainCar-v0", num_parallel_environments=rows, vectorization=vectorization, seed=3)
        env.enter_phase(phase)
        env.reset()
        ends = np.stack([env.step(np.zeros(rows, np.int64)).step_type == 2 for _ in range(200)])
        env.close()
        assert ((ends.argmax(0) + 1 == 200) if phase == "test" else (ends.argmax(0) + 1 <= most)).all()


class _Drawing(gymnasium.Env):
    """Draws a whole number at each reset, as environments do to choose where to start."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return int(self.np_random.integers(0, 100)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize(
    "wrap", [lambda env: wrappers.RandomFirstEpisodeLength(env, 100), lambda env: RandomTimeLimit(env, 1, 100)]
)
def test_lengths_have_nothing_to_do_with_where_episodes_start(wrap: Any) -> None:
    drawn = []
    for seed in range(200):
        env = wrap(_Drawing())
        start, length = env.reset(seed=seed)[0], 1
        while not env.step(0)[3]:
            length += 1
        drawn.append((start, length))
    assert abs(np.corrcoef(np.transpose(drawn))[0, 1]) < 0.25


def test_time_limits_count_decisions_above_the_skipping_of_gymnasium_too() -> None:
    skip = functools.partial(gymnasium.wrappers.MaxAndSkipObservation, skip=4)
    env = suite_gym.load("MountainCar-v0", max_episode_steps=30, gym_env_wrappers=(skip,)).make_one(0)
    assert spaces.frames_per_step(env) == 4
    assert _length(env) == (30, True)
    assert spaces.frames_per_step(gymnasium.wrappers.TimeLimit(env, 5)) == 4
    assert spaces.frames_per_step(wrappers.FrameSkip(env, 2)) == 8


def _registered(**kwargs: Any) -> gymnasium.Env:
    """With a wrapper around its limit of 200 steps."""
    spec = copy.deepcopy(gymnasium.spec("MountainCar-v0"))
    spec.additional_wrappers = (gymnasium.wrappers.RecordEpisodeStatistics.wrapper_spec(),)
    return gymnasium.make(spec, disable_env_checker=True, **kwargs)


def test_time_limits_below_other_wrappers_of_an_id_count_decisions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_ids, "make", lambda name, disable_env_checker, **kwargs: _registered(**kwargs))
    skip = functools.partial(wrappers.FrameSkip, skip=4)
    made = suite_gym.load("MountainCar-v0", [skip]).make_one(0)
    assert _length(made) == (200, True)
    assert isinstance(made.env.env, gymnasium.wrappers.RecordEpisodeStatistics)
    assert _length(suite_gym.load("MountainCar-v0", [skip], max_episode_steps=6).make_one(0)) == (6, True)
    plain = suite_gym.load("MountainCar-v0", [], max_episode_steps=6).make_one(0)
    assert [type(env).__name__ for env in (plain, plain.env)] == ["RecordEpisodeStatistics", "TimeLimit"]


def test_time_limits_that_a_callable_keeps_below_other_wrappers() -> None:
    skip = functools.partial(wrappers.FrameSkip, skip=4)
    own = lambda: gymnasium.wrappers.TransformReward(gymnasium.wrappers.TimeLimit(_Endless(), 12), float)  # noqa: E731
    assert _length(suite_gym.load(own, [skip]).make_one(0)) == (3, True), "it counts steps of its own"
    assert _length(suite_gym.load(own, [skip], max_episode_steps=3).make_one(0)) == (3, True)
    with pytest.raises(
        ValueError, match="A limit of 6 decisions cannot lift the limit of 12 steps below the wrapper Trans"
    ):
        suite_gym.load(own, [skip], max_episode_steps=6).make_one(0)
    assert _length(suite_gym.load(_registered, [skip], max_episode_steps=6).make_one(0)) == (6, True)


def test_wrappers_above_one_that_skips_see_the_time_limit() -> None:
    skip = functools.partial(wrappers.FrameSkip, skip=4)
    wrap = [skip, gymnasium.wrappers.TimeAwareObservation]
    env = suite_gym.load("MountainCar-v0", wrap, max_episode_steps=10).make_one(0)
    assert env.reset()[0].shape == (3,)
    assert _length(env) == (10, True)


class _Endless(ToyEnv):
    """Never ends."""

    def step(self, action: Any) -> Any:
        return self._observe(0), 1.0, False, False, {}


@pytest.mark.parametrize("vectorization", ["single", "sync", "async"])
def test_frames_that_gymnasium_skips_are_counted_in_batches_too(vectorization: str) -> None:
    skip = functools.partial(gymnasium.wrappers.MaxAndSkipObservation, skip=4)
    load = functools.partial(suite_gym.load, gym_env_wrappers=(skip,))
    env = create_environment("MountainCar-v0", load, num_parallel_environments=1, seed=0, vectorization=vectorization)
    assert env.frames_per_step == 4
    env.close()


def test_a_cut_first_episode_that_ends_by_itself_is_an_end() -> None:
    env = wrappers.RandomFirstEpisodeLength(ToyEnv(row=0), 1)
    env.reset()
    _, _, terminated, truncated, _ = env.step(2)
    assert (terminated, truncated) == (True, False)


def test_selected_fields() -> None:
    env = wrappers.SelectFields(Frames(nested=True), ["other"])
    assert list(env.observation_space) == ["other"]
    assert env.reset()[0] == {"other": 1}


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 1), (6, 8, 3)])
def test_resized_pictures_are_means_over_areas(shape: tuple[int, ...]) -> None:
    pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    env = wrappers.FrameResize(Frames(shape, np.uint8), width=4, height=3)
    plain = Frames(shape, np.uint8).reset()[0].astype(float)
    seen = env.reset()[0]
    assert seen.shape == env.observation_space.shape == (3, 4, *shape[2:])
    assert seen.dtype == np.uint8
    for row in range(3):
        for column in range(4):
            area = plain[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert np.abs(seen[row, column] - area.mean(axis=(0, 1))).max() <= 1


@pytest.mark.parametrize("channels", [4, 5, 12])
def test_stacks_of_pictures_are_resized(channels: int) -> None:
    pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    env = wrappers.FrameResize(Frames((6, 8, channels), np.uint8), width=5, height=4)
    seen, plain = env.reset()[0], Frames((6, 8, channels), np.uint8).reset()[0]
    assert seen.shape == env.observation_space.shape == (4, 5, channels)
    alone = [env.transform("", plain[..., channel]) for channel in range(channels)]
    assert np.array_equal(seen, np.stack(alone, axis=-1))


def test_gray_pictures() -> None:
    pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    env = wrappers.FrameGrayScale(Frames((2, 3, 3), np.uint8))
    seen, plain = env.reset()[0], Frames((2, 3, 3), np.uint8).reset()[0]
    assert seen.shape == env.observation_space.shape == (2, 3, 1)
    assert np.abs(seen[..., 0] - plain @ np.array([0.299, 0.587, 0.114])).max() <= 1
    for wrong in (Frames((2, 3), np.uint8), Frames((2, 3, 3), np.float32)):
        with pytest.raises(ValueError, match="FrameGrayScale takes pictures"):
            wrappers.FrameGrayScale(wrong)


def test_non_episodic_agents_see_no_end() -> None:
    for discount in (1.0, 0.5):
        load = functools.partial(suite_gym.load, env_wrappers=(functools.partial(NonEpisodicAgent, discount=discount),))
        env = create_environment(ToyEnv, load, num_parallel_environments=2)
        env.reset()
        steps = [env.step(np.full(2, 2)) for _ in range(12)]
        assert {float(d) for s in steps for d in s.discount[s.step_type == 2]} == {discount}
        assert {float(d) for s in steps for d in s.discount[s.step_type != 2]} == {1.0}
        env.close()


def test_names_in_gin_files() -> None:
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config(
            [
                "import alf.environments.wrappers",
                "create_environment.env_name = 'MountainCar-v0'",
                "create_environment.num_parallel_environments = 2",
                "create_environment.env_load_fn = @suite_gym.load",
                "suite_gym.load.gym_env_wrappers = (@FrameSkip, @FrameStack, @RandomFirstEpisodeLength)",
                "suite_gym.load.env_wrappers = (@NonEpisodicAgent,)",
                "suite_gym.load.max_episode_steps = 50",
                "FrameSkip.skip = 2",
                "FrameStack.stack_size = 3",
                "FrameStack.channel_order = 'channels_first'",
                "RandomFirstEpisodeLength.random_length_range = 5",
                "DMAtariPreprocessing.frame_skip = 4",
                "DMAtariPreprocessing.noop_max = 0",
                "FrameResize.width = 84",
                "FrameGrayScale.fields = None",
                "EpisodicLife.env = None",
            ]
        )
    try:
        env = create_environment()
        assert env.reset().observation.shape == (2, 6)
        assert env.frames_per_step == 2
        env.close()
    finally:
        with gin.unlock_config():
            gin.clear_config()


_BOX = gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)


class _Shows(ToyEnv):
    """Shows a space, if with nothing in it."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.observation_space = space


@pytest.mark.parametrize(
    ("wrap", "space", "message"),
    [
        (wrappers.FrameStack, gymnasium.spaces.Box(0.0, 1.0, ()), "FrameStack takes arrays of at least one axis"),
        (functools.partial(wrappers.FrameStack, fields=["a", "a"]), None, r"fields=\['a', 'a'\] .* twice"),
        (functools.partial(wrappers.FrameStack, fields="a"), None, "fields='a' must be a list of names"),
        (functools.partial(wrappers.FrameResize, width=0), _BOX, "width and height >= 1; got 0 and 84"),
        (functools.partial(wrappers.SelectFields, fields=["a"]), gymnasium.spaces.Tuple((_BOX,)), "a Dict; got Tuple"),
        (functools.partial(wrappers.SelectFields, fields="a"), None, "fields='a' must be a list of names"),
    ],
)
def test_what_wrappers_cannot_take_is_told(wrap: Any, space: gymnasium.Space | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrap(_Shows(gymnasium.spaces.Dict({"a": _BOX}) if space is None else space))


def test_stacks_of_lists() -> None:
    class Lists(ToyEnv):
        def _observe(self, action: int) -> Any:
            return super()._observe(action).tolist()

    assert wrappers.FrameStack(Lists(), 2).reset()[0].tolist() == [0, 0, 0, -1] * 2
