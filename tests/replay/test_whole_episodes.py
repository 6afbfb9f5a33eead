"""Memories that hold an episode from its end on: against lists of what was delivered, in which ends are looked for."""

from __future__ import annotations

import pathlib
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.replay_files import load_replay, save_replay
from alf.replay.uniform_replay import UniformReplay
from tests.replay.streams import At, Ring, segments, single_steps, where
from tests.replay.test_uniform_replay import _eagerly as _eagerly
from tests.replay.test_uniform_replay import draws, histories, make, observed

# As `segments` makes them.
PERIOD = 5

KINDS = pytest.mark.parametrize("cls", [UniformReplay, PrioritizedReplay])


@pytest.fixture(autouse=True)
def _until_ends(_clean_gin: None) -> None:
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", True)


def ended(held: list[At]) -> list[At]:
    """The steps of a stream from which the end of their episode can be reached without a gap."""
    found = []
    for i, at in enumerate(held):
        last = at
        for later in [*held[i + 1 :], None]:
            if last.number % PERIOD == PERIOD - 1:
                found.append(at)
                break
            if later is None or later.number != last.number + 1:
                break
            last = later
    return found


class EndedRing(Ring):
    """A ring of which only what has ended counts."""

    def sequences(self, length: int) -> list[tuple[At, ...]]:
        only = Ring(len(self.held), self.capacity)
        only.held = [ended(held) for held in self.held]
        return only.sequences(length)


@pytest.mark.usefixtures("_eagerly")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), st.integers(1, 12), st.integers(1, 5), st.sampled_from([UniformReplay, PrioritizedReplay]))
def test_holds_what_has_ended(history: Any, capacity: int, length: int, cls: Any) -> None:
    streams = history[0] * history[1]
    replayer, ring = make(capacity, streams, cls), EndedRing(streams, capacity)
    for _ in observed(history, replayer, ring):
        expected = ring.sequences(length)
        assert replayer.num_sequences(length) == len(expected)
        assert replayer.total_steps == len(ring.sequences(1))
        assert replayer.num_episodes == sum(at.number % PERIOD == PERIOD - 1 for held in ring.held for at in held)
        if expected:
            assert set(draws(replayer, 40, length)) <= set(expected)


@KINDS
def test_single_steps_come_all_at_once_and_in_order(cls: Any) -> None:
    replayer, streams = make(20, 2, cls), np.array([0, 1])
    held = []
    for number in range(12):
        replayer.observe(single_steps(streams, np.full(2, number)))
        held.append(replayer.total_steps // 2)
    assert held == [0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 10, 10]
    found = {tuple(s.number for s in sequence) for sequence in draws(replayer, 400, 3)}
    assert found == {(i, i + 1, i + 2) for i in range(8)}


def test_without_the_setting_each_step_is_held_at_once() -> None:
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", False)
    replayer, streams = make(20), np.array([0, 1])
    for number in range(7):
        replayer.observe(single_steps(streams, np.full(2, number)))
        assert replayer.total_steps == 2 * (number + 1)


def test_what_is_open_when_environments_are_others_is_never_held() -> None:
    replayer = make(30, 1)
    replayer.observe(segments(np.array([[0]]), np.array([[0]]), 8))
    replayer.end_streams()
    replayer.observe(segments(np.array([[0]]), np.array([[8]]), 9))
    # 5 to 7 were cut off from their end; 8 and 9 lead to it.
    assert {s[0].number for s in draws(replayer, 300, 1)} == {*range(5), *range(8, 15)}
    replayer.clear()
    assert replayer.total_steps == 0
    replayer.observe(segments(np.array([[0]]), np.array([[17]]), 4))
    assert {s[0].number for s in draws(replayer, 100, 1)} == {17, 18, 19}


@KINDS
@pytest.mark.parametrize("capacity", [8, 14, 40])
def test_what_is_open_at_a_stop_is_not_saved(cls: Any, capacity: int, tmp_path: pathlib.Path) -> None:
    original, copy = make(14, 2, cls), make(capacity, 2, cls)
    for first in (0, 6, 12):
        original.observe(segments(np.array([[0, 1]]), np.array([[first, first]]), 6))
        original.view(2)
    # 18 steps, of which the ring has 4 to 17, and 15 to 17 are open.
    assert original.total_steps == 2 * 11
    save_replay(original, str(tmp_path))
    load_replay(copy, str(tmp_path))
    original.end_streams()
    expected = [set(range(max(4, 18 - capacity), 15)), {*range(max(4, 21 - capacity), 15), *range(18, 20)}]
    for replayer in (original, copy):
        if replayer is copy:
            assert {s[0].number for s in draws(copy, 600, 1 if cls is UniformReplay else 2)} <= expected[0]
            assert copy.total_steps == 2 * len(expected[0])
        replayer.observe(segments(np.array([[0, 1]]), np.array([[18, 18]]), 3))
    assert copy.total_steps == 2 * len(expected[1])
    if capacity == 14:
        assert draws(copy, 50, 2) == draws(original, 50, 2)


def test_a_larger_memory_takes_what_there_was_and_no_more(tmp_path: pathlib.Path) -> None:
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", False)
    small, large = make(6, 1), make(20, 1)
    for first in (0, 8):
        small.observe(segments(np.array([[0]]), np.array([[first]]), 8))
    save_replay(small, str(tmp_path))
    assert load_replay(large, str(tmp_path)) == 6
    assert {s[0].number for s in draws(large, 300, 1)} == set(range(10, 16))


def test_whole_memories_are_not_trained_on() -> None:
    replayer = make(20)
    replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 5))
    with pytest.raises(
        ValueError, match=r"needs ReplayBuffer.store_transitions_only_when_episodes_are_terminated=False"
    ):
        replayer.replay_all()


