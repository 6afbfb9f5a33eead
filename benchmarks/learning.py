"""What is learned in the same number of environment steps, beside Stable-Baselines3: a table and curves over seeds.

Each run is one line of benchmarks/results/learning/TASK.jsonl, written when it ends; the same command again makes only
the runs that are missing, or whose settings have changed since. Table and pictures go into docs/learning.md.

    python -m benchmarks.learning                               # whatever is missing; all of it takes more than a day
    python -m benchmarks.learning --only pendulum_sac --seeds 5
    python -m benchmarks.learning --only cart_pole_dqn --system alf
    python -m benchmarks.learning --report                      # only table and pictures
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import _learning_report, _learning_runs, _machine, _peer_env
from benchmarks._learning_tasks import TASKS, Task


class Job(NamedTuple):
    """A run to be made."""

    name: str
    task: Task
    system: str
    seed: int


def missing(names: list[str], systems: list[str], seeds: int | None) -> Iterator[Job]:
    """The runs that are not kept yet: task by task, seed by seed, the systems side by side.

    Args:
      names: of tasks.
      systems: out of "alf" and "sb3".
      seeds: how many of each; None for the task's own number.
    """
    for name in names:
        task = TASKS[name]
        kept = {(run["system"], run["seed"]) for run in _learning_runs.recorded(name, task)}
        for seed in range(task.seeds if seeds is None else seeds):
            for system in systems:
                if (system, seed) not in kept and (system == "alf" or task.peer is not None):
                    yield Job(name, task, system, seed)


def work(job: Job, peers_python: str | None) -> dict[str, Any]:
    """Makes a run and keeps it; what it came to in a line for people."""
    interpreter = None
    if job.system == "sb3":
        interpreter = _peer_env.python(peers_python)
        if job.task.needs and not peers_python:
            _peer_env.add(interpreter, job.task.needs)
    record = _learning_runs.run(job.task, job.system, job.seed, interpreter)
    _learning_runs.keep(job.name, record)
    score = _learning_report.scores([record], job.system)[0]
    return {"task": job.name, "system": job.system, "seed": job.seed, "return": score, "seconds": record["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(TASKS), help="this task alone")
    parser.add_argument("--seeds", type=int, help="runs of each system; by default as many as the task asks for")
    parser.add_argument("--system", choices=sorted(_learning_report.NAMES), help="this system alone")
    parser.add_argument("--report", action="store_true", help="make no runs, only table and pictures")
    parser.add_argument("--peers_python", help="use this interpreter for the peer instead of making an environment")
    flags = parser.parse_args()
    _machine.announce("learning, beside Stable-Baselines3")
    names = [flags.only] if flags.only else list(TASKS)
    systems = [flags.system] if flags.system else list(_learning_report.NAMES)
    jobs = [] if flags.report else list(missing(names, systems, flags.seeds))
    for done, job in enumerate(jobs):
        _machine.progress(f"{done + 1} of {len(jobs)}: {job.name}, {job.system}, seed {job.seed}")
        _machine.progress(f"  {work(job, flags.peers_python)}")
        _learning_report.write()
    _learning_report.write()
    print(_learning_report.section())


if __name__ == "__main__":
    main()
