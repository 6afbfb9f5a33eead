"""Which files in a run's directory make up a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

CHECKPOINT_DIR = os.path.join("train", "algorithm")
MODELS_DIR = os.path.join("train", "models")
REPLAY_DIR = os.path.join("train", "replay")

PREFIX = "ckpt"
_FILE = re.compile(rf"{PREFIX}-(0|[1-9]\d*)\.(index|data-\d{{5}}-of-\d{{5}})", re.ASCII)


def checkpoint_name(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"{PREFIX}-{step}"


def complete_checkpoints(root_dir: str, folder: str = CHECKPOINT_DIR) -> list[int]:
    """Steps of the checkpoints in a directory of which all files are there, in numeric order."""
    found: dict[int, set[str]] = {}
    for name in _names(os.path.join(root_dir, folder)):
        match = _FILE.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), set()).add(match[2])
    return sorted(step for step, parts in found.items() if _is_complete(parts))


def _is_complete(parts: set[str]) -> bool:
    shards = [p for p in parts if p != "index"]
    return "index" in parts and any(len(shards) == int(p.rpartition("-")[2]) for p in shards)


def files_of(root_dir: str, step: int, folder: str = CHECKPOINT_DIR) -> list[str]:
    """All files of a step's checkpoint, its models and its replay memory, relative to the run's directory."""
    name = checkpoint_name(step)
    own = [n for n in _names(os.path.join(root_dir, folder)) if _FILE.fullmatch(n) and n.startswith(f"{name}.")]
    files = [os.path.normpath(os.path.join(folder, n)) for n in own]
    for place in (MODELS_DIR, REPLAY_DIR):
        for directory, _, names in os.walk(os.path.join(root_dir, place, name)):
            files += [os.path.relpath(os.path.join(directory, n), root_dir) for n in names]
    return sorted(files)


def leftovers(root_dir: str, steps: Iterable[int], folder: str = CHECKPOINT_DIR) -> list[str]:
    """What is of checkpoints of other steps than `steps`, or was begun only, relative to the run's directory."""
    kept = {checkpoint_name(step) for step in steps}
    places = [(folder, re.compile(rf"({PREFIX}-\d+)(\..*|_temp)", re.ASCII))]
    places += [(place, re.compile(rf"({PREFIX}-\d+)(\..*)?", re.ASCII)) for place in (MODELS_DIR, REPLAY_DIR)]
    found = []
    for place, pattern in places:
        for name in _names(os.path.join(root_dir, place)):
            match = pattern.fullmatch(name)
            if match and (match[1] not in kept or name.endswith(("_temp", "-partial"))):
                found.append(os.path.normpath(os.path.join(place, name)))
    return found


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def counts_in(prefix: str) -> tuple[int, int]:
    """Environment steps and iterations inside a checkpoint; zeros where they cannot be read."""
    try:
        import tensorflow as tf

        reader = tf.train.load_checkpoint(prefix)
        keys = [f"counters/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("env_step", "iteration")]
        env_steps, iterations = (int(reader.get_tensor(key)) for key in keys)
    # A damaged or foreign checkpoint: the reader raises many kinds of errors, by where it stumbles.
    except Exception:
        return 0, 0
    return env_steps, iterations
