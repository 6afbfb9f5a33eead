"""Training that is killed at random moments, over and over, ends where an undisturbed run ends.

ALF_KILLS says how often each run is killed, 3 times by default.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from alf.trainers.checkpointing import damage_of
from alf.trainers.run_index import INDEX_FILE, RunIndex

KILLS = int(os.environ.get("ALF_KILLS", "3"))
ITERATIONS = 5
# Each iteration makes about so many events.
_MOST_EVENTS = 40


class _Server:
    """Starts runs, and tells what they do."""

    def __init__(self, log):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.killed_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def run(self, root_dir, driver, kill_at=None, delay=0.0):
        """Runs to the end, or to a kill `delay` seconds after event number `kill_at`; returns the exit status."""
        self._process.stdin.write(json.dumps({"root_dir": root_dir, "driver": driver, "iterations": ITERATIONS}) + "\n")
        self._process.stdin.flush()
        pid, events = int(self._line("pid")), 0
        if kill_at == 0:
            self._kill(pid, delay * 100)
        while True:
            word, _, rest = self._process.stdout.readline().partition(" ")
            if word == "exit":
                return int(rest)
            assert word.strip() == "event", f"the server said {word!r}"
            events += 1
            if events == kill_at:
                self._kill(pid, delay)

    def _line(self, word):
        line = self._process.stdout.readline().split()
        assert line[:1] == [word], f"the server said {line}"
        return line[1]

    def _kill(self, pid, delay):
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def _weights(root):
    with np.load(root / "result.npz") as result:
        return [result[name] for name in result.files]


def _check(root, before):
    """The index is whole and goes on growing, and what it lists is there; returns (iterations, env steps) of the newest."""
    if not (root / INDEX_FILE).exists():
        assert before == (0, 0), "the index is gone"
        return before
    json.loads((root / INDEX_FILE).read_text())
    records = RunIndex.load(str(root)).records()
    for old, new in itertools.pairwise(records):
        assert (old.iterations, old.env_steps) < (new.iterations, new.env_steps)
    if not records:
        assert before == (0, 0), "a checkpoint is lost"
        return before
    for record in records:
        assert damage_of(str(root / record.prefix())) is None
    newest = (records[-1].iterations, records[-1].env_steps)
    assert newest >= before, "a checkpoint is lost"
    return newest


@pytest.mark.slow
@pytest.mark.timeout(120 + 40 * KILLS)
@pytest.mark.parametrize("driver", ["sync", "lockstep"])
def test_killed_over_and_over(driver, tmp_path):
    rng = random.Random(KILLS)
    with open(tmp_path / "log.txt", "w") as log:
        server = _Server(log)
        try:
            assert server.run(str(tmp_path / "whole"), driver) == 0, (tmp_path / "log.txt").read_text()[-3000:]
            whole = _weights(tmp_path / "whole")
            kills, runs = 0, 0
            while kills < KILLS:
                root, newest, status = tmp_path / f"run{runs}", (0, 0), None
                runs += 1
                while status != 0:
                    # Once it has been killed often enough, a run is left to come to its end.
                    kill_at = rng.randrange(_MOST_EVENTS) if kills < KILLS else None
                    status = server.run(str(root), driver, kill_at, rng.uniform(0, 0.02))
                    assert status in (0, signal.SIGKILL), (tmp_path / "log.txt").read_text()[-3000:]
                    kills += status != 0
                    newest = _check(root, newest)
                for a, b in zip(whole, _weights(root), strict=True):
                    np.testing.assert_array_equal(a, b)
        finally:
            server.close()
    print(f"{driver}: {kills} kills over {runs} runs")
