"""The status command: what it tells of runs in every state, from their files alone."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time

import pytest

from alf.bin import status
from alf.bin.run_view import last_row, time_shares, view
from alf.trainers.run_index import Record, RunIndex
from alf.trainers.run_lock import RunLock
from tests.bin.running import ROOT, run_here

_STATS = {
    "global_step": 7,
    "env_steps": 448,
    "seconds": 1.5,
    "Metrics/AverageReturn": 21.5,
    "Time/learner_training": 0.1,
    "Time/learner_waiting": 0.8,
    "Time/learner_other": 0.1,
    "Time/environment": 0.7,
    "Time/inference": 0.3,
    "Time/collecting_waiting": 0.0,
}


@pytest.fixture
def run(tmp_path):
    """Directory of a made-up run with two checkpoints and statistics."""
    (tmp_path / "train" / "algorithm").mkdir(parents=True)
    index = RunIndex(str(tmp_path))
    for step, reward, kinds in ((3, 10.0, ["periodic"]), (7, 21.5, ["best", "final"])):
        files = [f"train/algorithm/ckpt-{step}.{end}" for end in ("index", "data-00000-of-00001")]
        for file in files:
            (tmp_path / file).write_bytes(b"x" * 1000 * step)
        index.add(Record(f"ckpt-{step}", step, step * 64, step, files, reward, 5, "2026-01-01T00:00:00+00:00", kinds))
    index.run = {"status": "finished", "why": "num_iterations=7 is reached", "seed": 4, "versions": {"alf": "0.1.0"}}
    index.save()
    (tmp_path / "train" / "stats.jsonl").write_text(json.dumps({"global_step": 3}) + "\n" + json.dumps(_STATS) + "\n")
    return tmp_path


def _text(capsys, root):
    assert run_here(status.main, f"--root_dir={root}") == 0
    return capsys.readouterr().out


def test_a_finished_run(run, capsys):
    text = _text(capsys, run)
    for expected in (
        "State: finished (num_iterations=7 is reached)",
        "Seed: 4",
        "Versions: alf 0.1.0",
        "Checkpoints: 2, 20.0 kB in all",
        "return 21.50 (5 episodes)",
        "448 env steps",
        "best, final",
        "AverageReturn 21.5",
        "the environment is the bottleneck",
        "learner: waiting for data",
        f"To extend: python -m alf.bin.train --root_dir={run} --gin_param=TrainerConfig.num_iterations=14",
        f"To play: python -m alf.bin.play --root_dir={run}",
        f"To see: tensorboard --logdir={run}",
    ):
        assert expected in text
    assert "Problem" not in text


def test_learning_rates_that_fall_over_the_run_are_extended_with_it(run, capsys):
    rates = ("PolynomialDecay.decay_steps = 70", "actor/PolynomialDecay.decay_steps = 50")
    others = (
        "LinearSchedule.decay_steps = 20",
        "PolynomialDecay.end_learning_rate = 0",
        "PolynomialDecay.decay_steps = %n",
    )
    (run / "configured.gin").write_text("\n".join([*rates, *others]) + "\n")
    more = "TrainerConfig.num_iterations=14", "PolynomialDecay.decay_steps=140", "actor/PolynomialDecay.decay_steps=100"
    expected = "".join(f" --gin_param={one}" for one in more)
    assert f"To extend: python -m alf.bin.train --root_dir={run}{expected}\n" in _text(capsys, run)


def test_a_configuration_that_is_no_text_takes_nothing_of_the_rest(run, capsys):
    (run / "configured.gin").write_bytes(b"\xff\nPolynomialDecay.decay_steps = 70\n")
    assert "=14 --gin_param=PolynomialDecay.decay_steps=140\n" in _text(capsys, run)


def test_a_learning_rate_that_a_macro_has_fall_is_extended_too(run, capsys):
    (run / "configured.gin").write_text("steps = 70\nPolynomialDecay.decay_steps = %steps\n")
    assert "=14 --gin_param=PolynomialDecay.decay_steps=140\n" in _text(capsys, run)


def test_of_many_checkpoints_the_newest_are_shown_and_those_that_stand_out(run, capsys):
    index = RunIndex.load(str(run))
    for step in range(10, 20):
        file = f"train/algorithm/ckpt-{step}.index"
        (run / file).write_bytes(b"x")
        index.add(Record(f"ckpt-{step}", step, files=[file], kinds=["periodic"]))
    index.save()
    shown = [line.split()[0] for line in _text(capsys, run).splitlines() if line.startswith("  ckpt-")]
    assert shown == ["ckpt-7", *(f"ckpt-{step}" for step in range(12, 20))]


def test_a_checkpoint_of_no_kind_is_told_with_its_model(run, capsys):
    index = RunIndex.load(str(run))
    files = ["train/algorithm/ckpt-8.index", "train/models/ckpt-8/saved_model/saved_model.pb"]
    for file in files:
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_bytes(b"x")
    index.add(Record("ckpt-8", 8, files=files, kinds=[]))
    index.save()
    (line,) = (line for line in _text(capsys, run).splitlines() if line.startswith("  ckpt-8"))
    assert line.endswith(" B  with model")


def test_sizes_are_told_in_thousands():
    assert [status._size(count) for count in (999, 1000, 2.5e9)] == ["999 B", "1.0 kB", "2.5 GB"]


def test_commands_quote_the_path(run, capsys):
    root = run.rename(run.parent / "sp ace")
    text = _text(capsys, root)
    assert f"To play: python -m alf.bin.play --root_dir='{root}'" in text
    assert f"To see: tensorboard --logdir='{root}'" in text


def test_json_has_everything(run, capsys):
    assert run_here(status.main, f"--root_dir={run}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "finished"
    assert [(c["step"], c["reward"], c["bytes"]) for c in found["checkpoints"]] == [(3, 10.0, 6000), (7, 21.5, 14000)]
    assert found["stats"] == _STATS
    assert found["time_shares"]["learner_waiting"] == 0.8


def test_a_live_run_is_told_by_its_lock(run):
    index = RunIndex.load(str(run))
    index.run["status"] = "running"
    index.save()
    lock = RunLock(str(run))
    lock.acquire()
    try:
        found = view(str(run))
        assert (found["state"], found["lock"]["pid"], found["lock"]["alive"]) == ("running", os.getpid(), True)
        assert "go on" not in found["commands"]
    finally:
        lock.release()
    found = view(str(run))
    assert found["state"] == "killed"
    assert found["commands"]["go on"] == f"python -m alf.bin.train --root_dir={run}"


def test_a_run_that_was_killed_before_it_wrote_its_configuration_goes_on_by_its_command(run):
    (run / "configured.gin").unlink(missing_ok=True)
    given = ["--gin_file=sac_pendulum", f"--root_dir={run}", "--gin_param=a.b = 'c d'"]
    for begun_by, expected in [
        (["/somewhere/alf/bin/train.py", *given], f"python -m alf.bin.train {shlex.join(given)}"),
        (["/x/alf/bin/train.py", "--force", *given], f"python -m alf.bin.train {shlex.join(given)}"),
        (["/x/alf/bin/train.py", "-force", *given], f"python -m alf.bin.train {shlex.join(given)}"),
        (  # from another directory, or before it was moved
            ["/x/alf/bin/train.py", given[0], "--root_dir", "runs/x", given[2]],
            f"python -m alf.bin.train {shlex.join(given)}",
        ),
        (["/x/alf/bin/train.py", given[0], "-root_dir=x", given[2]], f"python -m alf.bin.train {shlex.join(given)}"),
        (["/mine/train.py", "--fast"], f"python -m alf.bin.train --root_dir={run}"),
        ("damaged", f"python -m alf.bin.train --root_dir={run}"),
    ]:
        index = RunIndex.load(str(run))
        index.run.update(status="running", command_line=begun_by)
        index.save()
        assert view(str(run))["commands"]["go on"] == expected


def test_a_lock_left_behind(run):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (run / "run.lock").write_text(json.dumps({"pid": gone.pid, "host": socket.gethostname()}))
    assert view(str(run))["lock"]["alive"] is False
    (run / "run.lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    assert view(str(run))["state"] == "running"
    long_ago = time.time() - 3600
    os.utime(run / "run.lock", (long_ago, long_ago))
    assert view(str(run))["state"] == "finished"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": 3}', b"\xff\xfe", b"[" * 5000])
def test_files_that_make_no_sense_are_problems_not_errors(run, capsys, content):
    for file in ("training_status.json", "run.lock", "train/stats.jsonl"):
        (run / file).write_bytes(content)
    text = _text(capsys, run)
    assert "Problem: " in text
    assert "training_status.json" in text
    assert "Checkpoints: 2" in text
    assert view(str(run))["state"] in ("unknown", "killed", "running")


def test_files_that_are_missing(run, capsys):
    (run / "train" / "algorithm" / "ckpt-3.index").unlink()
    (run / "train" / "stats.jsonl").unlink()
    text = _text(capsys, run)
    assert "Problem: ckpt-3 lacks 1 of its 2 files" in text
    assert "Last statistics: none yet" in text


def test_no_run_at_all(tmp_path, logged, capsys):
    assert run_here(status.main, f"--root_dir={tmp_path}/none") == 2
    assert run_here(status.main, f"--root_dir={tmp_path}") == 2
    assert run_here(status.main) == 2
    text = "\n".join(logged)
    assert run_here(status.main, f"--root_dir={tmp_path}", "--gin_file=ppo_cart_pole") == 2
    assert "--gin_file has no effect here: a status needs nothing but the run's own files; leave it out." in logged
    for expected in ("There is no directory", f"There is no run in --root_dir={tmp_path}", "--root_dir is missing"):
        assert expected in text
    assert run_here(status.main, f"--root_dir={tmp_path}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "no run"


def test_the_last_whole_row_counts(run):
    path = run / "train" / "stats.jsonl"
    path.write_bytes(path.read_bytes() + b'{"global_step": 9, "env_st')
    problems = []
    assert last_row(str(run), problems) == _STATS
    assert problems == []


def test_shares_need_no_threads_beside_the_learner():
    shares = time_shares({"Time/learner_training": 0.6, "Time/environment": 0.3, "Time/inference": 0.1})
    assert shares.threads == 0
    assert "learning takes 60%" in shares.verdict()
    assert time_shares({"Metrics/AverageReturn": 1.0}) is None


def test_it_starts_without_tensorflow(run):
    """As a process of its own: TensorFlow stays out even where the index must be made up."""
    (run / "training_status.json").unlink()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "alf.bin.status", f"--root_dir={run}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Checkpoints: 2" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "alf.bin.run_view" in imported
    # An import of TensorFlow that is refused is listed too; one that happens brings numpy.
    assert not imported & {"numpy", "gymnasium", "tensorflow.python"}
