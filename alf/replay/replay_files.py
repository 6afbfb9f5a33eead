"""What a replayer holds, on disk: numpy archives of a bounded size, read without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from alf.replay.stream_index import ranges
from alf.replay.uniform_replay import UniformReplay

_FORMAT = 1
_FACTS = "replay.json"
_STATE = "state.npz"
# A part is made in memory before it is written.
_PART_BYTES = 32 * 2**20


class ReplayFilesError(RuntimeError):
    """The files are damaged, or of a replayer that this one cannot take over from."""


def save_replay(replayer: UniformReplay, directory: str, part_bytes: int = _PART_BYTES) -> int:
    """Writes all steps that a replayer holds, oldest first, stream by stream, part by part.

    Args:
      replayer: stays as it is.
      directory: is made.
      part_bytes: about so much memory is taken, and a file of that size written, at a time.

    Returns:
      the bytes of steps that were written.

    Raises:
      OSError: something cannot be written.
    """
    os.makedirs(directory, exist_ok=True)
    buffer = replayer.buffer
    runs = buffer.index.runs()
    per_part = max(1, part_bytes // buffer.step_bytes)
    parts = 0
    for streams, steps in _chunks(runs, per_part):
        arrays = replayer.read_rows(buffer.index.rows(streams, steps))
        np.savez(_part(directory, parts), *arrays)
        parts += 1
    state: dict[str, Any] = {"runs": runs, **replayer.state()}
    np.savez(os.path.join(directory, _STATE), **state)
    facts = {
        "format": _FORMAT,
        "replayer": type(replayer).__name__,
        "num_environments": buffer.num_environments,
        "steps": buffer.total_steps,
        "steps_per_part": per_part,
        "parts": parts,
        "leaves": _leaves(replayer),
    }
    with open(os.path.join(directory, _FACTS), "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=1)
    return buffer.total_steps * buffer.step_bytes


def load_replay(replayer: UniformReplay, directory: str) -> int:
    """Has a replayer hold what `save_replay` wrote, or the newest of it if it holds less; returns its steps.

    What is observed next begins new runs. After an error the replayer is empty.

    Raises:
      ReplayFilesError: the files are damaged, or of other streams, steps or kind of replayer.
    """
    replayer.clear()
    try:
        with open(os.path.join(directory, _FACTS), encoding="utf-8") as f:
            facts = json.load(f)
        _check(replayer, facts)
        state = _read(os.path.join(directory, _STATE))
        index = replayer.buffer.index
        oldest = np.maximum(state["count"] - index.max_length, 0)
        for part, (streams, steps) in enumerate(_chunks(state["runs"], facts["steps_per_part"])):
            arrays = _read(_part(directory, part))
            kept = steps >= oldest[streams]
            if kept.any():
                values = [_typed(arrays[f"arr_{i}"][kept], spec) for i, spec in enumerate(replayer.row_specs())]
                replayer.write_rows(index.rows(streams[kept], steps[kept]), values)
        replayer.load_state(state)
    # A damaged archive raises what it likes, by where zipfile and numpy stumble: EOFError, MemoryError, RuntimeError, ...
    except Exception as e:
        replayer.clear()
        raise ReplayFilesError(f"The replay files in {directory} cannot be read: {type(e).__name__}: {e}") from e
    return replayer.total_steps


def _check(replayer: UniformReplay, facts: dict[str, Any]) -> None:
    mine = {
        "format": _FORMAT,
        "replayer": type(replayer).__name__,
        "num_environments": replayer.buffer.num_environments,
        "leaves": _leaves(replayer),
    }
    for name, value in mine.items():
        if facts[name] != value:
            raise ValueError(f"they are of {name} {facts[name]}, and this run has {value}")


def _leaves(replayer: UniformReplay) -> list[list[Any]]:
    return [[spec.dtype.name, spec.shape.as_list()] for spec in replayer.row_specs()]


def _chunks(runs: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Streams and numbers of all steps of runs [R, 3], `size` at a time."""
    sizes = runs[:, 2] - runs[:, 1]
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, size):
        end = min(begin + size, total)
        first = np.clip(begin - (ends - sizes), 0, sizes)
        taken = np.clip(end - (ends - sizes), 0, sizes) - first
        yield np.repeat(runs[:, 0], taken), ranges(runs[:, 1] + first, taken)


def _read(path: str) -> dict[str, np.ndarray]:
    """The arrays of an archive, whose check sums are tested."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _typed(array: np.ndarray, spec: tf.TensorSpec) -> np.ndarray:
    """An array of an archive, which forgets what dtypes numpy does not have itself, such as bfloat16, are called."""
    return array.view(spec.dtype.as_numpy_dtype) if array.dtype.kind == "V" else array


def _part(directory: str, number: int) -> str:
    return os.path.join(directory, f"part-{number:05d}.npz")
