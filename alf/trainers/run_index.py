"""The run index `training_status.json`: which checkpoints a run has, of what worth, and how the run stands.

It is written last, after the files it speaks of, and a checkpoint that it does not list does not exist for anybody.
Reading it needs no TensorFlow, never writes, and never fails: what cannot be read is made up from the directory.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from alf.trainers.checkpoint_files import (
    CHECKPOINT_DIR,
    PREFIX,
    checkpoint_name,
    complete_checkpoints,
    counts_in,
    files_of,
)
from alf.utils.files import write_atomically

INDEX_FILE = "training_status.json"
# The configuration that a run has used; other gin files of its directory are the user's.
CONFIG_FILE = "configured.gin"
# What judges the checkpoints of a run with self-play, where no behavior is named.
RATING = "rating"

_FORMAT = 1
# Whose checkpoints the file holds: those of a run with behaviors too are of all of them together.
_BEHAVIOR = "agent"
_KINDS = ("best", "final", "milestone", "periodic")


def now() -> str:
    """The time, ISO 8601 with its zone, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


@dataclasses.dataclass(frozen=True)
class Record:
    """One checkpoint.

    Attributes:
      name: "ckpt-<step>".
      step: the global counter.
      env_steps: environment steps that the learner had got.
      iterations: iterations that were done.
      files: all that belongs to it, relative to the run's directory.
      reward: mean return that it was judged by; None when it was not.
      reward_episodes: how many episodes that mean is over.
      created: ISO 8601 time.
      kinds: why it was made or stays, sorted: "best", "final", "milestone", "periodic"; may be none of them any more.
    """

    name: str
    step: int
    env_steps: int = 0
    iterations: int = 0
    files: list[str] = dataclasses.field(default_factory=list)
    reward: float | None = None
    reward_episodes: int = 0
    created: str = ""
    kinds: list[str] = dataclasses.field(default_factory=lambda: ["periodic"])

    def prefix(self) -> str:
        """Path of its TensorFlow checkpoint without suffix, relative to the run's directory."""
        index = next(f for f in self.files if f.endswith(f"{self.name}.index"))
        return index.removesuffix(".index")

    def with_kinds(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Record:
        """This record with other kinds."""
        return dataclasses.replace(self, kinds=sorted((set(self.kinds) | set(add)) - set(remove)))


class RunIndex:
    """The records of a run and the facts about it; each object stands for one reading of one directory.

    Attributes:
      run: free facts: status ("running", "finished", "interrupted", "failed"), why, versions, seed, command line, ...
    """

    def __init__(self, root_dir: str, folder: str = CHECKPOINT_DIR) -> None:
        """Creates an empty index; `load` reads one.

        Args:
          root_dir: of the run.
          folder: where in it the checkpoints are.
        """
        self.run: dict[str, Any] = {}
        self._root_dir = root_dir
        self._folder = folder
        self._records: list[Record] = []
        self._saves = 0

    @classmethod
    def load(cls, root_dir: str, folder: str = CHECKPOINT_DIR, warn: bool = True) -> RunIndex:
        """Reads the index of a run; empty for a new one.

        A missing or damaged index is made up from the complete checkpoints in the directory.

        Args:
          root_dir: of the run.
          folder: where in it the checkpoints are.
          warn: of an index that was made up.
        """
        index = cls(root_dir, folder)
        problem = index._read()
        if problem is not None:
            found = index._adopt_checkpoints()
            # A run that has not saved yet has none, and that is no trouble.
            if warn and (found or problem != "is missing"):
                logging.warning(
                    "%s %s: it was made up from the directory, %d checkpoints added; rewards are unknown for them.",
                    os.path.join(root_dir, INDEX_FILE),
                    problem,
                    found,
                )
        return index

    def records(self) -> list[Record]:
        """The checkpoints, oldest first."""
        return list(self._records)

    def saves(self) -> int:
        """How many checkpoints were ever recorded, those included that are gone."""
        return self._saves

    def latest(self) -> Record | None:
        """The newest checkpoint."""
        return self._records[-1] if self._records else None

    def best(self) -> Record | None:
        """The checkpoint with the highest reward so far."""
        return self._of_kind("best")

    def final(self) -> Record | None:
        """What the run ended with; None while it goes on."""
        return self._of_kind("final")

    def find(self, which: str) -> Record | None:
        """The checkpoint called "latest", "best", "final", "<step>" or "ckpt-<step>"."""
        if which == "latest":
            return self.latest()
        if which in ("best", "final"):
            return self._of_kind(which)
        name = which if which.startswith(f"{PREFIX}-") else f"{PREFIX}-{which}"
        return next((r for r in self._records if r.name == name), None)

    def _of_kind(self, kind: str) -> Record | None:
        return next((r for r in reversed(self._records) if kind in r.kinds), None)

    def add(self, record: Record) -> Record:
        """Records a checkpoint, in the place of one of the same step; returns it with its kinds.

        At most one record is "best": that with the highest reward, the first one of these. At most one is "final", and
        none once a run goes on.
        """
        others = [r for r in self._records if r.step != record.step]
        known = len(others) != len(self._records)
        if "best" in record.kinds:
            others = [r.with_kinds(remove=["best"]) for r in others]
        if "final" in record.kinds or not known:
            others = [r.with_kinds(remove=["final"]) for r in others]
        self._records = sorted([*others, record], key=lambda r: r.step)
        self._saves += not known
        self._mark_best()
        return next(r for r in self._records if r.step == record.step)

    def remove(self, record: Record) -> None:
        """Takes a record out; its files stay. Where it was the best, the best of the others is that now."""
        self._records = [r for r in self._records if r.name != record.name]
        self._mark_best()

    def _mark_best(self) -> None:
        judged = [r for r in self._records if r.reward is not None]
        if judged:
            best = max(judged, key=lambda r: -math.inf if r.reward is None else r.reward)
            self._records = [
                r.with_kinds(add=["best"]) if r is best else r.with_kinds(remove=["best"]) for r in self._records
            ]

    def forget_rewards(self) -> None:
        """Makes all records ones that were not judged, none of which is the best."""
        self._records = [
            dataclasses.replace(r.with_kinds(remove=["best"]), reward=None, reward_episodes=0) for r in self._records
        ]

    def reset(self, records: Iterable[Record], saves: int) -> None:
        """Goes back to what `records` and `saves` were."""
        self._records, self._saves = list(records), saves

    def save(self) -> None:
        """Writes the index, whole or not at all.

        Raises:
          OSError: it cannot be written.
        """
        self.run["updated"] = now()
        listed = {"saves": self._saves, "checkpoints": [dataclasses.asdict(r) for r in self._records]}
        data = {"format": _FORMAT, "run": self.run, "behaviors": {_BEHAVIOR: listed}}
        write_atomically(
            os.path.join(self._root_dir, INDEX_FILE), json.dumps(_plain(data), indent=1, allow_nan=False) + "\n"
        )

    # ---- reading ----

    def _read(self) -> str | None:
        """Takes over the file; returns what is wrong with it."""
        try:
            with open(os.path.join(self._root_dir, INDEX_FILE), "rb") as f:
                data = _plain(json.loads(f.read()))
        except FileNotFoundError:
            return "is missing"
        except (OSError, ValueError, RecursionError) as e:
            return f"cannot be read ({type(e).__name__})"
        if not isinstance(data, dict):
            return "is not an index"
        if isinstance(data.get("run"), dict):
            self.run = data["run"]
        behaviors = data.get("behaviors")
        if not isinstance(behaviors, dict) or _BEHAVIOR not in behaviors:
            return "has no list of checkpoints"
        return None if self._read_list(behaviors[_BEHAVIOR]) else "has records that make no sense"

    def _read_list(self, data: Any) -> bool:
        """Takes over what can be understood; returns whether that is all."""
        given = data.get("checkpoints") if isinstance(data, dict) else None
        if not isinstance(given, list):
            return False
        records = {r.step: r for r in map(self._record, given) if r is not None}
        self._records = [records[step] for step in sorted(records)]
        self._saves = max(_whole(data.get("saves")), len(records))
        return len(records) == len(given)

    def _record(self, data: Any) -> Record | None:
        """The record that `data` means; None when its name, step and files do not fit together."""
        if not isinstance(data, dict) or not isinstance(data.get("files"), list):
            return None
        step, files = data.get("step"), data["files"]
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            return None
        name = checkpoint_name(step)
        first = os.path.normpath(os.path.join(self._folder, f"{name}.index"))
        if data.get("name") != name or first not in files or not all(_is_inside(f) for f in files):
            return None
        reward, created, kinds = data.get("reward"), data.get("created"), data.get("kinds")
        return Record(
            name=name,
            step=step,
            env_steps=_whole(data.get("env_steps")),
            iterations=_whole(data.get("iterations")),
            files=files,
            reward=_number(reward),
            reward_episodes=_whole(data.get("reward_episodes")),
            created=created if isinstance(created, str) else "",
            kinds=sorted(k for k in _KINDS if k in kinds) if isinstance(kinds, list) else ["periodic"],
        )

    def _adopt_checkpoints(self) -> int:
        """Adds complete checkpoints in the directory that have no record; returns how many."""
        known = {r.step for r in self._records}
        missing = [step for step in complete_checkpoints(self._root_dir, self._folder) if step not in known]
        self._records = sorted([*self._records, *map(self._made_up, missing)], key=lambda r: r.step)
        self._saves = max(self._saves, len(self._records))
        return len(missing)

    def _made_up(self, step: int) -> Record:
        files = files_of(self._root_dir, step, self._folder)
        index = os.path.join(self._root_dir, self._folder, f"{checkpoint_name(step)}.index")
        env_steps, iterations = counts_in(index.removesuffix(".index"))
        try:
            written = (
                datetime.datetime.fromtimestamp(os.path.getmtime(index)).astimezone().isoformat(timespec="seconds")
            )
        except OSError:
            written = ""
        return Record(checkpoint_name(step), step, env_steps, iterations, files, created=written)


# ---- values ----


def _is_inside(path: Any) -> bool:
    """Whether a value is a plain relative path below the run's directory: pruning removes what a record names."""
    if not isinstance(path, str) or not path.isprintable() or os.path.isabs(path):
        return False
    try:
        os.fsencode(path)
    except UnicodeError:
        return False
    return path == os.path.normpath(path) and path.split(os.sep)[0] not in ("", ".", "..")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _plain(value: Any) -> Any:
    """`value` of what JSON knows: numbers of numpy become Python's, NaN and infinity None, other things text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    item = getattr(value, "item", None)
    return _plain(item()) if callable(item) and getattr(value, "size", 0) == 1 else str(value)
