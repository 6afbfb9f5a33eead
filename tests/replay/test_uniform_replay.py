"""Uniform replay against a ring of plain lists."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alf.data_structures import StepType
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.replay_buffer import ReplayBuffer, _rings
from alf.replay.uniform_replay import UniformReplay
from alf.utils import rng
from tests.replay.streams import SPEC, At, Ring, segments, single_steps, where


def make(capacity: int, streams: int = 2, cls: Any = UniformReplay, **kwargs: Any) -> Any:
    gin.bind_parameter("ReplayBuffer.max_length", capacity)
    return cls(SPEC, streams, **kwargs)


def draws(replayer: Any, count: int, length: int, seed: int = 0) -> list[tuple[At, ...]]:
    view = replayer.view(length)
    sample = replayer.sample(view, count, length, tf.constant([seed, 1]))
    found = where(sample.experience)
    assert found.shape == (count, length, 2)
    return [tuple(At(*step) for step in sequence) for sequence in found.tolist()]


@st.composite
def histories(draw: Any) -> Any:
    """What a driver may deliver: threads of B streams in any order, segments lost on the way."""
    threads, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    time, queue = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    batches = draw(st.lists(st.lists(st.integers(0, threads - 1), min_size=queue, max_size=queue), max_size=6))
    lost = draw(st.lists(st.booleans(), min_size=40, max_size=40))
    return threads, batch, time, batches, lost


def observed(history: Any, replayer: Any, ring: Ring) -> Iterator[None]:
    """Has both observe what is drawn by `histories`, batch by batch."""
    threads, batch, time, batches, lost = history
    made, losses = [0] * threads, iter(lost)
    for threads_of_batch in batches:
        streams, first = [], []
        for thread in threads_of_batch:
            # A segment that is lost leaves a gap; the one after it is delivered.
            made[thread] += time * next(losses)
            streams.append(thread * batch + np.arange(batch))
            first.append(np.full(batch, made[thread]))
            made[thread] += time
        replayer.observe(segments(np.stack(streams), np.stack(first), time))
        ring.add(np.stack(streams), np.stack(first), time)
        yield


@pytest.fixture
def _eagerly() -> Iterator[None]:
    """Without tracing, which takes longer than all else; what is traced is tested on its own."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("_eagerly")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), st.integers(1, 12), st.integers(1, 5), st.sampled_from([UniformReplay, PrioritizedReplay]))
def test_holds_and_draws_what_the_ring_does(history: Any, capacity: int, length: int, cls: Any) -> None:
    streams = history[0] * history[1]
    replayer, ring = make(capacity, streams, cls), Ring(streams, capacity)
    for _ in observed(history, replayer, ring):
        expected = ring.sequences(length)
        assert replayer.num_sequences(length) == len(expected)
        assert replayer.num_episodes == sum(at.number % 5 == 4 for held in ring.held for at in held)
        if expected:
            assert set(draws(replayer, 40, length)) <= set(expected)


def test_every_sequence_is_drawn_equally_often() -> None:
    """Chi-square over all sequences, two streams of different length and a gap: the 1e-4 quantile is not passed."""
    replayer, ring = make(12), Ring(2, 12)
    for streams, first, time in [([0, 1], [0, 0], 4), ([1], [4], 4), ([0], [9], 4), ([1], [8], 4), ([1], [12], 4)]:
        args = (np.array([streams]), np.array([first]), time)
        replayer.observe(segments(*args))
        ring.add(*args)
    expected = ring.sequences(3)
    assert len({s[0].stream for s in expected}) == 2
    counts = collections.Counter(draws(replayer, 20_000, 3))
    assert set(counts) == set(expected)
    mean = 20_000 / len(expected)
    chi_square = sum((counts[s] - mean) ** 2 / mean for s in expected)
    degrees = len(expected) - 1
    assert chi_square < degrees + 4.5 * np.sqrt(2 * degrees)


def test_balanced_draws_every_stream_equally_often() -> None:
    replayer = make(100, balanced=True)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 3))
    replayer.observe(segments(np.array([[1]]), np.array([[3]]), 60))
    counts = collections.Counter(sequence[0].stream for sequence in draws(replayer, 10_000, 2))
    assert abs(counts[0] - 5000) < 4 * np.sqrt(10_000 / 4)
    within = collections.Counter(s[0].number for s in draws(replayer, 10_000, 2) if s[0].stream == 1)
    assert len(within) == 62


