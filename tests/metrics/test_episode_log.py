"""One row for each episode, against a plain loop."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from absl import logging
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.metrics.agent_episodes import Ended
from alf.metrics.episode_log import EpisodeLog, Signal
from alf.metrics.reporter import StatsReporter

FIRST, MID, LAST = 0, 1, 2


def _rows(folder, name="episodes.csv"):
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def _stream(rng, length, batch):
    """Step types, following types and rewards [length, batch] of environments whose episodes last 1 to 5 steps."""
    types = np.zeros((length + 1, batch), np.int32)
    for j in range(batch):
        left = 0
        for t in range(1, length + 1):
            if types[t - 1, j] == LAST:
                types[t, j] = FIRST
            else:
                left = rng.integers(1, 6) if types[t - 1, j] == FIRST else left
                left -= 1
                types[t, j] = LAST if left == 0 else MID
    return types[:-1], types[1:], rng.normal(size=(length, batch)).astype(np.float32)


def _expected(types, following, rewards, gamma):
    """[(time, row, rewards of the episode)] by a plain loop."""
    found, open_ = [], [[] for _ in range(types.shape[1])]
    for t in range(len(types)):
        for j in range(types.shape[1]):
            if types[t, j] == FIRST:
                open_[j] = []
            if types[t, j] != LAST:
                open_[j].append(float(rewards[t, j]))
                if following[t, j] == LAST:
                    found.append((t, j, open_[j]))
                    open_[j] = []
    return found


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_rows_are_those_of_a_plain_loop(tmp_path_factory, seed, batch, segments, length):
    folder = tmp_path_factory.mktemp("log")
    types, following, rewards = _stream(np.random.default_rng(seed), segments * length, batch)
    log = EpisodeLog(str(folder), discount=0.9)
    for i in range(segments):
        part = slice(i * length, (i + 1) * length)
        log(SimpleNamespace(step_type=types[part], next_step_type=following[part], reward=rewards[part]), 0)
    log.close()
    expected = _expected(types, following, rewards, 0.9)
    if not expected:
        assert not (folder / "episodes.csv").exists()
        return
    rows = _rows(folder)
    assert [int(row["episode"]) for row in rows] == list(range(1, len(expected) + 1))
    for row, (_, j, episode) in zip(rows, expected, strict=True):
        assert int(row["row"]) == j
        assert int(row["length"]) == len(episode)
        assert float(row["return"]) == pytest.approx(sum(episode), abs=1e-5)
        assert float(row["discounted_return"]) == pytest.approx(
            sum(0.9**k * r for k, r in enumerate(episode)), abs=1e-5
        )
        assert float(row["Reward/Mean"]) == pytest.approx(np.mean(episode), abs=1e-5)
        assert float(row["Reward/Stdev"]) == pytest.approx(np.std(episode), abs=1e-5)
        assert float(row["Reward/Max"]) == pytest.approx(max(episode), abs=1e-5)
        assert float(row["Reward/Min"]) == pytest.approx(min(episode), abs=1e-5)


def _segment(rewards, ends):
    """One environment; an episode starts at row 0 and ends after the rows in `ends`."""
    length = len(rewards)
    types, following = np.full((length, 1), MID), np.full((length, 1), MID)
    types[0] = FIRST
    for t in ends:
        following[t] = LAST
        if t + 1 < length:
            types[t + 1], following[t + 1] = LAST, FIRST
            if t + 2 < length:
                types[t + 2] = FIRST
    return SimpleNamespace(step_type=types, next_step_type=following, reward=np.array(rewards, "f")[:, None])


def test_context_and_nan_outside_training(tmp_path):
    log = EpisodeLog(str(tmp_path))
    log.at(global_step=0, iteration=0, in_heatup=1, evaluation_return=float("nan"))
    log(_segment([1.0, 2.0], [1]), 0)
    log.at(global_step=5, iteration=5, in_heatup=0, evaluation_return=7.5)
    log(_segment([4.0], [0]), 1)
    log.close()
    heatup, trained = _rows(tmp_path)
    assert (heatup["global_step"], heatup["in_heatup"], heatup["return"]) == ("0", "1", "3.0")
    assert heatup["training_return"] == heatup["evaluation_return"] == "nan"
    assert (trained["thread"], trained["training_return"], trained["evaluation_return"]) == ("1", "4.0", "7.5")


def test_a_flush_leaves_nothing_behind(tmp_path):
    """A run flushes before it saves, so that a kill after that costs no row of before."""
    with StatsReporter(str(tmp_path), log_episodes=True) as reporter:
        reporter.episodes(_segment([1.0, 2.0], [1]), 0)
        reporter.episodes.agents.write("runner", 0, Ended(*(np.array([x]) for x in (0, 1, 2.0, 3, False))))
        reporter.flush()
        for name in ("episodes.csv", "agents.csv"):
            with open(tmp_path / name, newline="") as file:
                assert len(list(csv.DictReader(file))) == 1


def test_signals_of_each_kind(tmp_path):
    log, told = EpisodeLog(str(tmp_path)), []
    doubled = Signal("doubled", lambda trajectory: 2 * trajectory.reward, told.append)
    loss = Signal("loss", None, told.append)
    for signal in (doubled, loss):
        log.register(signal)
    loss.add([1.0, 3.0])
    log(_segment([1.0, 2.0], [1]), 0)
    log(_segment([5.0], [0]), 0)
    loss.add(4.0)
    log(_segment([6.0], [0]), 0)
    log.close()
    rows = _rows(tmp_path)
    assert [row["doubled/Max"] for row in rows] == ["4.0", "10.0", "12.0"]
    assert rows[0]["doubled/Mean"] == "3.0"
    assert (rows[0]["loss/Mean"], rows[0]["loss/Stdev"], rows[0]["loss/Max"], rows[0]["loss/Min"]) == (
        "2.0",
        "1.0",
        "3.0",
        "1.0",
    )
    assert rows[1]["loss/Mean"] == "nan"
    assert rows[2]["loss/Mean"] == "4.0"
    assert told == [[1.0, 3.0], 4.0]
    with pytest.raises(ValueError, match="computed by its per_step function"):
        doubled.add(1.0)


def test_a_signal_of_a_wrong_shape_is_told(tmp_path):
    log = EpisodeLog(str(tmp_path))
    log.register(Signal("bad", lambda trajectory: np.zeros(7), lambda values: None))
    with pytest.raises(ValueError, match="must give one number a step"):
        log(_segment([1.0, 2.0], [1]), 0)


def test_a_signal_that_comes_later_cuts_no_open_episode(tmp_path):
    """As those of losses do, which are known after the first iteration."""
    log = EpisodeLog(str(tmp_path))
    types, following = np.array([[FIRST], [MID]]), np.array([[MID], [MID]])
    log(SimpleNamespace(step_type=types, next_step_type=following, reward=np.array([[1.0], [2.0]])), 0)
    log.register(Signal("Train/loss", None, lambda values: None))
    types, following = np.array([[MID]]), np.array([[LAST]])
    log(SimpleNamespace(step_type=types, next_step_type=following, reward=np.array([[4.0]])), 0)
    log.close()
    assert [(row["length"], row["return"]) for row in _rows(tmp_path)] == [("3", "7.0")]


def test_resume_numbers_on_after_a_cut(tmp_path):
    log = EpisodeLog(str(tmp_path), flush_every=1)
    for step in (1, 2, 3):
        log.at(global_step=step)
        log(_segment([float(step)], [0]), 0)
    log.close()
    again = EpisodeLog(str(tmp_path))
    again.resume(2)
    again.at(global_step=3)
    again(_segment([9.0], [0]), 0)
    again.close()
    assert [(row["episode"], row["return"]) for row in _rows(tmp_path)] == [("1", "1.0"), ("2", "2.0"), ("3", "9.0")]


def test_what_came_after_a_checkpoint_goes_though_it_has_its_step(tmp_path):
    log = EpisodeLog(str(tmp_path), flush_every=100)
    log.at(global_step=2)
    log(_segment([1.0], [0]), 0)
    state = log.state_dict()
    assert len(_rows(tmp_path)) == 1, "what is counted is in the file"
    log(_segment([2.0], [0]), 0)
    log.close()
    again = EpisodeLog(str(tmp_path))
    again.load_state_dict(state)
    again.resume(2)
    again(_segment([9.0], [0]), 0)
    again.close()
    assert [(row["episode"], row["return"]) for row in _rows(tmp_path)] == [("1", "1.0"), ("2", "9.0")]


@pytest.mark.parametrize(("step", "left"), [(1, [1, 2]), (2, [1, 2, 3, 4]), (-1, [])])
def test_traces_of_what_is_forgotten_go_with_its_rows(tmp_path, step, left):
    with_traces = EpisodeLog(str(tmp_path), trace_every=1)
    for at in (1, 1, 2, 2):
        with_traces.at(global_step=at)
        with_traces(_segment([1.0], [0]), 0)
    with_traces.close()
    (tmp_path / "episodes" / "mine.csv").write_text("not a trace\n")
    EpisodeLog(str(tmp_path)).resume(step)
    assert sorted(p.name for p in (tmp_path / "episodes").iterdir()) == [*(f"{n}.csv" for n in left), "mine.csv"]
    assert len(_rows(tmp_path)) == len(left)


def test_rows_are_held_back_and_written_at_close(tmp_path):
    log = EpisodeLog(str(tmp_path), flush_every=3)
    log(_segment([1.0], [0]), 0)
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) <= 1
    for _ in range(2):
        log(_segment([1.0], [0]), 0)
    assert len(_rows(tmp_path)) == 3
    log(_segment([1.0], [0]), 0)
    log.close()
    assert len(_rows(tmp_path)) == 4


def test_traces_have_a_row_for_each_step(tmp_path):
    log = EpisodeLog(str(tmp_path), trace_every=2)
    log.register(Signal("doubled", lambda trajectory: 2 * trajectory.reward, lambda values: None))
    log(_segment([1.0, 2.0, 4.0], [2]), 0)
    log(_segment([5.0], [0]), 0)
    log(_segment([6.0, 7.0], [1]), 0)
    log(_segment([8.0], [0]), 1)
    log.close()
    assert sorted(p.name for p in (tmp_path / "episodes").iterdir()) == ["1.csv", "3.csv"]
    rows = _rows(tmp_path, "episodes/1.csv")
    assert [list(map(float, row.values())) for row in rows] == [[0, 1, 1, 2], [1, 2, 3, 4], [2, 4, 7, 8]]
    assert list(rows[0]) == ["step", "reward", "accumulated_reward", "doubled"]


def test_a_trace_is_of_its_own_episode_alone(tmp_path):
    log = EpisodeLog(str(tmp_path), trace_every=1)
    types = np.array([[FIRST], [MID], [FIRST], [MID]])  # The first one is left open.
    following = np.array([[MID], [MID], [MID], [LAST]])
    reward = np.array([[10.0], [20.0], [1.0], [2.0]])
    log(SimpleNamespace(step_type=types, next_step_type=following, reward=reward), 0)
    log.close()
    (row,) = _rows(tmp_path)
    steps = _rows(tmp_path, "episodes/1.csv")
    assert (row["length"], row["return"]) == ("2", "3.0")
    assert [float(step["accumulated_reward"]) for step in steps] == [1.0, 3.0]


def test_a_console_line_for_each_episode(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    log = EpisodeLog(str(tmp_path), console=True)
    log.at(iteration=4, in_heatup=1)
    log(_segment([1.0, 2.5], [1]), 2)
    log.close()
    assert lines == ["Episode 1 (environment 2.0): return 3.50, 2 steps, iteration 4, heat-up."]


def test_arguments_out_of_range(tmp_path):
    with pytest.raises(ValueError, match="flush_every=0"):
        EpisodeLog(str(tmp_path), flush_every=0)


def test_an_episode_begins_after_an_end_even_when_nothing_says_first(tmp_path):
    log = EpisodeLog(str(tmp_path))
    types, following = np.array([[FIRST], [MID], [MID]]), np.array([[LAST], [MID], [LAST]])
    log(SimpleNamespace(step_type=types, next_step_type=following, reward=np.array([[1.0], [2.0], [4.0]])), 0)
    log.close()
    assert [(row["length"], row["return"]) for row in _rows(tmp_path)] == [("1", "1.0"), ("2", "6.0")]
