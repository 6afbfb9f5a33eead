"""What the runs of a search are compared by, and that one search at a time is in a directory."""

from __future__ import annotations

import csv
import fcntl
import json
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from absl import flags
from absl.testing import flagsaver

from alf.bin import grid_search
from alf.bin.search_curves import curves_page
from alf.bin.search_report import Result, csv_text, read_result
from alf.bin.search_space import Search
from alf.trainers.run_index import Record, RunIndex
from tests.bin.running import run_here


def _run(root, judged_by, *evaluated):
    """A run whose final checkpoint has a worth of 1000, and whose evaluations are rows of step, return and chaser's return."""
    for folder in ("train", "eval"):
        (root / folder).mkdir(parents=True)
    (root / "train" / "stats.jsonl").write_text('{"env_steps": 7, "Metrics/AverageReturn": 3.0}\n')
    lines = ["global_step,Metrics/AverageReturn,Metrics/chaser/AverageReturn", *evaluated]
    (root / "eval" / "stats.csv").write_text("\n".join(lines) + "\n")
    index = RunIndex(str(root))
    index.run["judged_by"] = judged_by
    files = ["train/algorithm/ckpt-3.index"]
    index.add(Record("ckpt-3", 3, files=files, reward=1000.0, reward_episodes=4, kinds=["final"]))
    index.save()
    return read_result(str(root), Result(root.name, 0, 0, {}, "finished"))


@pytest.mark.parametrize(
    ("judged_by", "evaluated", "expected"),
    [
        ("rating", ("1,5.0,2.0", "2,6.0,1.0"), (6.0, "evaluation", None)),
        ("rating", (), (3.0, "training", None)),
        ("chaser", ("1,5.0,2.0", "2,6.0,1.0"), (1.0, "evaluation", 1000.0)),
        (None, ("2,6.0,",), (6.0, "evaluation", 1000.0)),
        (None, ("1,5.0,", "2,nan,"), (3.0, "training", 1000.0)),
    ],
)
def test_the_score_is_the_last_evaluation_and_never_a_rating(judged_by, evaluated, expected, tmp_path):
    result = _run(tmp_path / "run", judged_by, *evaluated)
    assert (result.score, result.source, result.best) == expected
    (row,) = csv.DictReader(csv_text([result]).splitlines())
    assert (row["score"], row["source"]) == (str(expected[0]), expected[1])


def _write(file, *lines):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def test_curves_of_a_search_that_collects_nothing_are_those_of_evaluations(tmp_path):
    """A dataset has no environment steps, and its training no episodes."""
    results = [Result(name, i, 0, {"A.x": str(i)}, "finished") for i, name in enumerate(("a", "b"))]
    for result in results:
        train, evaluation = (tmp_path / result.name / kind / "stats.csv" for kind in ("train", "eval"))
        _write(train, "global_step,env_steps,Losses/loss", "10,0,3.0", "20,0,2.0", "30,0,1.0")
        _write(evaluation, "global_step,env_steps,Metrics/AverageReturn", "10,0,100.0", "30,0,300.0")
    for metric, points in ((None, 2), ("Losses/loss", 3)):
        text = curves_page(str(tmp_path), results, "t", metric)
        assert "training steps" in text
        assert "environment steps" not in text
        page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        lines = [line.get("points").split() for line in page.iter("{http://www.w3.org/2000/svg}polyline")]
        assert lines
        assert all(len({point.split(",")[0] for point in line}) == points for line in lines)


def test_the_score_is_of_an_evaluation_that_came_to_its_end(tmp_path):
    _write(
        tmp_path / "eval" / "stats.csv",
        "global_step,episodes,complete,Metrics/AverageReturn",
        "1,10,,40.0",  # of an earlier version
        "2,10,1,50.0",
        "3,4,0,99.0",
    )
    result = read_result(str(tmp_path), Result("r", 0, 0, {}, "finished"))
    assert (result.score, result.source) == (50.0, "evaluation")


def test_a_run_of_whose_evaluations_no_episode_ended_has_no_score_of_them(tmp_path):
    _write(tmp_path / "eval" / "stats.csv", "global_step,episodes,complete", "1,0,0", "2,0,0")
    assert read_result(str(tmp_path), Result("r", 0, 0, {}, "finished")).score is None


def test_the_score_of_a_run_that_writes_one_kind_of_table(tmp_path):
    _write(
        tmp_path / "train" / "stats.csv",
        "global_step,env_steps,seconds,Metrics/AverageReturn",
        "1,10,0.5,1.0",
        "2,20,1.5,3.0",
    )
    result = read_result(str(tmp_path), Result("r", 0, 0, {}, "finished"))
    assert (result.score, result.source, result.env_steps, result.seconds) == (3.0, "training", 20, 1.5)


def test_a_gin_file_that_has_changed_is_told(tmp_path, logged):
    file = tmp_path / "a.gin"
    search, what = Search(({"A.x": "1"},)), {"gin_files": [str(file)], "bindings": []}
    for text, told in (("A.y = 1", 0), ("A.y = 1", 0), ("A.y = 2", 1), ("A.y = 2", 1)):
        file.write_text(text)
        grid_search.check_plan(str(tmp_path), search, what)
        assert logged == [f"{file} has changed since this search began: its runs are not all by the same."] * told
    plan = json.loads((tmp_path / grid_search.PLAN_FILE).read_text())
    del plan["contents"]  # as an earlier version wrote it
    (tmp_path / grid_search.PLAN_FILE).write_text(json.dumps(plan))
    grid_search.check_plan(str(tmp_path), search, what)
    assert len(logged) == 1