def test_episodes_with_gaps_between_them_are_not_trained_on_as_a_whole(tmp_path: pathlib.Path) -> None:
    original = make(30, 1)
    original.observe(segments(np.array([[0]]), np.array([[0]]), 8))
    original.end_streams()  # 5 to 7 are held no more
    original.observe(segments(np.array([[0]]), np.array([[8]]), 7))
    save_replay(original, str(tmp_path))
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", False)
    copy = make(30, 1)
    assert load_replay(copy, str(tmp_path)) == 12
    with pytest.raises(ValueError, match=r"some are missing in between: train on samples"):
        copy.replay_all()


# ---- what alters steps before they are stored ----


def doubled(exp: Any) -> Any:
    return exp._replace(reward=2.0 * exp.reward, step_type=0 * exp.step_type)


@pytest.mark.parametrize("until_ends", [True, False])
def test_steps_are_altered_on_their_way_into_the_memory(until_ends: bool) -> None:
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", until_ends)
    gin.bind_parameter("ReplayBuffer.before_storing", doubled)
    replayer = make(7, 2)
    for first in (0, 4, 8):
        # The last one is of more steps than the ring keeps.
        replayer.observe(segments(np.array([[0, 1]]), np.array([[first, first]]), 4 if first < 8 else 12))
    sample = replayer.sample(replayer.view(3), 200, 3, tf.constant([1, 2])).experience
    np.testing.assert_array_equal(sample.reward, 2 * (1000 * sample.observation[..., 0] + sample.observation[..., 1]))
    # All else is as it was, segments are joined as without it.
    found = where(sample._replace(reward=0.5 * sample.reward))
    assert {tuple(n) for n in found[..., 1].tolist()} == {(n, n + 1, n + 2) for n in range(13, 18)}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda exp: None,
        lambda exp: exp._replace(reward=tf.cast(exp.reward, tf.float64)),
        lambda exp: exp._replace(observation={"x": exp.observation}),
        lambda exp: exp._replace(reward=exp.reward[..., :1]),
    ],
)
def test_what_is_altered_keeps_its_shape(wrong: Any) -> None:
    gin.bind_parameter("ReplayBuffer.before_storing", wrong)
    replayer = make(7, 2)
    with pytest.raises(ValueError, match=r"before_storing made .* fields, shapes and dtypes must stay"):
        replayer.observe(segments(np.array([[0, 1]]), np.array([[0, 0]]), 4))