def test_the_same_seed_draws_the_same() -> None:
    replayer = make(50)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 40))
    assert draws(replayer, 16, 2, seed=3) == draws(replayer, 16, 2, seed=3) != draws(replayer, 16, 2, seed=4)
    with rng.scope(tf.constant([1, 2])):
        one = where(replayer.replay(8, 3))
    with rng.scope(tf.constant([1, 2])):
        np.testing.assert_array_equal(one, where(replayer.replay(8, 3)))


def test_single_steps_make_runs_where_step_types_allow() -> None:
    replayer, streams = make(20), np.array([0, 1])
    for number in [0, 1, 2, 3, 4, 5, 6]:
        replayer.observe(single_steps(streams, np.full(2, number)))
    # MID of an episode that ended meanwhile, then FIRST without a LAST before it.
    replayer.observe(single_steps(streams, np.full(2, 10)))
    # LAST may follow on FIRST, MID on no LAST.
    for number in (14, 16):
        replayer.observe(single_steps(streams, np.full(2, number)))
    found = {tuple(s.number for s in sequence) for sequence in draws(replayer, 200, 2)}
    assert found == {*((i, i + 1) for i in range(6)), (10, 14)}


def test_new_environments_begin_new_runs() -> None:
    replayer = make(20, 1)
    replayer.observe(segments(np.array([[0]]), np.array([[0]]), 3))
    replayer.end_streams()
    replayer.observe(segments(np.array([[0]]), np.array([[3]]), 3))
    assert replayer.num_sequences(2) == 4, "what would fit is not joined once the streams were ended"


def test_clear_forgets_and_goes_on() -> None:
    replayer = make(10)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 5))
    assert (replayer.num_sequences(1), replayer.total_steps, replayer.num_episodes) == (10, 10, 2)
    replayer.clear()
    assert (replayer.num_sequences(1), replayer.total_steps, replayer.num_episodes) == (0, 0, 0)
    with pytest.raises(ValueError, match="nothing to replay"):
        replayer.replay_all()
    replayer.observe(segments(np.array([[0, 1]]), np.array([[5, 5]]), 4))
    assert {s[0].number for s in draws(replayer, 100, 2)} == {5, 6, 7}
    assert replayer.num_episodes == 0


def test_all_of_it_in_order_with_its_bootstrap() -> None:
    replayer = make(6, 3)
    for first in (0, 4):
        replayer.observe(segments(np.array([[2, 0, 1]]), np.array([[first] * 3]), 4))
    exp = replayer.replay_all()
    assert where(exp).tolist() == [[[s, n] for n in range(2, 8)] for s in range(3)]
    np.testing.assert_array_equal(exp.bootstrap.time_step.observation, [[s, 8] for s in range(3)])
    np.testing.assert_array_equal(exp.bootstrap.state, [[4.0]] * 3)
    with pytest.raises(ValueError, match="streams of equal length, and they have 2 to 4 steps"):
        fewer = make(6, 2)
        fewer.observe(segments(np.array([[0]]), np.array([[0]]), 4))
        fewer.observe(segments(np.array([[1]]), np.array([[0]]), 2))
        fewer.replay_all()


def test_all_of_it_where_the_environments_were_changed_in_between() -> None:
    """As after a resume: what is not followed on ends as by a time limit, and what goes on does not."""
    replayer = make(6, 2)
    replayer.observe(segments(np.array([[1, 0]]), np.array([[0, 0]]), 3))
    again = make(6, 2)
    again.write_rows(np.arange(12), replayer.read_rows(np.arange(12)))
    again.load_state(replayer.state())
    original = replayer.replay_all().step_type.numpy()
    again.observe(segments(np.array([[1, 0]]), np.array([[20, 10]]), 1))
    again.observe(segments(np.array([[1, 0]]), np.array([[21, 11]]), 1))
    exp = again.replay_all()
    assert exp.observation[:, :, 1].numpy().tolist() == [[0, 1, 2, 10, 11], [0, 1, 2, 20, 21]]
    ended = np.array(original)
    ended[:, 2] = StepType.LAST
    np.testing.assert_array_equal(exp.step_type[:, :3], ended)
    # What stands behind the gap begins anew, for recurrent networks too.
    np.testing.assert_array_equal(exp.step_type[:, 3:], [[StepType.FIRST, StepType.MID]] * 2)
    np.testing.assert_array_equal(exp.bootstrap.time_step.observation, [[0, 12], [1, 22]])


