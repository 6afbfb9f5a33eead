"""Trains an off-policy example in a process of its own and prints one JSON line: its rate, its cost and its return.

python -m benchmarks._off_policy_run --example sac_pendulum --steps 10000 --params '["SacAlgorithm.target_update_tau=0.01"]'
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from typing import Any

from alf.trainers.counts import EnvironmentSteps
from alf.trainers.making import make_trainer
import gin

from benchmarks import _machine

# Updates before the clock starts: the first ones trace, build kernels and fill caches.
WARM_UP = 500


class Watch:
    """Notes after each `train` call how many updates there were, and the wall and processor seconds until then."""

    def __init__(self, updates_per_call: int) -> None:
        self._per_call = updates_per_call
        self.marks: list[tuple[int, float, float]] = []

    def __call__(self) -> None:
        self.marks.append(((len(self.marks) + 1) * self._per_call, time.perf_counter(), time.process_time()))

    def rates(self) -> dict[str, float]:
        """Updates a second, processor milliseconds an update, and processors busy, after the warm-up."""
        warm = next((m for m in self.marks if m[0] >= WARM_UP), self.marks[0])
        updates, wall, cpu = (float(b - a) for a, b in zip(warm, self.marks[-1], strict=True))
        return {"updates_per_s": updates / wall, "cpu_ms": 1e3 * cpu / updates, "processors_busy": cpu / wall}


def run(example: str, params: list[str], steps: int, over: int) -> dict[str, Any]:
    """Trains `example` for `steps` environment steps in all; the return is the mean of the last `over` episodes."""
    bindings = [f"alf.AverageReturnMetric.buffer_size={over}", *params]
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(example, folder, bindings)
        left = EnvironmentSteps(steps - trainer.schedule.heatup_steps.value)
        trainer.set_schedule_params(dataclasses.replace(trainer.schedule, improve_steps=left))
        trainer.initialize()
        watch = Watch(gin.query_parameter("TrainerConfig.num_updates_per_train_step"))
        trainer.algorithm.add_after_train_hook(watch)
        metrics = trainer.driver.get_metrics()
        trainer.train()
    return {**watch.rates(), "mean_return": float(metrics[2].result()), "steps": int(metrics[1].result())}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", required=True)
    parser.add_argument("--params", default="[]", help="JSON list of gin bindings")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--over", type=int, default=20, help="episodes that the return is the mean of")
    flags = parser.parse_args()
    result = run(flags.example, json.loads(flags.params), flags.steps, flags.over)
    from alf import _tf

    # Those in force: TensorFlow has started.
    threads = _tf.configure_threads()
    print(json.dumps({**result, "threads": threads, "load": _machine.machine()["load_average"]}))


if __name__ == "__main__":
    main()
