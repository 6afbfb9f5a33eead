"""The comparison of what is learned: its statistics, which runs count, and the page that it writes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.environments import create_environment
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils
from benchmarks import _learning_report, _learning_runs, _learning_tasks, _machine, _statistics, learning

TASK = _learning_tasks.Task("Walk, PPO", 4000, "ppo_cart_pole", {"algorithm": "PPO"}, seeds=2, episodes=2)
EXAMPLES = _machine.ROOT / "examples"


def _record(system: str, seed: int, score: float, task: _learning_tasks.Task = TASK) -> dict[str, Any]:
    curve = [[step, score * step / task.steps] for step in range(100, task.steps + 1, 100)]
    described = {"settings": task.settings(system), "curve": curve, "returns": [score - 1.0, score + 1.0]}
    return {"system": system, "seed": seed, "seconds": 1.0, **described}


@pytest.fixture
def _here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps runs in a folder of the test, of one task alone."""
    monkeypatch.setattr(_machine, "RESULTS", tmp_path)
    monkeypatch.setattr(learning, "TASKS", {"walk": TASK})
    monkeypatch.setattr(_learning_report, "TASKS", {"walk": TASK})


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_interquartile_mean_is_that_of_a_plain_loop(scores: list[int]) -> None:
    left = sorted(scores)
    for _ in range(len(scores) // 4):
        left.remove(min(left))
        left.remove(max(left))
    assert _statistics.interquartile_mean(np.array(scores)) == pytest.approx(sum(left) / len(left))


def test_the_interval_is_that_of_all_samples_of_the_runs() -> None:
    """Of three runs there are 27 samples with replacement, each as likely: their quantiles are known."""
    scores = [0.0, 1.0, 5.0]
    means = sorted(sum(sample) / 3 for sample in itertools.product(scores, repeat=3))
    estimate = _statistics.of_runs(scores, level=0.8)
    # The tenth and the ninetieth of hundred, of 27.
    assert estimate == pytest.approx((2.0, means[2], means[24]), abs=1e-9)


def test_the_interval_narrows_with_runs_and_has_no_width_for_equal_ones() -> None:
    assert _statistics.of_runs([3.0] * 5) == (3.0, 3.0, 3.0)
    few, many = _statistics.of_runs([1.0, 2.0, 3.0]), _statistics.of_runs([1.0, 2.0, 3.0] * 20)
    assert many.high - many.low < few.high - few.low
    assert _statistics.of_runs([1.0, 2.0, 3.0]) == few


def test_a_difference_has_the_uncertainty_of_both() -> None:
    exact, wide = [5.0] * 4, [0.0, 2.0, 4.0, 6.0]
    assert _statistics.of_difference(exact, exact) == (0.0, 0.0, 0.0)
    one, other = _statistics.of_difference(exact, wide), _statistics.of_difference(wide, exact)
    assert one == pytest.approx((2.0, -other.high, -other.low), abs=0.2)
    assert one.low < one.value < one.high


def test_what_a_seed_makes_hard_for_both_is_no_part_of_their_difference() -> None:
    """A little better from the same starts, of which some are much harder, is better for sure."""
    hard = [-100.0, -200.0, -150.0, -120.0, -180.0]
    better = [score + 1.0 for score in hard]
    assert _statistics.of_difference(better, hard) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("others", [[], [1.0]])
def test_a_difference_is_of_the_same_seeds(others: list[float]) -> None:
    with pytest.raises(ValueError, match="the same of both"):
        _statistics.of_difference([1.0, 2.0], others)


def test_a_row_compares_the_seeds_that_both_have() -> None:
    runs = [_record("alf", 0, 5.0), _record("alf", 1, 100.0), _record("sb3", 0, 3.0), _record("sb3", 2, -100.0)]
    assert _learning_report.row(TASK, runs)["difference"] == "2.0"


def test_no_runs_have_no_mean() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        _statistics.of_runs([])


def test_a_curve_is_thinned_to_what_was_known_at_each_distance() -> None:
    points = [(step, float(step)) for step in range(30, 1000, 7)]
    found = _learning_runs.thinned(points, 1000)
    assert [step for step, _ in found] == list(range(50, 1001, 25))
    for step, value in found:
        assert value == max(s for s, _ in points if s <= step)
    assert _learning_runs.thinned([], 1000) == []


def test_a_curve_counts_the_steps_of_a_heatup() -> None:
    assert _learning_runs.with_heatup([(8, 1.0), (1000, 2.0)], 1208) == [(216, 1.0), (1208, 2.0)]
    assert _learning_runs.with_heatup([(8, 1.0), (1000, 2.0)], 1000) == [(8, 1.0), (1000, 2.0)]


def test_means_of_episodes_are_of_the_last_ones() -> None:
    episodes = [(10, 1.0), (20, 3.0), (30, 8.0), (40, 1.0)]
    assert _learning_runs.means(episodes, over=2) == [(10, 1.0), (20, 2.0), (30, 5.5), (40, 4.5)]


@pytest.mark.usefixtures("_here")
def test_runs_that_are_kept_are_not_made_again() -> None:
    def jobs(seeds: int | None = None) -> list[tuple[str, int]]:
        return [(job.system, job.seed) for job in learning.missing(["walk"], ["alf", "sb3"], seeds)]

    assert jobs() == [("alf", 0), ("sb3", 0), ("alf", 1), ("sb3", 1)]
    _learning_runs.keep("walk", _record("alf", 0, 5.0))
    _learning_runs.keep("walk", _record("sb3", 1, 5.0))
    assert jobs() == [("sb3", 0), ("alf", 1)]
    assert jobs(seeds=1) == [("sb3", 0)]
    assert jobs(seeds=3) == [("sb3", 0), ("alf", 1), ("alf", 2), ("sb3", 2)]


@pytest.mark.usefixtures("_here")
def test_runs_of_other_settings_do_not_count() -> None:
    _learning_runs.keep("walk", _record("alf", 0, 5.0))
    _learning_runs.keep("walk", _record("alf", 0, 7.0))
    _learning_runs.keep("walk", _record("alf", 1, 9.0, dataclasses.replace(TASK, steps=8000)))
    (kept,) = _learning_runs.recorded("walk", TASK)
    # Of two runs of the same settings the later one.
    assert kept["returns"] == [6.0, 8.0]
    longer = dataclasses.replace(TASK, params=("PPOLoss.gamma=0.9",))
    assert _learning_runs.recorded("walk", longer) == []
    assert _learning_runs.recorded("walk", dataclasses.replace(TASK, episodes=3)) == []


@pytest.mark.usefixtures("_here")
def test_a_line_that_a_crash_cut_off_is_a_run_that_is_missing(tmp_path: pathlib.Path) -> None:
    _learning_runs.keep("walk", _record("alf", 0, 5.0))
    path = tmp_path / "learning" / "walk.jsonl"
    path.write_text(path.read_text()[:-20])
    assert _learning_runs.recorded("walk", TASK) == []
    _learning_runs.keep("walk", _record("alf", 0, 6.0))
    assert len(_learning_runs.recorded("walk", TASK)) == 1


def test_a_task_without_a_peer_has_no_runs_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(_machine, "RESULTS", tmp_path)
    monkeypatch.setattr(learning, "TASKS", {"walk": dataclasses.replace(TASK, peer=None)})
    assert [job.system for job in learning.missing(["walk"], ["alf", "sb3"], None)] == ["alf", "alf"]


def test_the_digest_is_of_what_is_bound(tmp_path: pathlib.Path) -> None:
    base, top = tmp_path / "base.gin", tmp_path / "top.gin"
    base.write_text("# A comment.\na.b = 1\n")
    top.write_text("include 'base.gin'\n\nc.d = 2\n")
    before = _learning_tasks.digest(top)
    base.write_text("# Another comment.\n\na.b = 1\n")
    assert _learning_tasks.digest(top) == before
    base.write_text("a.b = 3\n")
    assert _learning_tasks.digest(top) != before


@pytest.mark.usefixtures("_here")
def test_the_page_has_table_and_picture_and_keeps_its_text(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "docs" / "learning.md"
    page.parent.mkdir()
    page.write_text(f"Before.\n{_learning_report._BEGIN}\nold\n{_learning_report._END}\nAfter.\n")
    for seed, (ours, theirs) in enumerate([(100.0, 90.0), (300.0, 130.0)]):
        _learning_runs.keep("walk", _record("alf", seed, ours))
        _learning_runs.keep("walk", _record("sb3", seed, theirs))
    _learning_report.write(page)
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("\nAfter.\n")
    assert "old" not in text
    assert "| Walk, PPO | 4,000 | 2 | 200 [100, 300] | 110 [90, 130] | 90 [10, 170] |" in text
    assert "![Walk, PPO](img/learning_walk.png)" in text
    assert (page.parent / "img" / "learning_walk.png").stat().st_size > 1000
    _learning_report.write(page)
    assert page.read_text() == text


@pytest.mark.usefixtures("_here")
def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "learning.md"
    page.write_text("Nothing here.\n")
    with pytest.raises(ValueError, match="needs one line"):
        _learning_report.write(page)
    assert page.read_text() == "Nothing here.\n"


@pytest.mark.parametrize(
    ("runs", "seeds", "ours", "difference"),
    [
        ([("alf", 0)], "1", "5.0", None),
        ([("alf", 0), ("sb3", 0), ("alf", 1)], "2 and 1", "5.0 [5.0, 5.0]", "0.0"),
        ([("alf", 0), ("sb3", 0), ("alf", 1), ("sb3", 1)], "2", "5.0 [5.0, 5.0]", "0.0 [0.0, 0.0]"),
    ],
)
def test_a_row_tells_its_seeds_and_an_interval_where_there_are_several(
    runs: list[tuple[str, int]], seeds: str, ours: str, difference: str | None
) -> None:
    row = _learning_report.row(TASK, [_record(system, seed, 5.0) for system, seed in runs])
    assert (row["seeds"], row["alf"], row["difference"]) == (seeds, ours, difference)


@pytest.mark.parametrize("name", _learning_tasks.TASKS)
def test_no_run_that_is_kept_stopped_early(name: str) -> None:
    task = _learning_tasks.TASKS[name]
    assert all(run["steps"] >= task.steps for run in _learning_runs.recorded(name, task))


def test_a_run_that_was_told_to_stop_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as any other, with its files and exit code 0."""

    def stopped(arguments: list[str]) -> None:
        root = next(a.partition("=")[2] for a in arguments if a.startswith("--root_dir"))
        if arguments[0] == "alf.bin.train":
            pathlib.Path(root, "train").mkdir(parents=True)
            writer = tf.summary.create_file_writer(f"{root}/train")
            with writer.as_default():
                tf.summary.scalar("Driver/env_steps", 13_272.0, step=1)
            writer.close()
        else:
            output = next(a.partition("=")[2] for a in arguments if a.startswith("--output"))
            pathlib.Path(output).write_text(json.dumps({"results": {"deterministic": {"returns": [1.0]}}}))

    monkeypatch.setattr(_learning_runs, "_command", stopped)
    with pytest.raises(RuntimeError, match="td3_pendulum stopped after 13272 of 20000 steps"):
        _learning_runs.run(_learning_tasks.TASKS["pendulum_td3"], "alf", 0, None)


def test_the_page_shows_the_runs_that_are_kept() -> None:
    """Whoever changes an example or adds a run is told to write the page anew: python -m benchmarks.learning --report."""
    page = _learning_report.PAGE.read_text()
    assert _learning_report.section() in page
    for name in _learning_tasks.TASKS:
        shown = f"(img/learning_{name}.png)" in page
        assert shown == (_learning_report.PAGE.parent / "img" / f"learning_{name}.png").exists()


@pytest.mark.parametrize("name", sorted({task.example for task in _learning_tasks.TASKS.values()}))
def test_the_examples_make_their_algorithm(name: str) -> None:
    gin.clear_config()
    try:
        gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], [])
        for package, kind in {"Box2D": "Lunar", "mujoco": "-v4"}.items():
            if kind in gin.query_parameter("create_environment.env_name"):
                pytest.importorskip(package)
        env = create_environment(num_parallel_environments=2, seed=0)
        algorithm = build_algorithm(TrainerConfig(root_dir="unused"), env)
        assert algorithm.acting_variables()
        env.close()
    finally:
        gin.clear_config()


@pytest.mark.parametrize("name", sorted(_learning_tasks.TASKS))
def test_both_systems_have_the_same_environment(name: str) -> None:
    task = _learning_tasks.TASKS[name]
    if task.peer is not None:
        gin_file = (EXAMPLES / f"{task.example}.gin").read_text()
        assert f"create_environment.env_name = '{task.title.split(',')[0]}'" in gin_file
        assert (
            task.peer["environment"].split("-")[0].removesuffix("NoFrameskip") == task.title.split(",")[0].split("-")[0]
        )
        assert task.peer["algorithm"] in task.title
    assert math.log10(task.steps) >= 4
