"""One-time replayers: everything once, batch-major, with its bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms import minibatch
from alf.data_structures import ActionTimeStep, Bootstrap, Experience
from alf.replay.creating import create_replayer
from alf.replay.experience_replayer import stack_segments


def _experience(queue: int, time: int, batch: int) -> Experience:
    """Every leaf says where it came from: 100 q + 10 t + b; the bootstrap is the step after the last."""
    q, t, b = np.meshgrid(np.arange(queue), np.arange(time), np.arange(batch), indexing="ij")
    where = tf.constant((100 * q + 10 * t + b).astype(np.float32))
    ints = tf.cast(where, tf.int32)
    after = tf.constant((100 * q[:, 0] + 10 * time + b[:, 0]).astype(np.float32))
    step = ActionTimeStep(
        tf.cast(after, tf.int32), after, after, after[..., None], tf.cast(after, tf.int64), tf.cast(after, tf.int32)
    )
    return Experience(
        ints,
        where,
        where,
        where[..., None],
        tf.cast(where, tf.int64),
        ints,
        tf.cast(where, tf.int64),
        (),
        (),
        tf.cast(where, tf.int64),
    )._replace(bootstrap=Bootstrap(step, ()))


@pytest.mark.parametrize("name", ["one_time", "cycle_one_time"])
@pytest.mark.parametrize("queue", [1, 3])
def test_replay_all_is_batch_major_and_complete(name: str, queue: int) -> None:
    replayer = create_replayer(name, Experience, 2)
    replayer.observe(_experience(queue, 4, 2))
    exp = replayer.replay_all()
    assert replayer.batch_size == queue * 2
    rows = [[100 * q + 10 * t + b for t in range(4)] for q in range(queue) for b in range(2)]
    np.testing.assert_array_equal(exp.reward, rows)
    np.testing.assert_array_equal(exp.observation[..., 0], rows)
    np.testing.assert_array_equal(
        exp.bootstrap.time_step.reward, [100 * q + 40 + b for q in range(queue) for b in range(2)]
    )


def test_cycle_one_time_trains_every_transition_once_for_any_queue_length() -> None:
    """Two segments of one stream in one batch, which a ring over environments cannot hold: nothing missing, nothing twice."""
    replayer = create_replayer("cycle_one_time", Experience, 2)
    first, second = _experience(1, 4, 2), _experience(1, 4, 2)
    later = tf.nest.map_structure(lambda x: x + tf.cast(40, x.dtype), second)
    replayer.observe(tf.nest.map_structure(lambda x, y: tf.concat([x, y], 0), first, later))
    sequences, extended = minibatch.cut(replayer.replay_all(), 4)
    assert extended
    transitions = [(float(s[t]), float(s[t + 1])) for s in sequences.reward.numpy() for t in range(4)]
    assert sorted(transitions) == sorted((10.0 * t + b, 10.0 * (t + 1) + b) for t in range(8) for b in range(2))


def test_clear_forgets_and_sampling_is_refused() -> None:
    replayer = create_replayer("one_time", Experience, 2)
    with pytest.raises(ValueError, match="nothing to replay"):
        replayer.replay_all()
    with pytest.raises(ValueError, match="after the first batch"):
        _ = replayer.batch_size
    replayer.observe(_experience(1, 2, 1))
    replayer.clear()
    with pytest.raises(ValueError, match="nothing to replay"):
        replayer.replay_all()
    with pytest.raises(ValueError, match="whole_replay_buffer_training"):
        replayer.replay(2, 2)


def test_a_single_segment_gets_a_queue_axis() -> None:
    segment = tf.nest.map_structure(lambda x: x[0], _experience(1, 3, 2))
    exp = stack_segments([segment])
    assert exp.reward.shape == [1, 3, 2]
    assert exp.bootstrap.time_step.reward.shape == [1, 2]


def test_only_the_last_batch_is_kept() -> None:
    replayer = create_replayer("one_time", Experience, 2)
    replayer.observe(_experience(1, 3, 2))
    later = tf.nest.map_structure(lambda x: x + tf.cast(500, x.dtype), _experience(2, 3, 2))
    replayer.observe(later)
    assert replayer.batch_size == 4
    assert replayer.replay_all().reward.numpy().min() == 500