def test_one_search_at_a_time_is_in_a_directory(tmp_path, logged):
    (tmp_path / "s.json").write_text('{"parameters": {"PPOLoss.td_lambda": [0.8]}}')
    given = [f"--root_dir={tmp_path}", "--gin_file=ppo_cart_pole", f"--search_config={tmp_path / 's.json'}"]
    with open(tmp_path / grid_search.LOCK_FILE, "w", encoding="utf-8") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert run_here(grid_search.main, *given) == 2
    assert f"A search is going on in --root_dir={tmp_path}" in logged[-1]
    assert not (tmp_path / grid_search.PLAN_FILE).exists()


@pytest.mark.parametrize(("metric", "warned"), [("Metrics/AverageRetrun", True), ("Metrics/AverageReturn", False)])
def test_a_metric_that_no_run_has_is_told(metric, warned, tmp_path, logged, monkeypatch):
    def finished(pool, runs):
        for run in runs:
            (tmp_path / "s" / run.name / "train").mkdir(parents=True)
            (tmp_path / "s" / run.name / "train" / "stats.jsonl").write_text('{"Metrics/AverageReturn": 3.0}')
        return {run.name: "finished" for run in runs}

    monkeypatch.setattr(grid_search.Pool, "run", finished)
    (tmp_path / "s.json").write_text('{"parameters": {"A.x": [1, 2]}}')
    given = ["--gin_file=ppo_cart_pole", f"--search_config={tmp_path / 's.json'}", f"--metric={metric}"]
    assert run_here(grid_search.main, f"--root_dir={tmp_path / 's'}", *given) == 0
    told = f"No run that finished has a value of --metric={metric}: the same command with the name of a column of"
    assert any(line.startswith(told) for line in logged) == warned


def test_a_search_without_scores_is_told(tmp_path, logged, monkeypatch):
    monkeypatch.setattr(grid_search.Pool, "run", lambda pool, runs: {run.name: "finished" for run in runs})
    (tmp_path / "s.json").write_text('{"parameters": {"A.x": [1, 2]}}')
    given = ["--gin_file=ppo_cart_pole", f"--search_config={tmp_path / 's.json'}"]
    assert run_here(grid_search.main, f"--root_dir={tmp_path / 's'}", *given) == 0
    assert any(
        line.startswith("No run that finished has a score: no episode has ended in them, or ") for line in logged
    )


@pytest.mark.parametrize("flag", ["gin_param", "gin_bindings"])
def test_a_binding_that_is_searched_cannot_be_given_too(flag, tmp_path, logged):
    (tmp_path / "s.json").write_text('{"parameters": {"PPOLoss.td_lambda": [0.8]}}')
    given = ["--gin_file=ppo_cart_pole", f"--search_config={tmp_path / 's.json'}", f"--{flag}=PPOLoss.td_lambda = 0.9"]
    assert run_here(grid_search.main, f"--root_dir={tmp_path / 's'}", *given) == 2
    assert logged == [
        "PPOLoss.td_lambda is searched, so that a binding of it on the command line has no effect: leave one of them out."
    ]


class _Process:
    """Stands for a training run, which writes how it stands into its index when it ends with a code."""

    pid = 1

    def __init__(self, command, status, code):
        self.root = next(part for part in command if part.startswith("--root_dir=")).partition("=")[2]
        self.status, self.code, self.returncode = status, code, None

    def end(self):
        index = RunIndex(self.root)
        index.run["status"] = self.status
        index.save()
        self.returncode = self.code

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        self.end()

    def wait(self):
        assert self.returncode is not None


@pytest.fixture
def _no_flags():
    with flagsaver.flagsaver():
        flags.FLAGS(["alf"])
        yield


_RUN = Result("000-r0", 0, 0, {"A.x": "1"}, "waiting")


@pytest.mark.usefixtures("_no_flags")
@pytest.mark.parametrize(
    ("status", "code", "state"), [("finished", 0, "finished"), ("interrupted", 0, "failed"), ("finished", 1, "failed")]
)
def test_a_run_that_ended_before_its_end_is_not_finished(status, code, state, tmp_path, monkeypatch):
    def start(command, **options):
        process = _Process(command, status, code)
        process.end()
        return process

    monkeypatch.setattr(grid_search.subprocess, "Popen", start)
    assert grid_search.Pool(str(tmp_path), Search(({"A.x": "1"},))).run([_RUN]) == {_RUN.name: state}


@pytest.mark.usefixtures("_no_flags")
@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_run_that_finishes_while_it_is_interrupted_is_finished(status, tmp_path, monkeypatch):
    def interrupt(secs):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid_search.subprocess, "Popen", lambda command, **options: _Process(command, status, 0))
    monkeypatch.setattr(grid_search, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
    pool = grid_search.Pool(str(tmp_path), Search(({"A.x": "1"},)))
    with pytest.raises(KeyboardInterrupt):
        pool.run([_RUN])
    assert pool.stop() == {_RUN.name: status}
