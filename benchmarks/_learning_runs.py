"""One run of a system on a task, its learning curve, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from alf.bin import output_flag
from alf.environments.seeding import distinct_seeds

from benchmarks import _events, _machine, examples
from benchmarks._learning_tasks import Task

# A point of a curve is the mean return of so many training episodes.
OVER = 20
POINTS = 40
# So that no environment of an evaluation is one of training.
_EVALUATION_SEED = 10_000
_LONGEST = 48 * 3600
_PEER = str(pathlib.Path(__file__).resolve().parent / "_peer_sb3_learn.py")

Record = dict[str, Any]


def folder() -> pathlib.Path:
    """Where the runs are kept, a file of JSON lines for each task."""
    return _machine.RESULTS / "learning"


def recorded(name: str, task: Task) -> list[Record]:
    """The kept runs that were made and evaluated as the task says now; of the same system and seed the last one."""
    kept: dict[tuple[str, int], Record] = {}
    for line in output_flag.read_lines(str(folder() / f"{name}.jsonl")):
        if line["settings"] == task.settings(line["system"]) and len(line["returns"]) == task.episodes:
            kept[line["system"], line["seed"]] = line
    return [kept[key] for key in sorted(kept)]


def keep(name: str, record: Record) -> None:
    """Appends a run to the file of its task."""
    output_flag.append_line(str(folder() / f"{name}.jsonl"), record)


def run(task: Task, system: str, seed: int, interpreter: str | None) -> Record:
    """Trains and evaluates a system once.

    Args:
      task: what on.
      system: "alf" or "sb3".
      seed: of everything random.
      interpreter: of the peers' environment; for "sb3".

    Raises:
      RuntimeError: it failed; holds the end of what it said.
    """
    outcome = _alf(task, seed) if system == "alf" else _sb3(task, seed, interpreter or sys.executable)
    described = _machine.machine()
    return {
        "system": system,
        "seed": seed,
        "settings": task.settings(system),
        "steps": outcome["steps"],
        "seconds": round(outcome["seconds"], 1),
        "returns": [round(r, 3) for r in outcome["returns"]],
        "curve": thinned(outcome["curve"], task.steps),
        "versions": outcome["versions"],
        "machine": described,
    }


def thinned(points: Sequence[tuple[float, float]], steps: int) -> list[tuple[int, float]]:
    """The value that a curve has at each of `POINTS` equal distances up to `steps`, from its first point on.

    Args:
      points: (environment steps, value), ascending.
      steps: of the whole run.
    """
    found, at = [], 0
    for number in range(1, POINTS + 1):
        limit = steps * number // POINTS
        while at < len(points) and points[at][0] <= limit:
            at += 1
        if at:
            found.append((limit, round(float(points[at - 1][1]), 3)))
    return found


def means(episodes: Sequence[tuple[int, float]], over: int = OVER) -> list[tuple[int, float]]:
    """At the end of each episode (environment steps, return), the mean of the last `over` returns, or of those so far."""
    returns = [r for _, r in episodes]
    windows = [returns[max(0, i + 1 - over) : i + 1] for i in range(len(returns))]
    return [(step, sum(w) / len(w)) for (step, _), w in zip(episodes, windows, strict=True)]


def with_heatup(curve: Sequence[tuple[int, float]], steps: int) -> list[tuple[int, float]]:
    """The curve of a run that took so many steps in all: its own axis leaves out a heat-up, which comes first."""
    heatup = steps - curve[-1][0]
    return [(step + heatup, value) for step, value in curve]


def _sb3(task: Task, seed: int, interpreter: str) -> dict[str, Any]:
    command = [interpreter, _PEER, "--setting", json.dumps(task.peer), "--steps", str(task.steps)]
    starts = distinct_seeds(_EVALUATION_SEED + seed, task.episodes)
    command += ["--seed", str(seed), "--starts", *(str(start) for start in starts)]
    result = _machine.last_json(command, timeout=_LONGEST)
    return {**result, "curve": means([(int(s), r) for s, r in result["episodes"]])}


def _alf(task: Task, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        root, output = f"{temporary}/run", f"{temporary}/result.json"
        train = ["alf.bin.train", f"--gin_file={task.example}", f"--root_dir={root}"]
        train += [f"--gin_param={binding}" for binding in _bindings(task, seed)]
        began = time.monotonic()
        _command(train)
        seconds = time.monotonic() - began
        evaluate = ["alf.bin.evaluate", f"--root_dir={root}", "--deterministic", f"--num_episodes={task.episodes}"]
        evaluate += [
            f"--num_parallel_environments={task.episodes}",
            f"--random_seed={_EVALUATION_SEED + seed}",
            f"--output={output}",
        ]
        _command(evaluate)
        points = _events.scalars(pathlib.Path(root))
        steps = int(points["Driver/env_steps"][-1].value)
        # A run that is told to stop ends as any other does.
        if steps < task.steps:
            raise RuntimeError(f"{task.example} stopped after {steps} of {task.steps} steps: it does not count.")
        returns = json.loads(pathlib.Path(output).read_text())["results"]["deterministic"]["returns"]
    curve = [(p.step, p.value) for p in points["Metrics_vs_EnvironmentSteps/AverageReturn"]]
    return {
        "steps": steps,
        "seconds": seconds,
        "returns": returns,
        "curve": with_heatup(curve, steps),
        "versions": _machine.versions(),
    }


def _bindings(task: Task, seed: int) -> list[str]:
    return [
        *examples.OBSERVE,
        f"alf.AverageReturnMetric.buffer_size={OVER}",
        f"TrainerConfig.num_env_steps={task.steps}",
        "TrainerConfig.num_iterations=0",
        "TrainerConfig.export_saved_model=False",
        f"TrainerConfig.random_seed={seed}",
        *task.params,
    ]


def _command(arguments: list[str]) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_machine.ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
