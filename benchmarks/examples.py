"""Runs every example in full and checks the return that its header states.

A runnable example binds `TrainerConfig.trainer` and has a header line `# Return: at least X.`: the mean return of the
last 100 training episodes that a full run reaches.

    python -m benchmarks.examples [--only NAME] [--seeds N]
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import _events, _machine

# Ten summaries a second, with the return over 100 episodes.
OBSERVE = (
    "TrainerConfig.summary_interval=1",
    "StatsReporter.min_interval_secs=0.1",
    "alf.AverageReturnMetric.buffer_size=100",
)
_RETURN = re.compile(r"^# Return: at least (-?\d+(?:\.\d+)?)\b", re.MULTILINE)


def runnable() -> dict[str, float | None]:
    """Names of the examples that are whole runs, with the return that each states."""
    found = {}
    for path in sorted((_machine.ROOT / "examples").glob("*.gin")):
        text = path.read_text()
        if re.search(r"^TrainerConfig\.trainer\s*=", text, re.MULTILINE):
            stated = _RETURN.search(text)
            found[path.stem] = float(stated.group(1)) if stated else None
    return found


def run(name: str, params: list[str], seconds: float | None = None) -> dict[str, Any]:
    """Trains an example by the command line, and reads what it wrote.

    Args:
      name: of the example.
      params: further bindings.
      seconds: ends the run, as Ctrl-C does, after this time.

    Returns:
      `started`, `ended` (wall times) and `points` (summaries by tag).

    Raises:
      RuntimeError: the command failed; holds the end of its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "alf.bin.train", f"--gin_file={name}", f"--root_dir={folder}/run"]
        command += [f"--gin_param={param}" for param in (*OBSERVE, *params)]
        log = pathlib.Path(folder, "log")
        with log.open("w") as out:
            started = time.time()
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=_machine.ROOT)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(2)
                process.wait(30)
            ended = time.time()
        if process.returncode:
            raise RuntimeError(f"{name} ended with code {process.returncode}:\n{log.read_text()[-2000:]}")
        return {"started": started, "ended": ended, "points": _events.scalars(pathlib.Path(folder, "run"))}


def returns(points: dict[str, list[_events.Point]]) -> list[_events.Point]:
    """The average return over time, from the hundredth episode on."""
    enough = _events.reached(points.get("Metrics/NumberOfEpisodes", []), 100.0)
    return [p for p in points.get("Metrics/AverageReturn", []) if enough is not None and p.wall_time >= enough]


def _row(name: str, stated: float | None, seed: int) -> dict[str, Any]:
    done = run(name, [f"TrainerConfig.random_seed={seed}"])
    best = max((p.value for p in returns(done["points"])), default=float("nan"))
    passed = stated is not None and best >= stated
    steps = done["points"]["Driver/env_steps"][-1].value if "Driver/env_steps" in done["points"] else None
    seconds = done["ended"] - done["started"]
    row = {"example": name, "seed": seed, "stated": stated, "reached": best, "env steps": steps, "seconds": seconds}
    return {**row, "ok": "yes" if passed else "NO" if stated is not None else "no return stated"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run this example alone")
    parser.add_argument("--seeds", type=int, default=1)
    flags = parser.parse_args()
    examples = {name: stated for name, stated in runnable().items() if flags.only in (None, name)}
    if not examples:
        raise SystemExit(f"there is no example {flags.only!r}: choose one of {', '.join(runnable())}")
    head = _machine.announce("every example in full")
    rows = []
    for name, stated in examples.items():
        for seed in range(flags.seeds):
            rows.append(_row(name, stated, seed))
            _machine.progress(str(rows[-1]))
    _machine.save("examples" if flags.only is None else f"examples_{flags.only}", head, rows)
    if any(row["ok"] != "yes" for row in rows):
        raise SystemExit("not every example reached the return that it states")


if __name__ == "__main__":
    main()
