"""What becomes of a training whose terminal goes away, as when a connection is lost."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest

from tests.test_docs import ROOT

TRAIN = ["-m", "alf.bin.train", "--gin_file=async_ppo_cart_pole.gin", "--gin_param=TrainerConfig.num_iterations=100000"]
TRAIN += ["--gin_param=create_environment.num_parallel_environments=4"]

# As nohup does, which also gives the command other files to write to.
IGNORING = ["bash", "-c", "trap '' HUP; exec \"$@\"", "bash"]


def _kill_session(leader):
    """Ends what was begun on a terminal, also where the shell that began it is gone."""
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader:
                process.kill()


@contextlib.contextmanager
def _training(folder, owns_terminal, vectorization="auto", before=()):
    """A training that shows its display on a terminal: the process, and what closes that terminal."""
    ours, theirs = pty.openpty()

    def begin():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        if owns_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    binding = f"--gin_param=create_environment.vectorization='{vectorization}'"
    command = [*before, sys.executable, *TRAIN, binding, f"--root_dir={folder}"]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=begin,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )
    os.close(theirs)
    with contextlib.ExitStack() as closing:
        closing.callback(process.wait)
        closing.callback(_kill_session, process.pid)
        terminal = contextlib.ExitStack()
        terminal.callback(os.close, ours)
        closing.push(terminal)
        seen = b""
        deadline = time.monotonic() + 120
        while b"elapsed" not in seen:
            readable = select.select([ours], [], [], max(deadline - time.monotonic(), 0.0))[0]
            assert readable, seen
            seen += os.read(ours, 1 << 16)
        yield process, terminal.close


def _run_of(folder):
    status = json.loads((folder / "training_status.json").read_text())
    return status["run"], status["behaviors"]["agent"]["checkpoints"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("vectorization", ["auto", "async"])
def test_a_closed_terminal_saves_and_ends(tmp_path, vectorization):
    """With environments in processes of their own too, which are told of it as well."""
    with _training(tmp_path, True, vectorization) as (process, close):
        close()
        process.wait(120)
    run, checkpoints = _run_of(tmp_path)
    assert (run["status"], run["why"]) == ("interrupted", "SIGHUP received")
    assert checkpoints
    with (tmp_path / "train" / "stats.csv").open() as file:
        assert [row["Driver/restarts"] for row in csv.DictReader(file)][-1] == "0.0"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_shell_that_goes_tells_of_it_twice(tmp_path):
    """It hands SIGHUP on to what it runs, and when it has ended the kernel sends one to what was in the foreground."""
    shell = ["bash", "--norc", "-i", "-c", '"$@"; exit', "bash"]
    with _training(tmp_path, True, before=shell) as (process, close):
        close()
        process.wait(120)
        deadline = time.monotonic() + 60
        while _run_of(tmp_path)[0].get("status") == "running":
            assert time.monotonic() < deadline
            time.sleep(0.1)
    run, checkpoints = _run_of(tmp_path)
    assert (run["status"], run["why"]) == ("interrupted", "SIGHUP received")
    assert checkpoints


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("owns_terminal", "before"), [(False, []), (True, IGNORING)])
def test_a_training_that_nothing_tells_of_it_goes_on(tmp_path, owns_terminal, before):
    """One that the shell has disowned, or that is to ignore it."""
    with _training(tmp_path, owns_terminal, before=before) as (process, close):
        close()
        time.sleep(3.0)  # several pictures
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    run, checkpoints = _run_of(tmp_path)
    assert (run["status"], run["why"]) == ("interrupted", "SIGTERM received")
    assert checkpoints
