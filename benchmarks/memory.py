"""Resident memory of an example's run, from the end of its warm-up on; alone on the machine, since load moves it too.

python -m benchmarks.memory [--only NAME] [--minutes N] [--warm_up N]
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import psutil

from benchmarks import _events, _machine

_EVERY_SECS = 30.0


class Reading(NamedTuple):
    """So many minutes after the start, the resident memory of a run's processes, MB."""

    minute: float
    mb: float


def resident(process: psutil.Process) -> float:
    """MB of a process and of all that it has started, so far as they live."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += one.memory_info().rss
    return total / 2**20


def watch(name: str, minutes: float) -> tuple[list[Reading], dict[str, Any]]:
    """Trains an example for so long, whatever limits it has; its readings, and what it had done by then.

    Raises:
      RuntimeError: the command failed, or was over before; holds the end of its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "alf.bin.train", f"--gin_file={name}", f"--root_dir={folder}/run"]
        command += ["--gin_param=TrainerConfig.num_iterations=1000000000"]
        log, readings = pathlib.Path(folder, "log"), list[Reading]()
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=_machine.ROOT)
            began, of = time.monotonic(), psutil.Process(process.pid)
            while (since := time.monotonic() - began) < 60 * minutes and process.poll() is None:
                readings.append(Reading(since / 60, resident(of)))
                time.sleep(min(_EVERY_SECS, 60 * minutes - since))
            early = process.poll() is not None
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        if early or process.returncode:
            raise RuntimeError(f"{name} ended with code {process.returncode}:\n{log.read_text()[-2000:]}")
        points = _events.scalars(pathlib.Path(folder, "run"))
    done = {"env steps": int(points["Driver/env_steps"][-1].value)}
    return readings, {**done, "return": points["Metrics/AverageReturn"][-1].value}


def growth(readings: list[Reading], warm_up: float) -> dict[str, float]:
    """What memory was at the end of a warm-up of so many minutes and in the end, and how far from the former it was at most.

    Raises:
      ValueError: there is no reading behind it.
    """
    after = [reading for reading in readings if reading.minute >= warm_up]
    if not after:
        raise ValueError(f"The run is over before its warm-up of {warm_up} minutes.")
    first, last = after[0].mb, after[-1].mb
    furthest = max(abs(reading.mb - first) for reading in after)
    return {
        "from minute": after[0].minute,
        "MB": first,
        "to minute": after[-1].minute,
        "MB then": last,
        "growth %": 100.0 * (last - first) / first,
        "furthest %": 100.0 * furthest / first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="async_ppo_pong", help="the example")
    parser.add_argument("--minutes", type=float, default=70.0, help="of the run, its start included")
    parser.add_argument("--warm_up", type=float, default=10.0, help="minutes of them that do not count")
    flags = parser.parse_args()
    head = _machine.announce("resident memory of a run")
    readings, done = watch(flags.only, flags.minutes)
    row = {"example": flags.only, **growth(readings, flags.warm_up), **done}
    _machine.save("memory", head, [row], readings=[[round(r.minute, 2), round(r.mb, 1)] for r in readings])


if __name__ == "__main__":
    main()
