"""Runs alf's command lines, here or in a process of their own."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import gin
from absl import flags
from absl.testing import flagsaver

from alf.trainers.run_index import RunIndex

ROOT = pathlib.Path(__file__).resolve().parents[2]

SMALL = (
    "create_environment.env_name='CartPole-v1'",
    "create_environment.num_parallel_environments=4",
    "TrainerConfig.unroll_length=8",
)


# What `start` has started and no test has ended yet.
started = []


def run_here(main, *arguments):
    """Exit code of `main` with these command-line arguments, in this process."""
    gin.clear_config()
    with flagsaver.flagsaver():
        rest = flags.FLAGS(["alf", *arguments])
        try:
            return main(rest)
        finally:
            gin.clear_config()


def start(module, *arguments):
    """Starts a command line; what it writes goes to its `stdout`. A fixture ends it with its test."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Tests that are run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    started.append(process)
    return process


def read_until(process, text):
    """Lines of the process up to one that holds `text`."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} did not come:\n{''.join(lines)}")


def snapshot(root):
    """Names, sizes and times of everything below a directory."""
    return {
        os.path.join(place, name): (os.stat(os.path.join(place, name)).st_mtime_ns)
        for place, directories, files in os.walk(root)
        for name in [*directories, *files]
    }


def copy_run(root, to, *steps, status="running"):
    """A run with some of the checkpoints of another one."""
    (to / "train" / "algorithm").mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "configured.gin", to)
    index = RunIndex.load(str(to))
    for step in steps:
        record = RunIndex.load(str(root)).find(str(step))
        for file in record.files:
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, to / file)
        index.add(record)
    index.run["status"] = status
    index.save()
