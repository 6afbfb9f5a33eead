"""Seconds from process start to the first learner iteration of CartPole, and where they go.

python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import _events, _machine

EXAMPLE = "async_ppo_cart_pole"

# Each line imports what the ones before it did and one thing more.
_IMPORTS = {
    "python": "pass",
    "numpy": "import numpy",
    "tensorflow": "import alf._tf",
    "tensorflow + tf-agents": "import alf.data_structures",
    "everything that a run imports": "import absl.flags as f, alf.bin.command_line as c; f.FLAGS(['x']); c.set_up()",
}


def _seconds(code: str, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=_machine.ROOT)
        times.append(time.perf_counter() - begun)
    return _machine.median(times) or 0.0


def _first_iteration(example: str) -> dict[str, float]:
    """Runs two iterations; seconds from process start to the first summary of an iteration, and to the end."""
    with tempfile.TemporaryDirectory() as folder:
        params = ["TrainerConfig.num_iterations=2", "TrainerConfig.num_env_steps=0", "TrainerConfig.summary_interval=1"]
        command = [sys.executable, "-m", "alf.bin.train", f"--gin_file={example}", f"--root_dir={folder}/run"]
        command += [f"--gin_param={param}" for param in params]
        begun = time.time()
        done = subprocess.run(command, capture_output=True, text=True, cwd=_machine.ROOT)
        ended = time.time() - begun
        if done.returncode:
            raise RuntimeError(f"alf.bin.train ended with code {done.returncode}:\n{done.stderr[-2000:]}")
        points = _events.scalars(pathlib.Path(folder, "run"))
    first = min(p.wall_time for series in points.values() for p in series)
    return {"first_iteration": first - begun, "whole_process": ended}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--example", default=EXAMPLE)
    flags = parser.parse_args()
    head = _machine.announce("start-up")
    rows = [{"what": f"import: {name}", "seconds": _seconds(code, flags.repeats)} for name, code in _IMPORTS.items()]
    runs = [_first_iteration(flags.example) for _ in range(flags.repeats)]
    for key, label in (("first_iteration", "first learner iteration"), ("whole_process", "two iterations and the end")):
        rows.append({"what": label, "seconds": _machine.median([run[key] for run in runs])})
    _machine.save("startup", head, rows, runs=runs)


if __name__ == "__main__":
    main()
