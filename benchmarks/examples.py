"""Runs every example in full and checks the return that its header states.

A runnable example binds `TrainerConfig.trainer` and has a header line `# Return: at least X over E episodes within N env
steps.`: the mean return of the last E training episodes (100 where that part is left out) that a run reaches before so
many environment steps; without the last part, in the whole run. `# Return: none.` states that there is none to reach yet;
such examples are run with --only.

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
from typing import Any, NamedTuple

from benchmarks import _events, _machine

# Ten summaries a second.
OBSERVE = ("TrainerConfig.summary_interval=1", "StatsReporter.min_interval_secs=0.1")
_RETURN = re.compile(
    r"^# Return: at least (-?\d+(?:\.\d+)?)(?: over (\d+) episodes)?(?: within ([\d,]+) env steps)?\.$", re.MULTILINE
)
_NO_RETURN = re.compile(r"^# Return: none\.", re.MULTILINE)
_AGAINST_STEPS = "Metrics_vs_EnvironmentSteps/AverageReturn"


class Stated(NamedTuple):
    """What a header promises: a mean return of so many episodes, and the steps to it (None: those of the whole run)."""

    reached: float
    within: int | None
    over: int = 100


def stated_in(text: str) -> Stated | None:
    """What the header of an example states; None when nothing."""
    found = _RETURN.search(text)
    if found is None:
        return None
    within = int(found[3].replace(",", "")) if found[3] else None
    return Stated(float(found[1]), within, int(found[2] or 100))


def states_none(text: str) -> bool:
    """Whether the header of an example says that there is no return to reach."""
    return _NO_RETURN.search(text) is not None


def runnable() -> dict[str, Stated | None]:
    """Names of the examples that are whole runs, with what each states."""
    found = {}
    for path in sorted((_machine.ROOT / "examples").glob("*.gin")):
        text = path.read_text()
        if re.search(r"^TrainerConfig\.trainer\s*=", text, re.MULTILINE):
            found[path.stem] = stated_in(text)
    return found


def run(name: str, params: list[str], seconds: float | None = None, over: int = 100) -> dict[str, Any]:
    """Trains an example by the command line, and reads what it wrote.

    Args:
      name: of the example.
      params: further bindings.
      seconds: ends the run, as Ctrl-C does, after this time.
      over: episodes that the average return is of.

    Returns:
      `started`, `ended` (wall times) and `points` (summaries by tag).

    Raises:
      RuntimeError: the command failed; holds the end of its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "alf.bin.train", f"--gin_file={name}", f"--root_dir={folder}/run"]
        observed = (*OBSERVE, f"alf.AverageReturnMetric.buffer_size={over}")
        command += [f"--gin_param={param}" for param in (*observed, *params)]
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


def returns(
    points: dict[str, list[_events.Point]], tag: str = "Metrics/AverageReturn", over: int = 100
) -> list[_events.Point]:
    """The average return over time, from the episode on with which it is of `over` episodes."""
    enough = _events.reached(points.get("Metrics/NumberOfEpisodes", []), float(over))
    return [p for p in points.get(tag, []) if enough is not None and p.wall_time >= enough]


def judge(stated: Stated | None, points: dict[str, list[_events.Point]]) -> dict[str, Any]:
    """Compares what a run wrote with what its header states.

    Args:
      stated: from the header.
      points: summaries by tag; the step of those against environment steps is their number.

    Returns:
      `reached`, the best return; `after`, the environment steps at which the stated one was reached, or None; `ok`.
    """
    against_steps = returns(points, _AGAINST_STEPS, stated.over if stated else 100)
    best = max((p.value for p in against_steps), default=float("nan"))
    if stated is None:
        return {"reached": best, "after": None, "ok": "no return stated"}
    after = next((p.step for p in against_steps if p.value >= stated.reached), None)
    in_time = after is not None and (stated.within is None or after <= stated.within)
    return {"reached": best, "after": after, "ok": "yes" if in_time else "NO"}


def _row(name: str, stated: Stated | None, seed: int) -> dict[str, Any]:
    done = run(name, [f"TrainerConfig.random_seed={seed}"], over=stated.over if stated else 100)
    steps = done["points"]["Driver/env_steps"][-1].value if "Driver/env_steps" in done["points"] else None
    seconds = done["ended"] - done["started"]
    promised = {"stated": stated and stated.reached, "within": stated and stated.within}
    verdict = judge(stated, done["points"])
    return {"example": name, "seed": seed, **promised, "env steps": steps, "seconds": seconds, **verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run this example alone")
    parser.add_argument("--seeds", type=int, default=1)
    flags = parser.parse_args()
    wanted = {name: stated for name, stated in runnable().items() if flags.only in (None, name)}
    examples = {name: stated for name, stated in wanted.items() if stated is not None or flags.only}
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
        raise SystemExit("not every example reached what its header states")


if __name__ == "__main__":
    main()
