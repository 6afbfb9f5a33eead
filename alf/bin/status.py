"""Tells what a run is, where it stands, whether it is alive, and how to go on.

    python -m alf.bin.status --root_dir=runs/cart_pole
    python -m alf.bin.status --root_dir=runs/cart_pole --json

Reads the run's files only, in a fraction of a second, also while training goes on. Exit code 2: there is
no such directory, or no run in it, which --json tells as its "state" instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from alf.bin import command_line
from alf.bin.run_view import view
from alf.trainers import worker_table
from alf.trainers.run_index import RATING

_JSON = flags.DEFINE_bool("json", False, "Print everything as JSON.")
flags.declare_key_flag("root_dir")

_SHOWN = 8
_FACTS = ("started", "updated", "seed", "versions", "git_revision", "command_line")
_AXES = ("global_step", "iteration", "env_steps", "episodes", "seconds", "global_steps_per_sec")
_UNITS = ("B", "kB", "MB", "GB", "TB")
_NAMES = {
    "learner_training": "learner: training",
    "learner_waiting": "learner: waiting for data",
    "learner_other": "learner: everything else",
    "environment": "collecting: environment",
    "inference": "collecting: inference",
    "collecting_waiting": "collecting: waiting for the learner",
}


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv, for_tensorflow=False)
        command_line.refuse_all_but_root_dir("a status needs nothing but the run's own files")
        command_line.check_directory(root_dir)
        found = view(root_dir)
        if found["state"] == "no run" and not _JSON.value:
            raise command_line.UsageError(f"There is no run in --root_dir={root_dir}: {found['why']}.")
        print(json.dumps(found, indent=2, default=str) if _JSON.value else "\n".join(describe(found)))

    return command_line.run(body)


def describe(found: Mapping[str, Any]) -> list[str]:
    """The lines that a person reads.

    Args:
      found: what `run_view.view` returns.
    """
    lines = [f"Run: {found['root_dir']}", f"State: {found['state']} ({found['why']})"]
    run = found["run"]
    lines += [f"{fact.replace('_', ' ').capitalize()}: {_fact(run[fact])}" for fact in _FACTS if run.get(fact)]
    lines += _position(found["stats"])
    lines += _checkpoints(found["checkpoints"], run.get("judged_by"))
    if found["verdict"]:
        lines.append("Time: " + found["verdict"])
        lines += [f"  {_NAMES[name]:<36} {share:4.0%}" for name, share in found["time_shares"].items()]
    lines += worker_table.lines(found["workers"])
    lines += [f"Problem: {problem}" for problem in found["problems"]]
    lines += [f"To {purpose}: {command}" for purpose, command in found["commands"].items()]
    return lines


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {of}" for name, of in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _position(stats: Mapping[str, Any]) -> list[str]:
    """The last row of statistics in a line, without what stands elsewhere."""
    if not stats:
        return ["Last statistics: none yet"]
    axes = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in stats.items() if name in _AXES]
    metrics = [
        f"{name.removeprefix('Metrics/')} {_number(value)}"
        for name, value in stats.items()
        if name.startswith("Metrics/") and name.count("/") == 1 and isinstance(value, (int, float))
    ]
    shown = ["  " + ", ".join(metrics[:_SHOWN])] if metrics else []
    return ["Last statistics: " + ", ".join(axes), *shown, *_behaviors(stats)]


def _behaviors(stats: Mapping[str, Any]) -> list[str]:
    """A line for each behavior of several agents: the metrics called `Metrics/<behavior>/<name>`."""
    found: dict[str, list[str]] = {}
    for name, value in stats.items():
        parts = name.split("/")
        if parts[0] == "Metrics" and len(parts) == 3 and isinstance(value, (int, float)):
            found.setdefault(parts[1], []).append(f"{parts[2]} {_number(value)}")
    return [f"  {behavior}: {', '.join(metrics)}" for behavior, metrics in found.items()]


def _reward(checkpoint: Mapping[str, Any], judged_by: str | None) -> str:
    """What a checkpoint was judged by: the return of all, or of a behavior, or the rating of self-play."""
    value, count = checkpoint["reward"], checkpoint["reward_episodes"]
    if value is None:
        return "not evaluated"
    if judged_by == RATING:
        return f"rating {value:.2f} ({count} matches)"
    return f"return {value:.2f} ({count} episodes{'' if judged_by is None else f' of {judged_by}'})"


def _checkpoints(checkpoints: Sequence[Mapping[str, Any]], judged_by: str | None) -> list[str]:
    if not checkpoints:
        return ["Checkpoints: none"]
    total = sum(c["bytes"] for c in checkpoints)
    lines = [f"Checkpoints: {len(checkpoints)}, {_size(total)} in all"]
    special = [c for c in checkpoints[:-_SHOWN] if set(c["kinds"]) - {"periodic"}]
    for c in [*special, *checkpoints[-_SHOWN:]]:
        facts = [*c["kinds"], *(["with model"] if c["has_model"] else [])]
        lines.append(
            f"  {c['name']:<14} {_reward(c, judged_by):<30} {c['env_steps']:>12,} env steps  {_size(c['bytes']):>8}  "
            f"{', '.join(facts)}"
        )
    return lines


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() or abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    command_line.start(main)
