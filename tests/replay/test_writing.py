"""What a memory makes of a write that fails, of rows beyond 32 bits, and of ends that come late."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import StepType
from alf.replay import replay_buffer
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.uniform_replay import UniformReplay
from tests.replay.streams import SPEC, segments
from tests.replay.test_uniform_replay import draws, make

KINDS = pytest.mark.parametrize("cls", [UniformReplay, PrioritizedReplay])


@KINDS
def test_behind_a_write_that_failed_the_memory_is_empty_and_fills_anew(cls: Any, monkeypatch: Any) -> None:
    replayer = make(6, 1, cls)
    replayer.observe(segments(np.array([[0]]), np.array([[0]]), 5))
    write = replayer.buffer._write

    def fails(*args: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(replayer.buffer, "_write", fails)
    with pytest.raises(RuntimeError, match="no memory left"):
        replayer.observe(segments(np.array([[0]]), np.array([[5]]), 3))
    assert replayer.total_steps == 0
    monkeypatch.setattr(replayer.buffer, "_write", write)
    replayer.observe(segments(np.array([[0]]), np.array([[8]]), 3))
    assert {at.number for sequence in draws(replayer, 50, 2) for at in sequence} == {8, 9, 10}


@KINDS
def test_what_is_refused_before_it_is_written_leaves_the_memory_alone(cls: Any) -> None:
    replayer = make(6, 1, cls)
    replayer.observe(segments(np.array([[0]]), np.array([[0]]), 5))
    with pytest.raises(ValueError, match="does not fit a replayer"):
        replayer.observe(segments(np.array([[1]]), np.array([[0]]), 5))
    assert replayer.total_steps == 5


def test_rows_of_all_streams_may_be_more_than_32_bits_count(monkeypatch: Any) -> None:
    """Storage of one row in place of so many, and the rows that would be written."""
    monkeypatch.setattr(replay_buffer, "_rings", lambda *_: tf.Variable(tf.zeros([1])))
    gin.bind_parameter("ReplayBuffer.max_length", 2**30)
    buffer = replay_buffer.ReplayBuffer(SPEC, 5)
    written: list[np.ndarray] = []
    monkeypatch.setattr(buffer, "_write", lambda rows, exp: written.append(rows))
    buffer.add(segments(np.arange(5)[np.newaxis], np.zeros([1, 5], int), 1))
    assert written[0].ravel().tolist() == [stream * 2**30 for stream in range(5)]


def test_a_step_that_turns_out_to_be_an_end_follows_on_all_the_same() -> None:
    """An agent that is lost at the border of segments: its last step was handed out before as what comes next."""
    replayer = make(8, 1)
    held = segments(np.array([[0]]), np.array([[0]]), 4)
    following = held.bootstrap.time_step._replace(step_type=tf.constant([[StepType.MID]]))
    replayer.observe(held._replace(bootstrap=held.bootstrap._replace(time_step=following)))
    late = segments(np.array([[0]]), np.array([[4]]), 2)
    assert late.step_type[0, 0, 0] == StepType.LAST
    replayer.observe(late)
    found = {tuple(at.number for at in sequence) for sequence in draws(replayer, 200, 2)}
    assert found == {(n, n + 1) for n in range(5)}
