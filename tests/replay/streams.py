"""Experience that says where it is from, and a ring of plain Python lists to hold replayers against."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Bootstrap, Experience

SPEC = Experience(
    step_type=tf.TensorSpec([], tf.int32),
    reward=tf.TensorSpec([], tf.float32),
    discount=tf.TensorSpec([], tf.float32),
    observation=tf.TensorSpec([2], tf.float32),
    prev_action=tf.TensorSpec([], tf.int64),
    env_id=tf.TensorSpec([], tf.int32),
    action=tf.TensorSpec([], tf.int64),
    rollout_info=(),
    state=tf.TensorSpec([1], tf.float32),
    policy_version=tf.TensorSpec([], tf.int64),
)


class At(NamedTuple):
    """A step: `number` counts the steps that the environment made, delivered or not."""

    stream: int
    number: int


def _fields(stream: np.ndarray, number: np.ndarray, period: int = 5) -> dict[str, Any]:
    """Every leaf follows from stream and number, of the same shape; episodes take `period` steps."""
    place = number % period
    return {
        "step_type": np.where(place == 0, 0, np.where(place == period - 1, 2, 1)).astype(np.int32),
        "reward": (1000 * stream + number).astype(np.float32),
        "discount": (1 - stream / 100).astype(np.float32),
        "observation": np.stack([stream, number], -1).astype(np.float32),
        "prev_action": (7 * number).astype(np.int64),
        "env_id": stream.astype(np.int32),
        "action": (7 * (number + 1)).astype(np.int64),
        "rollout_info": (),
        "state": (0.5 * number)[..., np.newaxis].astype(np.float32),
        "policy_version": (number // 3).astype(np.int64),
    }


def segments(streams: np.ndarray, first: np.ndarray, length: int) -> Experience:
    """Experience [Q, T, B, ...] of streams [Q, B] from the steps numbered `first` [Q, B], with its bootstrap."""
    number = first[:, np.newaxis] + np.arange(length)[np.newaxis, :, np.newaxis]
    exp = Experience(**_fields(np.broadcast_to(streams[:, np.newaxis], number.shape), number))
    after = _fields(streams, first + length)
    time_step = ActionTimeStep(**{name: after[name] for name in ActionTimeStep._fields})
    exp = exp._replace(bootstrap=Bootstrap(time_step, after["state"]))
    return tf.nest.map_structure(tf.constant, exp)


def single_steps(streams: np.ndarray, numbers: np.ndarray) -> Experience:
    """Experience [B, ...] without a bootstrap."""
    return tf.nest.map_structure(tf.constant, Experience(**_fields(streams, numbers)))


def where(exp: Experience) -> np.ndarray:
    """Streams and numbers [..., 2] of experience; every leaf is checked to be that of the same step."""
    found = np.asarray(exp.observation).astype(np.int64)
    expected = _fields(found[..., 0], found[..., 1])
    for name, value in expected.items():
        if name != "rollout_info":
            np.testing.assert_array_equal(np.asarray(getattr(exp, name)), value, err_msg=name)
    return found


class Ring:
    """What a replayer must hold: for each stream a list of what was delivered last."""

    def __init__(self, num_streams: int, capacity: int) -> None:
        self.capacity = capacity
        self.held: list[list[At]] = [[] for _ in range(num_streams)]

    def add(self, streams: np.ndarray, first: np.ndarray, length: int) -> None:
        for q in range(len(streams)):
            for stream, number in zip(streams[q], first[q], strict=True):
                for t in range(length):
                    self.held[stream] = [*self.held[stream], At(int(stream), int(number) + t)][-self.capacity :]

    def sequences(self, length: int) -> list[tuple[At, ...]]:
        """All runs of `length` consecutive steps, by trying every place."""
        found = []
        for held in self.held:
            for begin in range(len(held) - length + 1):
                window = held[begin : begin + length]
                if all(b.number == a.number + 1 for a, b in itertools.pairwise(window)):
                    found.append(tuple(window))
        return found
