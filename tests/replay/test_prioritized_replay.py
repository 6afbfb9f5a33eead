"""Priorities: the chances they give, the weights that make up for them, and when they are written."""

from __future__ import annotations

import collections
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.replay import prioritized_replay
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.sampling import Sample
from alf.utils import gin_utils
from tests.replay.streams import SPEC, segments, where


def make(capacity: int, streams: int = 1, **kwargs: Any) -> PrioritizedReplay:
    gin.bind_parameter("ReplayBuffer.max_length", capacity)
    return PrioritizedReplay(SPEC, streams, **kwargs)


def observe(replayer: PrioritizedReplay, first: int, length: int) -> None:
    streams = np.arange(replayer.batch_size)[np.newaxis]
    replayer.observe(segments(streams, np.full_like(streams, first), length))


def sample(replayer: PrioritizedReplay, count: int, clock: int = 0, length: int = 2) -> Sample:
    return replayer.sample(replayer.view(length), count, length, tf.constant([5, 6]), tf.constant(clock, tf.int64))


def set_priorities(replayer: PrioritizedReplay, steps: list[int], priority: list[float]) -> None:
    replayer.view(2)
    of = Sample((), tf.zeros([len(steps)], tf.int64), tf.constant(steps, tf.int64))
    replayer.learned(of, tf.constant(priority, tf.float32))


def test_chances_go_with_the_powers_of_priorities_and_weights_make_up_for_them() -> None:
    replayer = make(10, alpha=0.5, beta=0.7, beta_iterations=0, epsilon=1e-9)
    observe(replayer, 0, 5)
    priority = np.array([1.0, 4.0, 16.0, 0.25])
    set_priorities(replayer, [0, 1, 2, 3], list(priority))
    drawn = sample(replayer, 7500)
    chance = priority**0.5 / (priority**0.5).sum()
    counts = collections.Counter(drawn.step.numpy().tolist())
    # Stratified: no count is off by more than one for each border.
    np.testing.assert_allclose([counts[i] for i in range(4)], 7500 * chance, atol=2)
    weight = (4 * chance) ** -0.7
    np.testing.assert_allclose(drawn.weights, (weight / weight.max())[drawn.step.numpy()], rtol=1e-5)
    np.testing.assert_array_equal(where(drawn.experience)[:, 0, 1], drawn.step)


