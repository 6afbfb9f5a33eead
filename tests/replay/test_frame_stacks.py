"""Stacks of frames, stored as single frames, against a wrapper that keeps the last frames in a list."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Bootstrap, Experience, StepType
from alf.replay.frame_stacks import FrameStacks
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.uniform_replay import UniformReplay
from tests.replay.streams import SPEC

STACK = 4


class Play:
    """Episodes of images, which say their number, stacked step by step as wrappers do."""

    def __init__(self, lengths: tuple[int, ...], axis: int, empties: bool = True) -> None:
        self.number, self.lengths, self.axis, self.empties = -1, lengths, axis, empties
        self.episode, self.place, self.last_frames = 0, -1, []
        self.stacks: list[np.ndarray] = []
        self.types: list[int] = []
        self.advance()

    def advance(self) -> None:
        """One step more."""
        self.number += 1
        self.place += 1
        if self.place == self.lengths[self.episode % len(self.lengths)]:
            self.episode, self.place = self.episode + 1, 0
        shape = (2, 3, 1) if self.axis == -1 else (1, 2, 3)
        frame = np.full(shape, self.number % 256, np.uint8)
        begins = self.place == 0 and (self.empties or self.number == 0)
        self.last_frames = [frame] * STACK if begins else [*self.last_frames[1:], frame]
        self.stacks.append(np.concatenate(self.last_frames, self.axis))
        ends = self.place == self.lengths[self.episode % len(self.lengths)] - 1
        self.types.append(0 if self.place == 0 else 2 if ends else 1)

    def segment(self, length: int) -> Experience:
        """The next `length` steps and the one after them, of one stream: [1, T, 1, ...]."""
        begin = self.number
        for _ in range(length):
            self.advance()

        def field(values: Any, dtype: Any) -> np.ndarray:
            return np.array(values, dtype)

        numbers = np.arange(begin, begin + length + 1)
        fields = {
            "step_type": field(self.types[begin:], np.int32),
            "reward": numbers.astype(np.float32),
            "discount": np.ones(length + 1, np.float32),
            "observation": {"image": field(self.stacks[begin:], np.uint8), "number": numbers.astype(np.float32)},
            "prev_action": numbers.astype(np.int64),
            "env_id": np.zeros(length + 1, np.int32),
            "action": numbers + 1,
            "policy_version": numbers,
        }
        head = tf.nest.map_structure(lambda x: tf.constant(x[np.newaxis, :-1, np.newaxis]), fields)
        after = tf.nest.map_structure(lambda x: tf.constant(x[np.newaxis, -1:]), fields)
        time_step = ActionTimeStep(**{name: after[name] for name in ActionTimeStep._fields})
        return Experience(**head, bootstrap=Bootstrap(time_step, ()))


def make(cls: Any, axis: int, capacity: int = 13, stack: int = STACK) -> Any:
    gin.bind_parameter("ReplayBuffer.max_length", capacity)
    gin.bind_parameter("ReplayBuffer.frame_stack", stack)
    gin.bind_parameter("ReplayBuffer.frame_axis", axis)
    shape = [2, 3, STACK] if axis == -1 else [STACK, 2, 3]
    image = {"image": tf.TensorSpec(shape, tf.uint8), "number": tf.TensorSpec([], tf.float32)}
    return cls(SPEC._replace(observation=image, state=()), 1)


@pytest.mark.parametrize("cls", [UniformReplay, PrioritizedReplay])
@pytest.mark.parametrize("axis", [-1, -3])
@pytest.mark.parametrize("lengths", [(40,), (2, 3, 7), (1, 5)])
def test_stacks_come_back_as_they_were(cls: Any, axis: int, lengths: tuple[int, ...]) -> None:
    replayer, play = make(cls, axis), Play(lengths, axis)
    assert replayer.buffer.step_bytes == 2 * 3 + 44, "each frame once"
    for _ in range(8):
        replayer.observe(play.segment(4))
        if replayer.num_sequences(3) == 0:
            continue
        sample = replayer.sample(replayer.view(3), 60, 3, tf.constant([3, 4]))
        numbers = sample.experience.observation["number"].numpy().astype(int)
        np.testing.assert_array_equal(numbers, sample.step.numpy()[:, np.newaxis] + np.arange(3))
        expected = np.array(play.stacks)[numbers]
        np.testing.assert_array_equal(sample.experience.observation["image"], expected)
        oldest = max(0, play.number - 13) + STACK - 1
        assert set(numbers[:, 0]) == set(range(oldest, play.number - 2)), "all that have their frames, and no others"
    assert replayer.num_sequences(3) == replayer.capacity(3), "a full memory has as many as there can be"


def test_what_is_no_stack_is_refused() -> None:
    replayer, play = make(UniformReplay, -1), Play((9,), -1)
    exp = play.segment(5)
    wrong = {**exp.observation, "image": exp.observation["image"][..., ::-1]}
    with pytest.raises(ValueError, match="are not the frames of the last steps"):
        replayer.observe(exp._replace(observation=wrong))
    filled = exp.observation["image"].numpy()
    assert exp.step_type[0, 0, 0] == StepType.FIRST
    for step in range(STACK - 1):
        filled[:, step, ..., : STACK - 1 - step] = 99
    with pytest.raises(ValueError, match="with the first frame of an episode in the place of missing ones"):
        replayer.observe(exp._replace(observation={**exp.observation, "image": tf.constant(filled)}))
    with pytest.raises(ValueError, match="no observation of rank 3 has a multiple of 3"):
        make(UniformReplay, -1, stack=3)
    with pytest.raises(ValueError, match="frame_stack >= 1"):
        make(UniformReplay, -1, stack=0)
    with pytest.raises(ValueError, match="frame_stack=1, or exp_replayer='one_time'"):
        replayer.replay_all()


def test_what_is_no_stack_is_refused_in_segments_of_one_step_too() -> None:
    replayer, play = make(UniformReplay, -1), Play((9,), -1)

    def newest_first(seen: Any) -> Any:
        return seen._replace(observation={**seen.observation, "image": seen.observation["image"][..., ::-1]})

    exp = play.segment(1)
    reversed_stack = newest_first(exp)._replace(
        bootstrap=exp.bootstrap._replace(time_step=newest_first(exp.bootstrap.time_step))
    )
    with pytest.raises(ValueError, match="are not the frames of the last steps"):
        replayer.observe(reversed_stack)


@pytest.mark.parametrize("length", [1, 50])
def test_a_stack_that_a_reset_does_not_empty_is_refused_however_late_it_comes(length: int) -> None:
    play = Play((600,), -1, empties=False)
    replayer = make(UniformReplay, -1)
    for _ in range(600 // length):
        replayer.observe(play.segment(length))
    with pytest.raises(ValueError, match="with the first frame of an episode in the place of missing ones"):
        replayer.observe(play.segment(length))


def test_an_episode_that_ends_by_showing_its_last_stack_again_is_no_reason_to_refuse() -> None:
    replayer, play = make(UniformReplay, -1), Play((5,), -1)
    exp = play.segment(5)

    def shown_again(*step_types: int) -> Experience:
        types, image = exp.step_type.numpy(), exp.observation["image"].numpy()
        begin = 4 - len(step_types)
        types[0, begin:4], image[0, begin:4] = np.array(step_types)[:, np.newaxis], image[0, begin - 1]
        types[0, 4], image[0, 4] = 0, 9
        return exp._replace(step_type=tf.constant(types), observation={**exp.observation, "image": tf.constant(image)})

    replayer.observe(shown_again(StepType.LAST))
    make(UniformReplay, -1).observe(shown_again(StepType.MID, StepType.LAST))
    with pytest.raises(ValueError, match=r"ReplayBuffer\.frame_stack=4"):
        make(UniformReplay, -1).observe(shown_again(StepType.MID))


def _with_a_map(exp: Experience, maps: np.ndarray) -> Experience:
    """Experience of a stack `eyes.left`, and of a map of eight planes, which is none."""

    def seen(step: Any, rows: np.ndarray) -> Any:
        return step._replace(observation={"eyes": {"left": step.observation["image"]}, "map": tf.constant(rows)})

    after = seen(exp.bootstrap.time_step, maps[:, -1])
    return seen(exp, maps[:, :-1])._replace(bootstrap=exp.bootstrap._replace(time_step=after))


def test_which_of_several_pictures_are_stacks_is_to_be_said() -> None:
    left, planes = tf.TensorSpec([2, 3, STACK], tf.uint8), tf.TensorSpec([2, 3, 8], tf.uint8)
    spec = SPEC._replace(observation={"eyes": {"left": left}, "map": planes}, state=())
    gin.bind_parameter("ReplayBuffer.max_length", 13)
    gin.bind_parameter("ReplayBuffer.frame_stack", STACK)
    with pytest.raises(
        ValueError, match=r"'eyes\.left' and 'map' .*name those that are by ReplayBuffer\.frame_stack_fields"
    ):
        UniformReplay(spec, 1)
    for wrong in (["eyes"], ["eyes.right"], []):
        gin.bind_parameter("ReplayBuffer.frame_stack_fields", wrong)
        with pytest.raises(ValueError, match=r"frame_stack_fields=\[.*: name some of 'eyes\.left', 'map'"):
            UniformReplay(spec, 1)
    maps = np.random.default_rng(0).integers(0, 256, [1, 10, 1, 2, 3, 8]).astype(np.uint8)
    exp = _with_a_map(Play((5,), -1).segment(9), maps)
    gin.bind_parameter("ReplayBuffer.frame_stack_fields", ["eyes.left"])
    replayer = UniformReplay(spec, 1)
    replayer.observe(exp)
    held = replayer.buffer.sequences(tf.constant([0], tf.int64), tf.constant([3], tf.int64), 6).observation
    np.testing.assert_array_equal(held["map"], maps[:, 3:9, 0])
    np.testing.assert_array_equal(held["eyes"]["left"], exp.observation["eyes"]["left"][:, 3:, 0])
    gin.bind_parameter("ReplayBuffer.frame_stack_fields", ["eyes.left", "map"])
    with pytest.raises(ValueError, match="observations 'map' along axis -1 are not the frames of the last steps"):
        UniformReplay(spec, 1).observe(exp)


def test_a_million_atari_steps_take_less_than_7_5_gigabytes() -> None:
    gin.bind_parameter("ReplayBuffer.max_length", 10)
    gin.bind_parameter("ReplayBuffer.frame_stack", 4)
    spec = SPEC._replace(observation=tf.TensorSpec([84, 84, 4], tf.uint8), state=())
    assert UniformReplay(spec, 1).buffer.step_bytes * 1_000_000 < 7.5e9


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(("channels", "axis"), [(1, -1), (3, -1), (1, -3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float32])
def test_bytes_of_all_values_are_put_side_by_side(size: int, channels: int, axis: int, dtype: Any) -> None:
    frame = [2, 130, channels] if axis == -1 else [channels, 2, 130]
    frames = np.random.default_rng(size).integers(0, 256, [5, size + 2, *frame]).astype(np.uint8).astype(dtype)
    whole = tuple(n * size if i == 3 + axis else n for i, n in enumerate(frame))
    spec = SPEC._replace(observation=tf.TensorSpec(whole, dtype))
    step_type = tf.fill([5, size + 2], StepType.MID)
    stacks = tf.function(FrameStacks(size, axis, spec).stacks, autograph=False)(tf.constant(frames), step_type)
    expected = [np.concatenate(list(np.moveaxis(frames[:, i : i + size], 1, 0)), axis) for i in range(3)]
    assert stacks.dtype == dtype
    np.testing.assert_array_equal(stacks, np.stack(expected, 1))
