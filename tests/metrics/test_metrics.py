"""Metrics against a plain double loop over every single environment."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tf_agents.trajectories.trajectory import Trajectory

from alf.metrics.metrics import (
    AverageEpisodeLengthMetric,
    AverageReturnMetric,
    EnvironmentSteps,
    NumberOfEpisodes,
    standard_metrics,
)

FIRST, MID, LAST = 0, 1, 2


def _trajectory(step_type, next_step_type, reward):
    return Trajectory(
        step_type=np.asarray(step_type, np.int32),
        observation=(),
        action=(),
        policy_info=(),
        next_step_type=np.asarray(next_step_type, np.int32),
        reward=np.asarray(reward, np.float32),
        discount=np.ones(np.shape(reward), np.float32),
    )


def _streams(seed, num_threads, batch, rows, end_chance):
    """step types [rows + 1, num_threads, batch] of valid streams, and the reward of each transition."""
    rng = np.random.default_rng(seed)
    types = np.full((rows + 1, num_threads, batch), FIRST)
    for t in range(1, rows + 1):
        ended = rng.random((num_threads, batch)) < end_chance
        types[t] = np.where(types[t - 1] == LAST, FIRST, np.where(ended, LAST, MID))
    return types, rng.integers(-5, 6, (rows, num_threads, batch))


def _oracle(types, rewards):
    """(episodes, steps, [(row, thread, column, return, length)...])."""
    rows, num_threads, batch = rewards.shape
    steps, ended = 0, []
    for i in range(num_threads):
        for j in range(batch):
            total = length = 0
            for t in range(rows):
                if types[t, i, j] == LAST:
                    continue
                steps += 1
                total += rewards[t, i, j]
                length += 1
                if types[t + 1, i, j] == LAST:
                    ended.append((t, i, j, total, length))
                    total = length = 0
    return len(ended), steps, ended


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_threads=st.integers(1, 3),
    batch=st.integers(1, 5),
    segments=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    end_chance=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_equal_to_a_double_loop(seed, num_threads, batch, segments, end_chance):
    rows = sum(segments)
    types, rewards = _streams(seed, num_threads, batch, rows, end_chance)
    metrics = [
        NumberOfEpisodes(),
        EnvironmentSteps(),
        AverageReturnMetric(num_threads, batch, buffer_size=10_000),
        AverageEpisodeLengthMetric(num_threads, batch, buffer_size=10_000),
    ]
    start = 0
    for length in segments:
        part = slice(start, start + length)
        for i in range(num_threads):
            segment = _trajectory(types[part, i], types[start + 1 : start + length + 1, i], rewards[part, i])
            for metric in metrics:
                metric(segment, i)
        start += length
    episodes, steps, ended = _oracle(types, rewards)
    assert metrics[0].result() == episodes
    assert metrics[1].result() == steps
    assert sorted(metrics[2].values()) == sorted(e[3] for e in ended)
    assert sorted(metrics[3].values()) == sorted(e[4] for e in ended)
    if ended:
        assert metrics[2].result() == pytest.approx(np.mean([e[3] for e in ended]), abs=1e-5)
        assert metrics[2].std() == pytest.approx(np.std([e[3] for e in ended]))
        assert metrics[2].num_episodes() == episodes


def test_window_keeps_the_last_episodes_in_order_of_time():
    metric = AverageReturnMetric(1, 2, buffer_size=3)
    types = np.array([[0, 0], [2, 1], [0, 2], [2, 0], [0, 2]])
    rewards = np.array([[1, 10], [0, 20], [2, 0], [0, 40]])
    metric(_trajectory(types[:-1], types[1:], rewards))
    assert list(metric.values()) == [30.0, 2.0, 40.0]
    assert metric.result() == 24.0


def test_default_window_is_the_batch_and_at_least_ten():
    for batch, window in ((4, 10), (32, 32)):
        metric = AverageReturnMetric(2, batch)
        one = np.zeros((1, batch))
        for _ in range(20):
            metric(_trajectory(one, one + LAST, one))
        assert metric.num_episodes() == window


def test_episode_of_k_actions_has_length_k_across_segments():
    metric = AverageEpisodeLengthMetric(1, 1)
    types = [0, 1, 1, 1, 2, 0]
    for t in range(5):
        metric(_trajectory([[types[t]]], [[types[t + 1]]], [[1.0]]))
    assert list(metric.values()) == [4.0]
    assert metric.longest_open() == 0.0


def test_first_drops_what_an_abandoned_episode_had_gathered():
    metric = AverageReturnMetric(1, 1)
    metric(_trajectory([[0], [1]], [[1], [1]], [[5.0], [5.0]]))
    metric(_trajectory([[0], [1]], [[1], [2]], [[1.0], [2.0]]))
    assert list(metric.values()) == [3.0]
    metric(_trajectory([[0], [0], [0], [1]], [[0], [0], [1], [2]], [[9.0], [9.0], [1.0], [1.0]]))
    assert list(metric.values()) == [3.0, 2.0]
    metric(_trajectory([[0], [0]], [[0], [1]], [[9.0], [4.0]]))
    assert metric.longest_open() == 4.0


def test_single_step_without_time_axis():
    metric = EnvironmentSteps()
    metric(_trajectory([0, 2, 1], [1, 0, 2], [0.0, 0.0, 0.0]))
    assert metric.result() == 2


def test_threads_do_not_mix():
    metric = AverageReturnMetric(2, 1)
    metric(_trajectory([[0]], [[1]], [[1.0]]), 0)
    metric(_trajectory([[0]], [[1]], [[100.0]]), 1)
    metric(_trajectory([[1]], [[2]], [[1.0]]), 0)
    assert list(metric.values()) == [2.0]
    assert metric.longest_open() == 100.0


def test_wrong_batch_or_thread_is_named():
    metric = AverageReturnMetric(2, 3)
    with pytest.raises(ValueError, match="batch of 2 from environment thread 0"):
        metric(_trajectory([[0, 0]], [[1, 1]], [[0, 0]]), 0)
    with pytest.raises(ValueError, match="environment thread 2"):
        metric(_trajectory([[0, 0, 0]], [[1, 1, 1]], [[0, 0, 0]]), 2)


@pytest.mark.parametrize("size", [{"num_envs": 0}, {"env_batch_size": 0}, {"buffer_size": 0}])
def test_sizes_below_one_are_refused(size):
    with pytest.raises(ValueError, match="at least 1"):
        AverageReturnMetric(**{"num_envs": 1, "env_batch_size": 1, **size})


def test_state_goes_on_where_it_was_saved():
    types, rewards = _streams(3, 1, 4, 20, 0.2)
    whole, second = standard_metrics(1, 4), standard_metrics(1, 4)
    head = _trajectory(types[:10, 0], types[1:11, 0], rewards[:10, 0])
    tail = _trajectory(types[10:20, 0], types[11:21, 0], rewards[10:, 0])
    for metric, other in zip(whole, second, strict=True):
        metric(head)
        other.load_state_dict(metric.state_dict())
        metric(tail)
        other(tail)
        assert other.result() == metric.result()
        assert {k: v.tolist() for k, v in other.state_dict().items()} == {
            k: v.tolist() for k, v in metric.state_dict().items()
        }


def test_state_of_another_number_of_environments_keeps_the_window():
    first, second = AverageReturnMetric(1, 2), AverageReturnMetric(2, 3)
    first(_trajectory([[0, 0]], [[2, 1]], [[7.0, 1.0]]))
    second.load_state_dict(first.state_dict())
    assert second.result() == 7.0
    assert second.longest_open() == 0.0


def test_reset_forgets_everything():
    for metric in standard_metrics(1, 2):
        metric(_trajectory([[0, 0]], [[2, 1]], [[7.0, 1.0]]))
        metric.reset()
        assert metric.result() == 0
    assert [m.name for m in standard_metrics(1, 1)] == [
        "NumberOfEpisodes",
        "EnvironmentSteps",
        "AverageReturn",
        "AverageEpisodeLength",
    ]


def test_results_are_read_while_another_thread_writes():
    metric = AverageReturnMetric(1, 8)
    types, rewards = _streams(0, 1, 8, 64, 0.3)
    segment = _trajectory(types[:-1, 0], types[1:, 0], np.ones_like(rewards[:, 0]))
    done = threading.Event()

    def feed():
        for _ in range(200):
            metric(segment)
        done.set()

    thread = threading.Thread(target=feed)
    thread.start()
    while not done.is_set():
        assert np.isfinite(metric.result())
        assert metric.num_episodes() <= 10
        metric.state_dict()
    thread.join()


def test_an_episode_that_has_ended_is_not_open():
    metric = AverageReturnMetric(1, 1)
    metric(_trajectory([[FIRST], [MID], [LAST]], [[MID], [LAST], [FIRST]], [[2.0], [3.0], [9.0]]))
    assert metric.result() == 5.0
    assert metric.longest_open() == 0.0


def test_a_row_that_is_last_counts_nothing_whatever_follows():
    metrics = standard_metrics(1, 1)
    for metric in metrics:
        metric(_trajectory([[FIRST], [LAST], [LAST]], [[LAST], [LAST], [FIRST]], [[2.0], [3.0], [9.0]]))
    assert [float(metric.result()) for metric in metrics] == [1, 1, 2.0, 1]
    assert metrics[2].num_episodes() == 1
