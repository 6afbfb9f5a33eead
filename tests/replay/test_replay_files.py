"""Replay memories on disk: all comes back, whatever cannot is said, and nothing is pickled."""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.replay_files import ReplayFilesError, load_replay, save_replay
from alf.replay.sampling import Sample
from alf.replay.uniform_replay import UniformReplay
from tests.replay.streams import SPEC, segments
from tests.replay.test_uniform_replay import draws

KINDS = pytest.mark.parametrize("cls", [UniformReplay, PrioritizedReplay])


def make(cls: Any, capacity: int = 10, streams: int = 2) -> Any:
    gin.bind_parameter("ReplayBuffer.max_length", capacity)
    return cls(SPEC, streams)


def filled(cls: Any) -> Any:
    """Two streams of different length, one of them with a gap."""
    replayer = make(cls)
    for streams, first in [([0, 1], [0, 0]), ([1], [4]), ([0], [9]), ([1], [8])]:
        replayer.observe(segments(np.array([streams]), np.array([first]), 4))
    replayer.view(2)
    if cls is PrioritizedReplay:
        replayer.learned(
            Sample((), tf.constant([0, 1], tf.int64), tf.constant([1, 9], tf.int64)), tf.constant([3.0, 0.2])
        )
        # Not in the tree yet when it is saved.
        replayer.observe(segments(np.array([[0]]), np.array([[13]]), 1))
    return replayer


@KINDS
@pytest.mark.parametrize("part_bytes", [1, 200, 10**9])
def test_what_is_saved_comes_back(cls: Any, part_bytes: int, tmp_path: pathlib.Path) -> None:
    original, copy = filled(cls), make(cls)
    size = save_replay(original, str(tmp_path), part_bytes)
    assert size == original.total_steps * original.buffer.step_bytes
    assert load_replay(copy, str(tmp_path)) == original.total_steps == copy.total_steps
    assert draws(copy, 50, 2) == draws(original, 50, 2)
    assert copy.num_episodes == original.num_episodes > 0
    # Both go on alike, in new runs.
    original.end_streams()
    for replayer in (original, copy):
        replayer.observe(segments(np.array([[0, 1]]), np.array([[14, 12]]), 3))
    assert draws(copy, 50, 2, seed=1) == draws(original, 50, 2, seed=1)


@KINDS
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (tf.bfloat16, (2,)),
        (tf.bfloat16, ()),
        (tf.float16, (2,)),
        (tf.bool, ()),
        (tf.uint16, (3, 0)),
        (tf.int64, (1, 2)),
    ],
)
def test_observations_of_any_dtype_and_shape_come_back(
    cls: Any, dtype: tf.DType, shape: tuple[int, ...], tmp_path: pathlib.Path
) -> None:
    gin.bind_parameter("ReplayBuffer.max_length", 10)
    spec = SPEC._replace(observation=tf.TensorSpec(shape, dtype))

    def seen(number: Any) -> np.ndarray:
        numbers = np.asarray(number) % 2 if dtype == tf.bool else np.asarray(number)
        return np.broadcast_to(numbers.reshape(*numbers.shape, *[1] * len(shape)), [*numbers.shape, *shape])

    original, copy = cls(spec, 1), cls(spec, 1)
    for first in range(0, 12, 4):
        exp = segments(np.array([[0]]), np.array([[first]]), 4)
        observation = tf.cast(tf.constant(seen(exp.reward)), dtype)
        original.observe(exp._replace(observation=observation, bootstrap=()))
    save_replay(original, str(tmp_path), 3 * original.buffer.step_bytes)
    assert load_replay(copy, str(tmp_path)) == 10
    sample = copy.replay(10, 1)
    assert sample.observation.dtype == dtype
    np.testing.assert_array_equal(np.asarray(tf.cast(sample.observation, tf.int64)), seen(sample.reward).astype(int))


