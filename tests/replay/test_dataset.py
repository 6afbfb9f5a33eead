"""Datasets of recorded episodes: written, read, refused, cut into sequences."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.specs import tensor_spec

from alf.data_structures import Experience, StepType
from alf.replay import dataset
from alf.replay.dataset import DatasetError, DatasetReplayer, Steps

OBS = {"image": tf.TensorSpec([2, 2], tf.uint8), "speed": (tf.TensorSpec([], tf.float32),)}
ACTION = tf.TensorSpec([1], tf.int64)


def make_steps(count: int = 6) -> Steps:
    rs = np.random.RandomState(0)
    step_type = np.array([0, *[1] * (count - 2), 2], np.int32)
    observation = {
        "image": rs.randint(0, 255, [count, 2, 2]).astype(np.uint8),
        "speed": (rs.rand(count).astype(np.float32),),
    }
    numbers = [rs.rand(count).astype(np.float32) for _ in range(2)]
    return Steps(step_type, *numbers, observation, rs.randint(0, 2, [count, 1]))


def test_what_is_written_is_read(tmp_path: Any) -> None:
    steps, path = make_steps(), str(tmp_path / "d.npz")
    dataset.write_dataset(path, steps)
    read = dataset.read_dataset(path, OBS, ACTION)
    # The last action means nothing.
    steps.action[-1] = steps.action[-2]
    tf.nest.map_structure(np.testing.assert_array_equal, tuple(read), tuple(steps))
    assert [p.name for p in tmp_path.iterdir()] == ["d.npz"]


def test_a_path_may_begin_at_home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    dataset.write_dataset("~/d.npz", make_steps())
    assert (tmp_path / "d.npz").exists()
    assert len(dataset.read_dataset("~/d.npz", OBS, ACTION).reward) == 6


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_else(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, **columns: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    dataset.write_dataset(str(tmp_path / "d.npz"), make_steps())
    before = (tmp_path / "d.npz").read_bytes()
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        dataset.write_dataset(str(tmp_path / "d.npz"), make_steps())
    assert [p.name for p in tmp_path.iterdir()] == ["d.npz"]
    assert (tmp_path / "d.npz").read_bytes() == before


def test_other_observations_and_damaged_files_are_refused(tmp_path: Any) -> None:
    path = str(tmp_path / "d.npz")
    dataset.write_dataset(path, make_steps())
    with pytest.raises(DatasetError, match=r"'action/0': 'int64\[1\]'.*this environment has.*'action/0': 'int64\[\]'"):
        dataset.read_dataset(path, OBS, tf.TensorSpec([], tf.int64))
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match="cannot be read"):
        dataset.read_dataset(path, OBS, ACTION)
    (tmp_path / "d.npz").write_text("reward,action")
    with pytest.raises(DatasetError, match=r"cannot be read: it is damaged, or no .npz archive"):
        dataset.read_dataset(path, OBS, ACTION)
    with pytest.raises(DatasetError, match=r"cannot be read: .*No such file"):
        dataset.read_dataset(str(tmp_path / "none.npz"), OBS, ACTION)
    np.savez(path, step_type=np.array([object()]))
    with pytest.raises(DatasetError, match="cannot be read"):
        dataset.read_dataset(path, OBS, ACTION)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("action", 2, "has action/0=2 at step 3, and this environment's actions are 0 to 1"),
        ("action", -1, "has action/0=-1 at step 3"),
        ("reward", np.nan, "has reward=nan at step 3"),
        ("discount", np.nan, "has discount=nan at step 3"),
        ("reward", -np.inf, "has reward=-inf at step 3: it must be finite"),
    ],
)
def test_values_that_nothing_can_be_learned_from_are_refused(
    column: str, value: float, said: str, tmp_path: Any
) -> None:
    path = str(tmp_path / "d.npz")
    dataset.write_dataset(path, make_steps())
    arrays = dict(np.load(path))
    arrays["action/0" if column == "action" else column][3] = value
    np.savez(path, **arrays)
    with pytest.raises(DatasetError, match=said):
        dataset.read_dataset(path, OBS, tensor_spec.BoundedTensorSpec([1], tf.int64, 0, 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_observations_that_are_not_finite_are_refused(value: float) -> None:
    steps = make_steps()
    steps.observation["speed"][0][4] = value
    with pytest.raises(DatasetError, match=f"The file has observation/1={value} at step 4: it must be finite"):
        dataset.checked(steps, OBS, ACTION, "The file")


def test_continuous_actions_that_are_not_finite_are_refused() -> None:
    action = np.zeros([6, 2], np.float32)
    action[2:4, 1] = np.inf
    with pytest.raises(DatasetError, match="The file has action/0=inf at step 2: it must be finite"):
        dataset.checked(make_steps()._replace(action=action), OBS, tf.TensorSpec([2], tf.float32), "The file")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("step_type", [0, 1, 2, 1, 1, 2], "It does not hold whole episodes: step 3 must be FIRST"),
        ("reward", np.zeros(4), r"It has columns of \[4, 6\] steps"),
        ("reward", 1.0, r"It has columns of \[0, 6\] steps"),
        ("action", np.zeros((6, 1), np.int32), r"It holds .*'action/0': 'int32\[1\]'.*'action/0': 'int64\[1\]'"),
        (
            "observation",
            {"image": np.zeros((6, 2, 2), np.uint8)},
            r"observations nested as {'image': 'column'}, and this environment as .*'speed': \('column',\)}",
        ),
    ],
)
def test_steps_that_are_in_no_file_are_checked_as_those_of_a_file(column: str, value: Any, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        dataset.checked(make_steps()._replace(**{column: value}), OBS, ACTION, "It")


def test_a_dataset_without_a_step_is_refused(tmp_path: Any) -> None:
    none = tf.nest.map_structure(lambda x: x[:0], make_steps())
    with pytest.raises(DatasetError, match=r"has columns of \[0\] steps; all must have the same, at least one"):
        dataset.checked(none, OBS, ACTION, "It")
    with pytest.raises(ValueError, match=r"d.npz is not written: it has columns of \[0\] steps"):
        dataset.write_dataset(str(tmp_path / "d.npz"), none)


def test_what_is_written_has_the_dtypes_of_the_file(tmp_path: Any) -> None:
    steps, path = make_steps(), str(tmp_path / "d.npz")
    wide = steps._replace(
        reward=steps.reward.tolist(), discount=np.float64(steps.discount), step_type=[0, 1, 1, 1, 1, 2]
    )
    dataset.write_dataset(path, wide._replace(log_probability=np.zeros(6)))
    read = dataset.read_dataset(path, OBS, ACTION)
    assert [read[i].dtype for i in (0, 1, 2, 5)] == [np.int32, np.float32, np.float32, np.float32]
    np.testing.assert_array_equal(read.reward, steps.reward)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("reward", np.zeros(4), r"columns of \[4, 6\] steps"),
        ("action", np.zeros((7, 1)), r"columns of \[6, 7\] steps"),
        ("reward", [0, 1, np.nan, 0, 0, 0], "reward=nan at step 2: it must be finite"),
        ("reward", [0, 1e300, 0, 0, 0, 0], "reward=inf at step 1: it must be finite"),
        ("action", np.full((6, 1), np.inf), "action/0=inf at step 0: it must be finite"),
    ],
)
def test_what_could_not_be_read_is_not_written(column: str, value: Any, said: str, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=said):
        dataset.write_dataset(str(tmp_path / "d.npz"), make_steps()._replace(**{column: value}))
    assert not list(tmp_path.iterdir())


def test_the_last_action_of_an_episode_may_be_written_as_anything(tmp_path: Any) -> None:
    steps, path = make_steps(), str(tmp_path / "d.npz")
    action = np.zeros([6, 2], np.float32)
    action[-1] = np.nan
    chances = np.array([-1.0, -2.0, -3.0, -4.0, -5.0, np.nan], np.float32)
    dataset.write_dataset(path, steps._replace(action=action, log_probability=chances))
    read = dataset.read_dataset(path, OBS, tf.TensorSpec([2], tf.float32))
    np.testing.assert_array_equal(read.action, np.zeros([6, 2]))
    np.testing.assert_array_equal(read.log_probability, [-1.0, -2.0, -3.0, -4.0, -5.0, -5.0])


def test_cut_off_episodes_are_refused(tmp_path: Any) -> None:
    steps = make_steps()
    with pytest.raises(ValueError, match="whole episodes"):
        dataset.write_dataset(str(tmp_path / "d.npz"), tf.nest.map_structure(lambda x: x[:-1], steps))


@pytest.mark.parametrize(
    ("step_type", "said"),
    [
        ([0, 1, 1, 0, 1, 2], "step 2 must be LAST"),
        ([0, 1, 2, 1, 1, 2], "step 3 must be FIRST"),
        ([1, 1, 1, 1, 1, 2], "step 0 must be FIRST"),
        ([0, 1, 1, 1, 1, 1], "step 5 must be LAST"),
    ],
)
def test_episodes_without_their_ends_are_refused(step_type: list[int], said: str, tmp_path: Any) -> None:
    """Else values would be made of what the next episode begins with."""
    path = str(tmp_path / "d.npz")
    steps = make_steps()._replace(step_type=np.array(step_type, np.int32))
    with pytest.raises(ValueError, match=said):
        dataset.write_dataset(path, steps)
    dataset.write_dataset(path, make_steps())
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "step_type": steps.step_type})
    with pytest.raises(DatasetError, match=said):
        dataset.read_dataset(path, OBS, ACTION)


def test_every_damaged_byte_is_said_in_one_way(tmp_path: Any) -> None:
    path = tmp_path / "d.npz"
    dataset.write_dataset(str(path), make_steps())
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            dataset.read_dataset(str(path), OBS, ACTION)
        except DatasetError:
            refused += 1
    assert refused > len(whole) // 14


@given(count=st.integers(2, 9), length=st.integers(1, 5))
def test_sequences_hold_every_step_once_and_are_filled_up_with_last(count: int, length: int) -> None:
    numbers = tf.range(count)
    exp = Experience(step_type=tf.ones([count], tf.int32), reward=numbers, observation={"x": numbers[:, tf.newaxis]})
    cut = dataset.sequences(exp, length)
    rows = -(-count // length)
    assert cut.reward.shape == [rows, length]
    assert cut.observation["x"].shape == [rows, length, 1]
    np.testing.assert_array_equal(tf.reshape(cut.reward, [-1])[:count], numbers)
    step_type = cut.step_type.numpy().ravel()
    np.testing.assert_array_equal(step_type, [1] * count + [int(StepType.LAST)] * (rows * length - count))


def test_a_dataset_stays_what_it_is() -> None:
    exp = Experience(step_type=tf.ones([3, 2], tf.int32))
    replayer = DatasetReplayer(exp)
    replayer.clear()
    assert replayer.replay_all() is exp
    assert replayer.batch_size == 3
    with pytest.raises(ValueError, match="takes nothing in"):
        replayer.observe(exp)
