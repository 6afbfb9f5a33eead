"""What a worker makes of the settings that it is sent, in a process of its own or here.

    python -m tests.trainers.worker_process < settings.json

reads a list of settings of `make_driver` and writes a list of facts about the drivers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

from alf.trainers import remote


def facts_of(algorithm: Any) -> dict[str, Any]:
    """What learner and worker must agree upon."""

    def specs(nest: Any) -> list[str]:
        return [f"{s.dtype.name}{s.shape.as_list()}" for s in tf.nest.flatten(nest)]

    return {
        "experience": specs(algorithm.experience_spec),
        "state": specs(algorithm.train_state_spec),
        "observation": specs(algorithm.observation_spec),
        "action": specs(algorithm.action_spec),
        "weights": specs([v.read_value() for v in algorithm.acting_variables()]),
    }


def facts_of_worker(settings: dict[str, Any]) -> dict[str, Any]:
    """Makes the driver of worker 1 in its third life, and tells of it."""
    driver = remote.make_driver(1, 2, **settings)
    try:
        memories = {} if driver.algorithm.exp_replayer is None else driver.algorithm.memories()
        return {**facts_of(driver.algorithm), "threads": driver.timings().threads, "memories": len(memories)}
    finally:
        driver.stop()


if __name__ == "__main__":
    json.dump([facts_of_worker(settings) for settings in json.load(sys.stdin)], sys.stdout)
