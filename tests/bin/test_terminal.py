"""What a person at a terminal sees of a run: typed and read through a pseudo terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.bin.running import ROOT, SMALL, started

COLUMNS, LINES = 100, 40
# What moves the cursor, colours, or hides it.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CTRL_C = b"\x03"


class _Terminal:
    """A command line on a terminal of its own, and all that it has written there."""

    def __init__(self, *arguments):
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

        def own_the_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**environment, "TERM": "xterm-256color"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            preexec_fn=own_the_terminal,
        )
        os.close(inside)
        self.process.stdout = os.fdopen(os.dup(self._screen), "rb", buffering=0)
        started.append(self.process)
        self.text = ""

    def read(self, until=None, seconds=60):
        """Reads until what a pattern means has come, or to the end."""
        deadline = time.monotonic() + seconds
        while until is None or not re.search(until, self.plain()):
            assert time.monotonic() < deadline, f"{until or 'the end'} did not come:\n{self.plain()[-3000:]}"
            if not select.select([self._screen], [], [], 0.5)[0]:
                continue
            try:
                found = os.read(self._screen, 1 << 16)
            except OSError:  # the other side is closed
                found = b""
            if not found:
                assert until is None, f"{until} did not come:\n{self.plain()[-3000:]}"
                return
            self.text += found.decode(errors="replace")

    def type(self, keys):
        os.write(self._screen, keys)

    def plain(self):
        return _CONTROL.sub("", self.text).replace("\r", "")

    def close(self):
        os.close(self._screen)


def _pictures(text):
    """The live pictures, one after the other: what stands from each title to the next."""
    parts = re.split(r"\n(?=(?:training|evaluation|acting) until )", text)
    return parts[1:]


@pytest.mark.slow
def test_a_person_watches_a_run_and_ends_it_by_ctrl_c(tmp_path):
    terminal = _Terminal(
        *("-m", "alf.bin.train", f"--root_dir={tmp_path}", "--gin_file=async_ppo_cart_pole"),
        *(f"--gin_param={b}" for b in (*SMALL, "TrainerConfig.num_iterations=1000000")),
    )
    try:
        # The first pictures may be of a time at which no episode had ended.
        terminal.read(until=r"return +[\d.]+ ±(?s:.*)collecting +environment")
        terminal.type(_CTRL_C)
        terminal.read()
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
    text = terminal.plain()
    assert "Traceback" not in text
    pictures = _pictures(text)
    assert len(pictures) > 2
    flat = " ".join(pictures[-1].split())
    assert re.search(r"^training until 1,000,000 iterations", flat)
    for row in (
        r"0%",
        r"iteration [\d,]+",
        r"env steps [\d,]+",
        r"steps/s [\d,]+",
        r"episodes [\d,]+",
        r"return [\d.]+ ± [\d.]+ \(last \d+\)",
        r"lag [\d.]+ mean, \d+ max",
        r"queue \d+%",
        r"learner training \d+%, waiting \d+%, other \d+%",
        r"collecting environment \d+%, inference \d+%, waiting \d+%",
        r"elapsed 0:00:\d\d",
        r"bottleneck|balanced",
    ):
        assert re.search(row, flat), f"{row} is not in {flat}"
    # Iterations only grow from picture to picture.
    iterations = [int(m[1].replace(",", "")) for p in pictures if (m := re.search(r"iteration +([\d,]+)", p))]
    assert iterations == sorted(iterations)
    assert iterations[-1] > 0
    end = text[text.index("Training ended:") :]
    assert "SIGINT received; iteration" in end
    order = [
        end.index(name) for name in ("Report: ", "Checkpoint: ", "Configuration: ", "TensorBoard: ", "Watch it play: ")
    ]
    assert order == sorted(order)
    for path in ("report.html", "configured.gin", os.path.join("train", "algorithm")):
        assert str(tmp_path / path) in end
        assert (tmp_path / path).exists()
    # The cursor, which the display hides, is back.
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")
