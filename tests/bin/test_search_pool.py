"""How a search runs its processes: those that save for long, that a search before has left, that never end; full disks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import pytest

from alf.bin import grid_search
from alf.bin.grid_search import OUTPUT_FILE, Pool
from alf.bin.search_report import Result
from alf.bin.search_space import Search
from alf.trainers.run_index import INDEX_FILE, RunIndex
from alf.trainers.run_lock import RunLock
from tests.awake import awake_secs
from tests.bin.running import ROOT, run_here

pytestmark = pytest.mark.slow

# What stands for a training: `argv[1]` is its directory.
_BEGIN = "import os, shutil, signal, sys, time\nfrom signal import SIGHUP as ENDING\nos.chdir(sys.argv[1])\n"
_SAVING = """
def save(*args):
    time.sleep(1)
    open('saved', 'w').close()
    os._exit(0)
signal.signal(ENDING, save)
open('begun', 'w').close()
time.sleep(60)
"""
_DEAF = "signal.signal(ENDING, signal.SIG_IGN)\nopen('begun', 'w').close()\ntime.sleep(60)\n"
_TRAINING = f"""
sys.path.insert(0, {str(ROOT)!r})
from alf.trainers.interrupts import StopSignals
with StopSignals() as signals:
    open('begun', 'w').close()
    while not signals.requested:
        time.sleep(0.01)
    open('asked', 'w').close()
    time.sleep(2)
    open('saved', 'w').close()
