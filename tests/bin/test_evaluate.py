"""The evaluate command: exact episodes, their numbers, and the worker that watches a run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading

import numpy as np
import pytest

from alf.bin import command_line, evaluate, output_flag, train
from alf.bin import trained as waiting
from alf.bin.episodes import run_episodes, summary
from alf.bin.output_flag import append_line, read_lines
from alf.trainers import checkpointing
from alf.trainers.run_index import Record, RunIndex
from alf.trainers.run_lock import RunLock
from tests.bin.running import copy_run, run_here, snapshot


def _evaluate(root, *arguments):
    return run_here(evaluate.main, f"--root_dir={root}", "--random_seed=3", *arguments)


def test_a_result_that_cannot_be_written_is_told(tmp_path):
    for write in (output_flag.write, output_flag.append_line):
        with pytest.raises(
            command_line.UsageError, match=r"^--output=.* cannot be written \(Is a directory\): give another"
        ):
            write(str(tmp_path), {})


def test_numbers_against_numpy():
    returns, lengths = [3.0, -1.0, 10.0, 4.0], [5, 6, 7, 9]
    found = summary(returns, lengths, [False, False, True, True])
    assert found["mean"] == np.mean(returns)
    assert found["std"] == np.std(returns)
    assert (found["min"], found["max"], found["median"]) == (-1.0, 10.0, 3.5)
    assert found["success_rate"] == 0.5
    assert found["length"]["mean"] == np.mean(lengths)
    assert summary(returns, lengths)["success_rate"] is None


def test_numbers_that_are_not_finite_are_null():
    found = summary([1.0, float("nan")], [1, 1])
    assert found["mean"] is None
    assert found["returns"] == [1.0, None]
    json.dumps(found, allow_nan=False)


def test_no_episodes_is_an_error():
    with pytest.raises(ValueError, match="num_episodes=0 must be at least 1"):
        run_episodes(None, None, 0, 0.0)


def test_both_modes_as_json(trained, tmp_path, logged, monkeypatch):
    before = snapshot(trained)
    path = tmp_path / "new" / "result.json"
    monkeypatch.chdir(trained.parent)
    assert _evaluate(f"./{trained.name}/", "--num_episodes=3", "--num_parallel_environments=2", f"--output={path}") == 0
    result = json.loads(path.read_text())
    assert (result["checkpoint"], result["step"], result["random_seed"]) == ("ckpt-2", 2, 3)
    assert result["created"] == RunIndex.load(str(trained)).find("2").created
    assert set(result["results"]) == {"deterministic", "stochastic"}
    for mode, numbers in result["results"].items():
        assert numbers["episodes"] == len(numbers["returns"]) == 3
        assert numbers["returns"] == numbers["lengths"]  # CartPole
        assert numbers["mean"] == pytest.approx(np.mean(numbers["returns"]))
        assert numbers["steps"] == sum(numbers["lengths"])
        line = next(line for line in logged if line.startswith(f"ckpt-2, {mode}"))
        assert f"{numbers['mean']:.2f} ± {numbers['std']:.2f} over 3 episodes" in line
    assert {"alf", "python", "tensorflow", "gymnasium"} <= set(result["versions"])
    assert not any("which this run has not" in line or "goes on without" in line for line in logged), "of optimisers"
    assert snapshot(trained) == before


def test_one_seed_gives_one_result(trained, tmp_path):
    found = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.json"
        assert _evaluate(trained, "--num_episodes=2", "--stochastic", f"--output={path}", "--checkpoint=1") == 0
        found.append(json.loads(path.read_text()))
    assert [f["checkpoint"] for f in found] == ["ckpt-1", "ckpt-1"]
    assert [list(f["results"]) for f in found] == [["stochastic"]] * 2
    assert found[0]["results"]["stochastic"]["returns"] == found[1]["results"]["stochastic"]["returns"]


def test_of_more_environments_than_episodes_the_rest_are_left_out(trained, tmp_path):
    found = []
    for rows in (2, 5):
        path = tmp_path / f"{rows}.json"
        arguments = ("--num_episodes=2", f"--num_parallel_environments={rows}", "--deterministic")
        assert _evaluate(trained, *arguments, f"--output={path}") == 0
        found.append(json.loads(path.read_text()))
    assert [f["num_parallel_environments"] for f in found] == [2, 2]
    played = [f["results"]["deterministic"] for f in found]
    assert played[0]["returns"] == played[1]["returns"]
    assert played[0]["steps"] == played[1]["steps"]


def test_episodes_are_played_side_by_side_as_in_the_evaluations_of_the_run(trained, tmp_path):
    path, video = tmp_path / "r.json", tmp_path / "v.gif"
    rows = []
    for arguments in (
        ("--num_episodes=3",),
        ("--num_episodes=9",),
        ("--num_episodes=20", "--gin_param=create_environment.num_parallel_environments=64"),
        ("--num_episodes=2", f"--record_file={video}"),
    ):
        assert _evaluate(trained, *arguments, "--nostochastic", f"--output={path}") == 0
        rows.append(json.loads(path.read_text())["num_parallel_environments"])
    assert rows == [3, 4, 10, 1], "the run has 4"


def test_success_and_video(trained, tmp_path, logged):
    path, video = tmp_path / "r.json", tmp_path / "v.gif"
    arguments = ("--num_episodes=1", "--success_threshold=0", "--nostochastic")
    assert _evaluate(trained, *arguments, f"--output={path}", f"--record_file={video}") == 0, logged
    assert json.loads(path.read_text())["results"]["deterministic"]["success_rate"] == 1.0
    assert video.stat().st_size > 0


def test_mistakes_are_told_in_a_sentence(trained, tmp_path, logged):
    for wrong in (
        ("--num_episodes=0",),
        ("--num_parallel_environments=0",),
        ("--output=r.txt",),
        ("--watch", "--output=r.json"),
        ("--watch", "--checkpoint=best"),
        ("--nodeterministic", "--nostochastic"),
        ("--max_evaluation_steps=5",),
        ("--max_wait_secs=5",),
        ("--checkpoint=best",),
    ):
        assert _evaluate(trained, *wrong) == 2, wrong
    shutil.copy(trained / "configured.gin", tmp_path)
    assert _evaluate(tmp_path) == 2
    text = "\n".join(logged)
    for expected in (
        "--num_episodes=0 must be at least 1",
        "--num_parallel_environments=0 must be at least 1",
        "--output=r.txt must end in .json",
        "--output=r.json must end in .jsonl",
        "leave --checkpoint=best out",
        "leave nothing to evaluate",
        "is for --watch",
        "--max_wait_secs has no effect here",
        "There is no checkpoint 'best'",
        "train first",
    ):
        assert expected in text


def test_an_endless_episode_is_an_error(trained, logged, monkeypatch):
    monkeypatch.setattr("alf.bin.evaluate.run_episodes", _impatient(evaluate.run_episodes))
    assert _evaluate(trained, "--num_episodes=1") == 2
    assert any("An episode has not ended after 3 steps (0 of 1 have)" in line for line in logged)


def _impatient(run_episodes):
    return lambda *args, **kwargs: run_episodes(*args, **kwargs, max_steps_per_episode=3)


def test_a_worker_evaluates_every_checkpoint_once(trained, tmp_path, logged):
    run, path = tmp_path / "run", tmp_path / "e.jsonl"
    copy_run(trained, run, 1)
    watch = ("--watch", "--num_episodes=1", "--deterministic", f"--output={path}")
    assert _evaluate(run, *watch, "--max_wait_secs=0.1") == 0
    assert [line["step"] for line in read_lines(path)] == [1]
    # Training goes on, and the worker is started again.
    copy_run(trained, run, 2, status="finished")
    assert _evaluate(run, *watch) == 0
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    text = "\n".join(logged)
    assert "1 checkpoints are in" in text
    assert "The run is finished" in text
    steps = sum(line["results"]["deterministic"]["steps"] for line in read_lines(path)[1:])
    assert f"Evaluated 1 checkpoints with {steps} environment steps." in text


def test_a_checkpoint_is_done_when_all_that_is_asked_for_is(trained, tmp_path):
    run, path = tmp_path / "run", tmp_path / "e.jsonl"
    copy_run(trained, run, 1, status="finished")
    asked = [("1", "--deterministic"), ("2", "--deterministic"), ("2", "--stochastic"), ("2", "--deterministic")]
    for episodes, mode in asked:
        assert _evaluate(run, "--watch", mode, f"--num_episodes={episodes}", f"--output={path}") == 0
    found = [(mode, numbers["episodes"]) for line in read_lines(path) for mode, numbers in line["results"].items()]
    assert found == [("deterministic", 1), ("deterministic", 2), ("stochastic", 2)]


def test_a_finished_run_that_is_being_extended_is_waited_for(tmp_path, logged):
    index = RunIndex(str(tmp_path))
    index.run["status"] = "finished"
    index.save()
    with RunLock(str(tmp_path)):
        assert waiting.wait_for(str(tmp_path), lambda index: None, 0.01, 0.05) is None
    assert logged[-1] == "No new checkpoint came within 0.05 s."


def test_runs_may_share_a_file_of_results(trained, tmp_path):
    path = tmp_path / "all.jsonl"
    for name in ("a", "b"):
        copy_run(trained, tmp_path / name, 1, status="finished")
        assert _evaluate(tmp_path / name, "--watch", "--num_episodes=1", "--deterministic", f"--output={path}") == 0
    found = [(line["root_dir"], line["step"]) for line in read_lines(path)]
    assert found == [(str(tmp_path / name), 1) for name in ("a", "b")]


def test_a_worker_evaluates_a_run_that_took_the_place_of_another(trained, tmp_path):
    run, path = tmp_path / "run", tmp_path / "e.jsonl"
    copy_run(trained, run, 1, status="finished")
    watch = ("--watch", "--num_episodes=1", "--deterministic", f"--output={path}")
    assert _evaluate(run, *watch) == 0
    index = RunIndex.load(str(run))
    index.add(dataclasses.replace(index.find("1"), created="2001-02-03T04:05:06"))
    index.save()
    assert _evaluate(run, *watch) == 0
    assert [line["created"] == "2001-02-03T04:05:06" for line in read_lines(path)] == [False, True]


@pytest.mark.parametrize("name", ["latest", "2", "ckpt-2"])
def test_names_are_of_checkpoints_of_the_run_wherever_one_stands(trained, tmp_path, monkeypatch, name):
    """A folder of that name in the working directory, such as a link to the last run, is another matter."""
    copy_run(trained, tmp_path / name, 1, status="finished")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.json"
    given = () if name == "latest" else (f"--checkpoint={name}",)
    assert _evaluate(trained, "--num_episodes=1", "--deterministic", f"--output={path}", *given) == 0
    assert json.loads(path.read_text())["path"].startswith(str(trained))
    assert _evaluate(trained, "--num_episodes=1", "--deterministic", f"--output={path}", f"--checkpoint=./{name}") == 0
    assert json.loads(path.read_text())["checkpoint"] == "ckpt-1"


def test_a_result_may_be_put_into_the_home_folder(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert _evaluate(trained, "--num_episodes=1", "--deterministic", "--output=~/r.json") == 0
    assert (tmp_path / "home" / "r.json").is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["home"]


def test_a_worker_leaves_when_a_stop_condition_ends_the_run(trained, tmp_path, logged):
    """Training with a worker beside it: the mark that the run leaves in its index ends the worker."""
    run, path = tmp_path / "run", tmp_path / "e.jsonl"
    copy_run(trained, run, 1)
    found = []
    worker = threading.Thread(target=lambda: found.append(waiting.wait_for(str(run), lambda index: None, 0.05)))
    worker.start()
    stop = [f"--root_dir={run}", "--gin_param=TrainerConfig.num_iterations=100000"]
    stop += ["--gin_param=import alf.trainers.stopping", "--gin_param=TrainerConfig.stop_conditions=[@alf.TimeLimit()]"]
    assert run_here(train.main, *stop, "--gin_param=alf.TimeLimit.secs=0.2") == 0, logged
    worker.join(30)
    assert not worker.is_alive()
    assert found == [None]
    assert "The run is finished: the time limit of 0.2 s is reached" in logged
    assert _evaluate(run, "--watch", "--num_episodes=1", "--deterministic", f"--output={path}") == 0
    assert [line["step"] for line in read_lines(path)] == [r.step for r in RunIndex.load(str(run)).records()]


def test_a_worker_ends_after_the_steps_asked_for(trained, logged):
    assert _evaluate(trained, "--watch", "--num_episodes=1", "--deterministic", "--max_evaluation_steps=1") == 0
    text = "\n".join(logged)
    assert "--max_evaluation_steps=1 is reached" in text
    assert "Evaluated 1 checkpoints" in text


def test_the_steps_of_all_checkpoints_count_towards_the_limit(tmp_path, monkeypatch, logged):
    index = RunIndex(str(tmp_path))
    for step in (1, 2, 3):
        index.add(Record(f"ckpt-{step}", step, files=[f"train/algorithm/ckpt-{step}.index"]))
    index.save()
    monkeypatch.setattr(
        evaluate.trained, "restore_listed", lambda root, algorithm, name: waiting.Restored(name, name, int(name[-1]))
    )
    monkeypatch.setattr(evaluate, "evaluate", lambda plan, algorithm: {mode: {"steps": 5} for mode in plan.modes})
    written = []
    assert (
        evaluate.watch(str(tmp_path), None, evaluate.Plan(1), set(), written.append, max_wait_secs=0.01, max_steps=15)
        == 2
    )
    assert [line["checkpoint"] for line in written] == ["ckpt-1", "ckpt-2"]
    assert logged[-1] == "Evaluated 2 checkpoints with 20 environment steps."


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({}, {(7, "then")}),
        ({"num_episodes": 3}, set()),
        ({"modes": ("deterministic", "stochastic")}, set()),
        ({"success_threshold": 2.0}, set()),
        ({"behavior_from": ("runner=runs/other",)}, set()),
    ],
)
def test_a_result_answers_only_what_it_was_asked(asked, answered, tmp_path):
    plan = evaluate.Plan(2, modes=("deterministic",), success_threshold=1.0)
    numbers = summary([1.0, 2.0], [3, 4])
    restored = waiting.Restored("p", "ckpt-7", 7, "then")
    result = evaluate.report(str(tmp_path), restored, plan, {"deterministic": numbers})
    append_line(str(tmp_path / "e.jsonl"), result)
    plan = dataclasses.replace(plan, **asked)
    assert evaluate._evaluated(str(tmp_path / "e.jsonl"), str(tmp_path), plan) == answered


def test_a_worker_leaves_out_what_is_damaged(trained, tmp_path, logged):
    copy_run(trained, tmp_path, 1, 2, status="finished")
    (data,) = (tmp_path / "train" / "algorithm").glob("ckpt-1.data-*")
    data.write_bytes(b"x" * 10)
    assert _evaluate(tmp_path, "--watch", "--num_episodes=1", "--deterministic") == 0
    assert any("ckpt-1 is left out: Checkpoint" in line for line in logged)
    assert "Evaluated 1 checkpoints" in logged[-1]


def test_a_worker_tells_that_nobody_trains(trained, tmp_path, logged):
    copy_run(trained, tmp_path, 1, status="failed")
    assert waiting.wait_for(str(tmp_path), lambda index: None, 0.01, 0.1) is None
    told = [line for line in logged if "nobody trains there now" in line]
    assert len(told) == 1
    assert "The run has failed (" in told[0]


def test_a_worker_leaves_out_what_was_removed_meanwhile(trained, tmp_path, logged, monkeypatch):
    copy_run(trained, tmp_path, 1, 2, status="finished")
    real = evaluate.trained.restore

    def restore(root_dir, algorithm, which):
        if which == "ckpt-1":
            index = RunIndex.load(root_dir)
            index.remove(index.find("1"))
            index.save()
        return real(root_dir, algorithm, which)

    monkeypatch.setattr(evaluate.trained, "restore", restore)
    assert _evaluate(tmp_path, "--watch", "--num_episodes=1", "--deterministic") == 0
    assert any("ckpt-1 is left out: There is no checkpoint" in line for line in logged)
    assert "Evaluated 1 checkpoints" in logged[-1]


def test_a_worker_leaves_out_what_is_removed_while_it_is_read(trained, tmp_path, logged, monkeypatch):
    copy_run(trained, tmp_path, 1, 2, status="finished")
    real = checkpointing.left_out

    def left_out(algorithm, path, acts_only):
        if path.endswith("ckpt-1"):
            for file in (tmp_path / "train" / "algorithm").glob("ckpt-1.*"):
                file.unlink()
        return real(algorithm, path, acts_only)

    monkeypatch.setattr(checkpointing, "left_out", left_out)
    assert _evaluate(tmp_path, "--watch", "--num_episodes=1", "--deterministic") == 0
    told = "ckpt-1 cannot be read any more: its files are gone."
    assert any(line.startswith("ckpt-1 is left out: ") and line.endswith(told) for line in logged)
    assert "Evaluated 1 checkpoints" in logged[-1]


def test_json_lines_survive_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "x.jsonl"
    append_line(path, {"step": 1})
    path.write_bytes(path.read_bytes() + b'{"step": 2, "res')
    append_line(path, {"step": 3})
    assert [line["step"] for line in read_lines(path)] == [1, 3]
    assert read_lines(tmp_path / "none.jsonl") == []