def test_all_of_it_has_no_bootstrap_where_one_stream_has_none_of_its_environment() -> None:
    replayer = make(4, 2)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 4))
    replayer.end_streams()
    replayer.observe(segments(np.array([[1]]), np.array([[20]]), 2))
    exp = replayer.replay_all()
    assert exp.observation[:, :, 1].numpy().tolist() == [[0, 1, 2, 3], [2, 3, 20, 21]]
    assert exp.bootstrap == ()


def test_all_of_it_where_a_single_step_stands_between_two_gaps() -> None:
    replayer = make(6, 1)
    for first, length in ((1, 2), (21, 1), (31, 2)):
        replayer.observe(segments(np.array([[0]]), np.array([[first]]), length))
    expected = [StepType.MID, StepType.LAST, StepType.LAST, StepType.FIRST, StepType.MID]
    np.testing.assert_array_equal(replayer.replay_all().step_type, [expected])


@pytest.mark.parametrize("cls", [UniformReplay, PrioritizedReplay])
def test_too_little_is_said_and_never_an_error_of_the_generator(cls: Any) -> None:
    replayer = make(10, 2, cls)
    with pytest.raises(ValueError, match="holds 0 sequences of 2 steps, fewer than mini_batch_size=4: collect more"):
        replayer.replay(4, 2)
    with pytest.raises(ValueError, match="at most 18: raise max_length"):
        replayer.replay(19, 2)
    with pytest.raises(ValueError, match="at most 0"):
        replayer.replay(1, 11)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 3))
    assert [replayer.can_sample(size, 2) for size in (3, 4, 5)] == [True, True, False]


def test_a_memory_of_more_steps_than_32_bits_count_holds_them() -> None:
    """Of one byte a step, of which only what is written takes memory."""
    rows = _rings(3, 2**30, tf.TensorSpec([], tf.uint8))
    assert rows.shape == [3 * 2**30]
    last = tf.constant([3 * 2**30 - 1], tf.int64)
    rows.scatter_update(tf.IndexedSlices(tf.constant([7], tf.uint8), last))
    assert rows.sparse_read(last).numpy().tolist() == [7]


def test_a_memory_larger_than_the_machine_takes_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"max_length=2147483647 of 2 environments takes .* GiB, which this machine does"
    ):
        ReplayBuffer(SPEC._replace(observation=tf.TensorSpec([84, 84, 4, 100], tf.uint8)), 2, 2**31 - 1)
    with pytest.raises(ValueError, match="max_length=2147483648 must be at most 2147483647"):
        ReplayBuffer(SPEC, 2, 2**31)


def test_sizes_that_a_script_binds_are_whole_numbers_however_written() -> None:
    gin.bind_parameter("ReplayBuffer.max_length", 1e1)
    gin.bind_parameter("ReplayBuffer.frame_stack", 1.0)
    replayer = UniformReplay(SPEC, 2)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 4))
    assert replayer.num_sequences(2) == 6
    assert replayer.buffer.max_length == 10
    for wrong in ("10", None, 2.5, True, 0, float("inf")):
        with pytest.raises(ValueError, match=rf"max_length, whole numbers of at least 1, got 2 and {wrong!r}\."):
            ReplayBuffer(SPEC, 2, wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"frame_stack >= 1, a whole number, .*, got {wrong!r} and -1\."):
            ReplayBuffer(SPEC, 2, 10, frame_stack=wrong)  # type: ignore[arg-type]


def test_wrong_ids_are_refused() -> None:
    replayer = make(10)
    with pytest.raises(ValueError, match=r"env_id 0 \.\. 2 does not fit a replayer of 2"):
        replayer.observe(segments(np.array([[0, 2]]), np.array([[0, 0]]), 1))
    with pytest.raises(ValueError, match="another stream"):
        replayer.observe(segments(np.array([[1, 1]]), np.array([[0, 0]]), 1))


def test_nothing_is_retraced_while_it_fills_and_gaps_come() -> None:
    replayer = make(10)

    @tf.function(autograph=False, input_signature=[replayer.view_spec])
    def sample(view: Any) -> Any:
        return replayer.sample(view, 4, 2, tf.constant([1, 2])).experience

    for i in range(5):
        replayer.observe(segments(np.array([[0, 1]]), np.array([[i * 5, i * 3]]), 3))
        where(sample(replayer.view(2)))
    assert sample.experimental_get_tracing_count() == 1
    assert len(replayer.buffer._writer._concrete) == 1