@KINDS
def test_parts_are_small_and_nothing_is_pickled(cls: Any, tmp_path: pathlib.Path) -> None:
    replayer = filled(cls)
    save_replay(replayer, str(tmp_path), 4 * replayer.buffer.step_bytes)
    parts = sorted(tmp_path.glob("part-*.npz"))
    assert len(parts) == -(-replayer.total_steps // 4)
    for path in tmp_path.glob("*.npz"):
        with np.load(path, allow_pickle=False) as archive:
            assert all(archive[name].dtype != object for name in archive.files)


@KINDS
def test_a_smaller_memory_takes_the_newest(cls: Any, tmp_path: pathlib.Path) -> None:
    original, small = filled(cls), make(cls, 3)
    save_replay(original, str(tmp_path))
    assert load_replay(small, str(tmp_path)) == 6
    last = 12 if cls is UniformReplay else 13
    expected = {(0, last - 2), (0, last - 1), (1, 9), (1, 10)}
    assert {(s[0].stream, s[0].number) for s in draws(small, 300, 2)} == expected


def test_what_does_not_fit_is_said_and_leaves_it_empty(tmp_path: pathlib.Path) -> None:
    save_replay(filled(UniformReplay), str(tmp_path))
    for other, message in [
        (make(UniformReplay, streams=3), "num_environments 2, and this run has 3"),
        (make(PrioritizedReplay), "of replayer UniformReplay"),
    ]:
        with pytest.raises(ReplayFilesError, match=message):
            load_replay(other, str(tmp_path))
        assert other.total_steps == 0


@pytest.mark.parametrize("damage", ["bits", "cut", "gone", "facts"])
def test_damage_is_found(damage: str, tmp_path: pathlib.Path) -> None:
    replayer = filled(UniformReplay)
    save_replay(replayer, str(tmp_path), 4 * replayer.buffer.step_bytes)
    path = tmp_path / "part-00001.npz"
    if damage == "gone":
        path.unlink()
    elif damage == "facts":
        (tmp_path / "replay.json").write_text(json.dumps({"format": 1}))
    else:
        data = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            first = archive.infolist()[0]
        # The last byte of the first array.
        at = first.header_offset + 30 + len(first.filename) + 20 + first.file_size - 1
        data[at] ^= 1
        path.write_bytes(data if damage == "bits" else data[: len(data) // 2])
    copy = make(UniformReplay)
    with pytest.raises(ReplayFilesError, match="cannot be read"):
        load_replay(copy, str(tmp_path))
    assert copy.total_steps == 0


def beginnings(replayer: PrioritizedReplay) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Streams and steps where sequences of two begin, and the rows that have a priority."""
    replayer.view(2)
    index = replayer.buffer.index
    begun = {(s, n) for s, first, size in index.starts(2) for n in range(first, first + size)}
    rows = np.arange(index.num_streams * index.max_length)
    weights = replayer.priorities.tree.get(tf.constant(rows)).numpy()
    return {(s, n % index.max_length) for s, n in begun}, {
        (r // index.max_length, r % index.max_length) for r in rows[weights > 0]
    }


@pytest.mark.parametrize("seed", [0, 1, 2, 198, 200, 254, 283, 338])
def test_in_a_memory_of_another_size_priorities_are_where_sequences_begin(seed: int, tmp_path: pathlib.Path) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(7, 20, 2)
    replayers = [make(PrioritizedReplay, int(size)) for size in sizes]
    for replayer in replayers:
        # As with stacks of three frames.
        replayer.buffer.index.history = 2
    number = np.zeros(2, np.int64)

    def observe(replayer: PrioritizedReplay) -> None:
        for stream in draw.permutation(2)[: draw.integers(1, 3)]:
            number[stream] += 7 * draw.integers(0, 2)
            length = int(draw.integers(1, 4))
            replayer.observe(segments(np.array([[stream]]), number[[[stream]]], length))
            number[stream] += length

    for replayer in replayers:
        if replayer is replayers[1]:
            save_replay(replayers[0], str(tmp_path))
            load_replay(replayer, str(tmp_path))
            begun, weighted = beginnings(replayer)
            assert weighted == begun
        for _ in range(draw.integers(3, 15)):
            observe(replayer)
            if draw.random() < 0.6:
                begun, weighted = beginnings(replayer)
                assert weighted == begun
