"""Reads what a training run wrote for TensorBoard."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

from alf import _tf as _tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


class Point(NamedTuple):
    """One value of a summary."""

    wall_time: float
    step: int
    value: float


def scalars(root_dir: pathlib.Path) -> dict[str, list[Point]]:
    """Every scalar summary under `root_dir`/train, by tag, in the order written.

    Raises:
      FileNotFoundError: there is no event file.
    """
    files = sorted(root_dir.glob("train/**/*tfevents*"))
    if not files:
        raise FileNotFoundError(f"no TensorBoard event file under {root_dir}/train: did the run start?")
    found: dict[str, list[Point]] = {}
    for file in files:
        accumulator = EventAccumulator(str(file), size_guidance={"tensors": 0, "scalars": 0}).Reload()
        for tag in accumulator.Tags()["tensors"]:
            for event in accumulator.Tensors(tag):
                value = tensor_util.make_ndarray(event.tensor_proto)
                if value.dtype.kind in "fiu" and value.size == 1:
                    found.setdefault(tag, []).append(Point(event.wall_time, event.step, float(value)))
        for tag in accumulator.Tags()["scalars"]:
            found.setdefault(tag, []).extend(Point(e.wall_time, e.step, e.value) for e in accumulator.Scalars(tag))
    return found


def steps_per_second(points: list[Point], warm_up: float = 2.0) -> float | None:
    """Rate of a growing counter from `warm_up` seconds after its first point to its last; None when too short."""
    late = [p for p in points if p.wall_time - points[0].wall_time >= warm_up]
    if len(late) < 2:
        return None
    return (late[-1].value - late[0].value) / (late[-1].wall_time - late[0].wall_time)


def reached(points: list[Point], target: float) -> float | None:
    """Wall time at which a value first reached `target`."""
    return next((p.wall_time for p in points if p.value >= target), None)