def test_draws_of_a_batch_are_independent_within_their_shares() -> None:
    replayer = make(2001)
    observe(replayer, 0, 1001)
    # 1000 sequences of one priority, ten to a share.
    drawn = sample(replayer, 100).step.numpy()
    np.testing.assert_array_equal(np.sort(drawn) // 10, np.arange(100))
    assert len(set(drawn % 10)) > 5


def test_beta_grows_to_one_by_the_clock() -> None:
    replayer = make(10, alpha=1.0, beta=0.5, beta_iterations=10, epsilon=1e-9)
    observe(replayer, 0, 3)
    set_priorities(replayer, [0, 1], [1.0, 3.0])
    for clock, beta in [(0, 0.5), (5, 0.75), (10, 1.0), (99, 1.0)]:
        drawn = sample(replayer, 8, clock)
        frequent = drawn.weights.numpy()[drawn.step.numpy() == 1]
        np.testing.assert_allclose(frequent, (1 / 3) ** beta, rtol=1e-5)


def test_new_sequences_have_the_highest_priority_so_far() -> None:
    replayer = make(20, alpha=1.0, epsilon=1e-9)
    observe(replayer, 0, 3)
    tree = replayer.priorities.tree
    replayer.view(2)
    np.testing.assert_allclose(tree.get(tf.range(4, dtype=tf.int64)), [1, 1, 0, 0])
    set_priorities(replayer, [0, 1], [5.0, 0.5])
    observe(replayer, 3, 2)
    replayer.view(2)
    np.testing.assert_allclose(tree.get(tf.range(6, dtype=tf.int64)), [5, 0.5, 5, 5, 0, 0], rtol=1e-6)
    assert float(tree.total()) == pytest.approx(15.5)
    set_priorities(replayer, [0], [0.25])
    observe(replayer, 5, 1)
    replayer.view(2)
    np.testing.assert_allclose(tree.get(tf.range(6, dtype=tf.int64)), [0.25, 0.5, 5, 5, 5, 0], rtol=1e-6)


def test_what_is_cleared_is_never_drawn() -> None:
    replayer = make(8, 2)
    observe(replayer, 0, 6)
    replayer.view(2)
    replayer.clear()
    observe(replayer, 6, 3)
    assert set(sample(replayer, 50).step.numpy()) == {6, 7}


def test_another_length_is_refused() -> None:
    replayer = make(8)
    observe(replayer, 0, 6)
    replayer.view(2)
    with pytest.raises(ValueError, match="of sequences of 2 steps and cannot be used for 3"):
        replayer.view(3)
    replayer.clear()
    observe(replayer, 0, 6)
    assert replayer.view(3).count is not None
    assert replayer.num_sequences(3) == 4


def test_a_loss_without_priorities_is_refused() -> None:
    replayer = make(8)
    observe(replayer, 0, 6)
    with pytest.raises(ValueError, match=r"needs LossInfo\.priority.*gives none, set it to 'uniform'"):
        replayer.learned(sample(replayer, 2), ())
    for wrong in (tf.ones([2, 1]), tf.ones([]), tf.ones([3])):
        with pytest.raises(ValueError, match=r"priority has shape .* but it takes one number a sequence: \(2,\)"):
            replayer.learned(sample(replayer, 2), wrong)


@pytest.mark.parametrize("wrong", [-0.5, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_what_is_no_priority_is_refused_and_ruins_no_other(wrong: float, alpha: float) -> None:
    replayer = make(8, alpha=alpha, epsilon=1e-9)
    observe(replayer, 0, 4)
    set_priorities(replayer, [0, 1], [0.25, 4.0])
    set_priorities(replayer, [0, 1, 2], [9.0, wrong, 0.0])
    expected = np.array([9.0, 4.0, 1e-9]) ** alpha
    np.testing.assert_allclose(replayer.priorities.tree.get(tf.range(3, dtype=tf.int64)), expected, rtol=1e-6)
    assert float(replayer.priorities.highest) == pytest.approx(9.0**alpha)
    with pytest.raises(ValueError, match=rf"LossInfo\.priority has {wrong}; it takes finite numbers of at least 0"):
        replayer.view(2)
    replayer.clear()
    observe(replayer, 4, 4)
    assert replayer.view(2).count is not None


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": -1.0}, {"alpha": float("nan")}, {"beta": 1.5}, {"beta_iterations": -1}]
    + [
        {"epsilon": 0.0},
        {"epsilon": float("inf")},
        {"beta_iterations": float("nan")},
        {"alpha": "0.6"},
        {"beta": None},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="PrioritizedReplay needs"):
        make(8, **wrong)


def test_balanced_of_the_uniform_replay_has_no_effect_and_is_listed() -> None:
    gin.parse_config("UniformReplay.balanced = True")
    make(8)
    assert "UniformReplay.balanced" in gin_utils.unused_bindings()


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("before", [0.0, 0.5, 1.0])
def test_what_was_saved_with_another_alpha_is_as_if_it_had_been_saved_with_this(
    before: float, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prioritized_replay, "_ROWS_AT_ONCE", 7)
    saved, loaded = make(20, alpha=before, epsilon=1e-9), make(20, alpha=after, epsilon=1e-9)
    observe(saved, 0, 6)
    set_priorities(saved, [0, 1, 2], [9.0, 0.25, 4.0])
    rows = np.arange(20)
    loaded.write_rows(rows, saved.read_rows(rows))
    loaded.load_state(saved.state())
    observe(loaded, 6, 2)
    loaded.view(2)
    # Where all had the same chance, what they would have had is lost. Nothing follows on what was loaded.
    held = np.array([9.0, 0.25, 4.0, 1.0, 1.0, 0.0, 9.0]) if before else np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    expected = np.where(held > 0, held**after, 0.0)
    np.testing.assert_allclose(loaded.priorities.tree.get(tf.range(7, dtype=tf.int64)), expected, rtol=1e-5)
    assert float(loaded.priorities.tree.total()) == pytest.approx(expected.sum(), rel=1e-5)


def test_what_was_saved_without_its_alpha_is_taken_as_it_is() -> None:
    saved, loaded = make(20, alpha=1.0), make(20, alpha=0.5)
    observe(saved, 0, 3)
    set_priorities(saved, [0, 1], [9.0, 4.0])
    rows = np.arange(20)
    loaded.write_rows(rows, saved.read_rows(rows))
    state = saved.state()
    del state["alpha"]
    loaded.load_state(state)
    np.testing.assert_allclose(loaded.priorities.tree.get(tf.range(2, dtype=tf.int64)), [9.0, 4.0], rtol=1e-5)