"""
_ENDS_FIRST = "os.rename('../index', 'training_status.json')\n"


def _runs(count):
    return [Result(f"r{i}", i, 0, {"A.x": str(i)}, "waiting") for i in range(count)]


@pytest.fixture
def pool_of(tmp_path, monkeypatch):
    """Makes the pool of a search in `tmp_path` whose trainings are a script."""
    pools = []

    def make(script, workers=1):
        _stand_for_training(monkeypatch, script)
        pools.append(Pool(str(tmp_path), Search(({"A.x": "0"},), workers=workers)))
        return pools[-1]

    yield make
    monkeypatch.setattr(grid_search, "_SAVING_SECS", 0.0)
    for pool in pools:
        pool.stop()


def _stand_for_training(monkeypatch, script):
    command = [sys.executable, "-c", _BEGIN + script]
    monkeypatch.setattr(grid_search, "train_command", lambda directory, run, search: [*command, directory])


def _wait_for(*paths):
    deadline = awake_secs() + 30
    while not all(path.exists() for path in paths) and awake_secs() < deadline:
        time.sleep(0.02)
    assert all(path.exists() for path in paths)


@contextlib.contextmanager
def _terminated(*begun, times=1):
    """Sends this process so many SIGTERM, from when the files are there on; one that nobody hears ends no tests."""

    def send():
        _wait_for(*begun)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    before = signal.signal(signal.SIGTERM, lambda *args: None)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)


def _index(directory, **facts):
    directory.mkdir(exist_ok=True)
    index = RunIndex.load(str(directory))
    index.run.update(facts)
    index.save()
    return directory / INDEX_FILE


# ---- the end of a search ----


def test_runs_are_waited_for_while_they_save(tmp_path, pool_of, monkeypatch, logged):
    monkeypatch.setattr(grid_search, "_TELL_EVERY_SECS", 0.3)
    pool = pool_of(_SAVING, workers=2)
    begun = [tmp_path / name / "begun" for name in ("r0", "r1")]
    with _terminated(*begun), grid_search._sigterm_as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            pool.run(_runs(3))
        assert pool.stop() == {"r0": "interrupted", "r1": "interrupted"}
    assert (tmp_path / "r0" / "saved").exists()
    assert (tmp_path / "r1" / "saved").exists()
    assert "Ending 2 runs, which save first; once more ends them at once." in logged
    assert "Waiting for r0, r1 to save; once more ends them at once." in logged
    assert not any("Killed" in line for line in logged)


def test_runs_that_what_ends_the_search_tells_too_save_all_the_same(tmp_path, pool_of):
    """A machine that goes down sends SIGTERM to both."""
    pool = pool_of(_TRAINING)
    pool._start(_runs(1)[0])
    _wait_for(tmp_path / "r0" / "begun")
    pool._active["r0"].send_signal(signal.SIGTERM)
    _wait_for(tmp_path / "r0" / "asked")
    assert pool.stop() == {"r0": "interrupted"}
    assert (tmp_path / "r0" / "saved").exists()


def test_once_more_ends_the_runs_at_once(tmp_path, monkeypatch, logged):
    _stand_for_training(monkeypatch, _DEAF)
    (tmp_path / "search.json").write_text('{"parameters": {"A.x": [1]}}')
    with _terminated(tmp_path / "s" / "000-x=1-r0" / "begun", times=2):
        assert _search(tmp_path) == 130
    assert "Killed before they had saved, as asked for: 000-x=1-r0." in logged
    assert "interrupted" in (tmp_path / "s" / "results.csv").read_text()


def test_a_run_that_never_ends_is_not_waited_for_for_ever(tmp_path, pool_of, monkeypatch, logged):
    monkeypatch.setattr(grid_search, "_SAVING_SECS", 1.0)
    pool = pool_of(_DEAF)
    pool._start(_runs(1)[0])
    _wait_for(tmp_path / "r0" / "begun")
    assert pool.stop() == {"r0": "interrupted"}
    assert logged[-1] == "Killed before they had saved, since they had not saved within 1 s: r0."


# ---- directories that others hold ----


def test_a_run_waits_for_the_process_that_a_search_before_has_left(tmp_path, pool_of, logged):
    pool = pool_of("open('../order', 'a').write(os.path.basename(os.getcwd()) + ' ')\n")
    lock = RunLock(str(tmp_path / "r0"))
    lock.acquire()

    def let_go():
        _wait_for(tmp_path / "order")
        lock.release()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert pool.run(_runs(2)) == {"r0": "finished", "r1": "finished"}
    thread.join()
    assert (tmp_path / "order").read_text() == "r1 r0 "
    (told,) = [line for line in logged if line.startswith("r0 waits up to 600 s")]
    assert f"for process {os.getpid()} on " in told


def test_a_directory_that_is_held_for_long_is_left_to_the_run_to_tell_of(tmp_path, pool_of, monkeypatch, logged):
    monkeypatch.setattr(grid_search, "_SAVING_SECS", 0.3)
    pool = pool_of("print('KeyError: in use'); sys.exit(2)")
    with RunLock(str(tmp_path / "r0")):
        assert pool.run(_runs(1)) == {"r0": "failed"}
    assert "r0 ended with exit code 2: KeyError: in use" in logged[-1]


# ---- processes that go on behind their runs ----


@pytest.mark.parametrize(
    ("facts", "state"),
    [({"status": "finished"}, "finished"), ({"status": "failed", "why": "ValueError: odd"}, "failed")],
)
def test_a_process_whose_run_is_over_is_ended(tmp_path, pool_of, monkeypatch, logged, facts, state):
    monkeypatch.setattr(grid_search, "_LINGER_SECS", 0.5)
    os.rename(_index(tmp_path / "made", **facts), tmp_path / "index")
    pool = pool_of(_ENDS_FIRST + "time.sleep(60)\n")
    began = awake_secs()
    assert pool.run(_runs(1)) == {"r0": state}
    assert awake_secs() - began < 20
    assert any(line.startswith("r0 is over, and its process is killed since it still runs") for line in logged)
    if state == "failed":
        assert "r0 ended with exit code -9: ValueError: odd (all of it: " in logged[-1]


def test_one_that_begins_again_slowly_is_left_alone(tmp_path, pool_of, monkeypatch, logged):
    monkeypatch.setattr(grid_search, "_LINGER_SECS", 0.3)
    _index(tmp_path / "r0", status="failed", why="before")
    os.rename(_index(tmp_path / "made", status="finished"), tmp_path / "index")
    pool = pool_of("time.sleep(1.5)\n" + _ENDS_FIRST)
    assert pool.run(_runs(1)) == {"r0": "finished"}
    assert not any("is over" in line for line in logged)


def test_one_that_goes_on_behind_its_run_does_not_hold_up_the_end(tmp_path, pool_of, monkeypatch, logged):
    monkeypatch.setattr(grid_search, "_LINGER_SECS", 0.5)
    os.rename(_index(tmp_path / "made", status="finished"), tmp_path / "index")
    pool = pool_of(_DEAF.replace("time.sleep", _ENDS_FIRST + "time.sleep"))
    pool._start(_runs(1)[0])
    _wait_for(tmp_path / "r0" / "begun")
    assert pool.stop() == {"r0": "finished"}
    assert not any("Killed" in line for line in logged)


# ---- full disks ----


def _search(tmp_path, *arguments):
    arguments = ("--gin_file=ppo_cart_pole", f"--search_config={tmp_path}/search.json", *arguments)
    return run_here(grid_search.main, f"--root_dir={tmp_path}/s", *arguments)


def _full(*args):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("writer", "what"), [("write_atomically", "s/grid_search.json"), ("write_reports", "The results in ")]
)
def test_files_that_find_no_room_are_told_in_a_sentence(tmp_path, monkeypatch, capsys, logged, writer, what):
    _stand_for_training(monkeypatch, "")
    (tmp_path / "search.json").write_text('{"parameters": {"A.x": [1]}}')
    monkeypatch.setattr(grid_search, writer, _full)
    assert _search(tmp_path) == 2
    assert what in logged[-1]
    assert logged[-1].endswith(
        " cannot be written (No space left on device): make room, or put that right; the same command goes on."
    )
    assert ("| 1 | 1/1 |" in capsys.readouterr().out) == (writer == "write_reports")


def test_a_run_that_cannot_be_started_has_the_others_save(tmp_path, monkeypatch, logged):
    """Only the trainings' own files are in their way: what they hold is saved before the search ends."""
    _stand_for_training(monkeypatch, _SAVING)
    (tmp_path / "search.json").write_text('{"parameters": {"A.x": [1, 2]}, "max_worker_num": 2}')
    first, second = (tmp_path / "s" / name for name in ("000-x=1-r0", "001-x=2-r0"))
    start = Pool._start

    def start_after(self, run):
        if run.name == second.name:
            _wait_for(first / "begun")
            second.write_text("")
        start(self, run)

    monkeypatch.setattr(Pool, "_start", start_after)
    assert _search(tmp_path) == 2
    path = second / OUTPUT_FILE
    assert logged[-1].startswith(f"{path} cannot be written (File exists): make room")
    assert (first / "saved").exists()
