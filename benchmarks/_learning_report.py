"""The table and the pictures of `benchmarks.learning`, from the runs that are kept."""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
from typing import Any

import numpy as np

from benchmarks import _learning_runs, _machine, _statistics
from benchmarks._learning_tasks import TASKS, Task

NAMES = {"alf": "alf", "sb3": "Stable-Baselines3"}
PAGE = _machine.ROOT / "docs" / "learning.md"
_BEGIN, _END = "<!-- made by benchmarks.learning -->", "<!-- until here -->"


def scores(runs: Sequence[dict[str, Any]], system: str) -> list[float]:
    """The mean evaluation return of each run of a system."""
    return list(_by_seed(runs, system).values())


def _by_seed(runs: Sequence[dict[str, Any]], system: str) -> dict[int, float]:
    return {run["seed"]: float(np.mean(run["returns"])) for run in runs if run["system"] == system}


def _difference(runs: Sequence[dict[str, Any]]) -> str | None:
    """Over the seeds that both have."""
    ours, theirs = _by_seed(runs, "alf"), _by_seed(runs, "sb3")
    both = [seed for seed in ours if seed in theirs]
    if not both:
        return None
    return _cell(_statistics.of_difference([ours[s] for s in both], [theirs[s] for s in both]), len(both))


def _cell(estimate: _statistics.Estimate, runs: int) -> str:
    digits = 1 if max(abs(x) for x in estimate) < 100 else 0
    value, low, high = (f"{round(x, digits) + 0.0:.{digits}f}" for x in estimate)
    # One run says nothing of how far others would be from it.
    return f"{value} [{low}, {high}]" if runs > 1 else value


def row(task: Task, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The line of the table for the runs of a task, one or more."""
    ours, theirs = scores(runs, "alf"), scores(runs, "sb3")
    seeds = str(len(ours)) if len(ours) == len(theirs) or not theirs else f"{len(ours)} and {len(theirs)}"
    return {
        "task": task.title,
        "environment steps": task.steps,
        "seeds": seeds,
        NAMES["alf"]: _cell(_statistics.of_runs(ours), len(ours)) if ours else None,
        NAMES["sb3"]: _cell(_statistics.of_runs(theirs), len(theirs)) if theirs else None,
        "difference": _difference(runs),
    }


def draw(task: Task, runs: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws the mean curve of each system over its seeds, with the lowest and highest seed around it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3))
    for system, name in NAMES.items():
        curves = [dict(map(tuple, run["curve"])) for run in runs if run["system"] == system]
        if not curves:
            continue
        steps = sorted(set(curves[0]).intersection(*curves))
        values = np.array([[curve[step] for step in steps] for curve in curves])
        (line,) = axes.plot(steps, values.mean(0), label=f"{name}, {len(curves)} seed{'s' * (len(curves) > 1)}")
        axes.fill_between(steps, values.min(0), values.max(0), alpha=0.2, color=line.get_color())
    axes.set(xlabel="environment steps", ylabel="mean training return", title=task.title)
    axes.legend(fontsize="small", loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    # Without the version of the library, so that the same curves make the same file.
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


def section() -> str:
    """The generated part of the page: the table of all tasks that have runs, and their pictures."""
    kept = {name: _learning_runs.recorded(name, task) for name, task in TASKS.items()}
    present = [name for name, runs in kept.items() if runs]
    if not present:
        return "No runs yet.\n"
    table = _machine.table([row(TASKS[name], kept[name]) for name in present])
    pictures = [f"![{TASKS[name].title}](img/learning_{name}.png)" for name in present]
    return "\n".join([table, "", *pictures, ""])


def write(page: pathlib.Path = PAGE) -> None:
    """Puts the present table into the page and draws the pictures beside it.

    Raises:
      ValueError: the page has no place for the table.
    """
    text = page.read_text()
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"{page} needs one line '{_BEGIN}' and one '{_END}', between which the table goes.")
    before, rest = text.split(_BEGIN)
    page.write_text(f"{before}{_BEGIN}\n\n{section()}\n{_END}{rest.split(_END)[1]}")
    for name, task in TASKS.items():
        runs = _learning_runs.recorded(name, task)
        if runs:
            draw(task, runs, page.parent / "img" / f"learning_{name}.png")
