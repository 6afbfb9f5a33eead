"""Which checkpoints stay, and the removal of the others with everything that belongs to them."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Sequence

from absl import logging

from alf.trainers.checkpoint_files import MODELS_DIR, REPLAY_DIR
from alf.trainers.run_index import Record

_STAY = ("best", "final", "milestone")


@dataclasses.dataclass(frozen=True)
class Retention:
    """The newest `keep` checkpoints stay, and of the older ones the best, the final one and the milestones.

    Attributes:
      keep: how many; None or 0 for all.
      milestones: every k-th checkpoint of a run becomes a milestone, which stays for ever; 0 for none.
      keep_periodic: the newest "periodic" one stays in any case.
      replays: the replay memories of so many of the newest checkpoints stay; None or 0 for all. With `keep_periodic` also
        that of the newest "periodic" one.
    """

    keep: int | None = 20
    milestones: int = 0
    keep_periodic: bool = False
    replays: int | None = 1

    def __post_init__(self) -> None:
        """Checks the numbers; ValueError names the one that is negative."""
        for name in ("keep", "milestones", "replays"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"Retention.{name}={value} must be 0 or more.")

    def is_milestone(self, number: int) -> bool:
        """Whether the `number`-th checkpoint of a run, counted from 1, is one."""
        return bool(self.milestones) and number % self.milestones == 0

    def superfluous(self, records: Sequence[Record]) -> list[Record]:
        """Those of `records`, which are in order of age, that go."""
        if not self.keep:
            return []
        periodic = self._newest_periodic(records)
        return [r for r in records[: -self.keep] if not set(_STAY) & set(r.kinds) and r not in periodic]

    def _newest_periodic(self, records: Sequence[Record]) -> list[Record]:
        return [r for r in records if "periodic" in r.kinds][-1:] if self.keep_periodic else []

    def without_replays(self, records: Sequence[Record]) -> list[Record]:
        """Those of `records`, in order of age, whose replay memory goes: as they are then, without these files."""
        holding = [r for r in records if replay_files(r)]
        if not self.replays:
            return []
        stay = self._newest_periodic(records)
        thin = [r for r in holding[: -self.replays] if r not in stay]
        return [dataclasses.replace(r, files=[f for f in r.files if f not in replay_files(r)]) for r in thin]


def replay_files(record: Record) -> list[str]:
    """The files of a record's replay memory."""
    place = os.path.join(REPLAY_DIR, record.name) + os.sep
    return [f for f in record.files if f.startswith(place)]


def delete_files(root_dir: str, record: Record, kept: Iterable[Record]) -> None:
    """Removes all files of a record but those that a kept one has too; logs what cannot be removed.

    Args:
      root_dir: of the run.
      record: which is in the index no more.
      kept: the records that stay.
    """
    needed = {f for other in kept for f in other.files}
    for file in record.files:
        if file not in needed:
            _remove(os.path.join(root_dir, file))
    for place in (MODELS_DIR, REPLAY_DIR):
        directory = os.path.join(place, record.name)
        if not any(f.startswith(directory + os.sep) for f in needed):
            shutil.rmtree(os.path.join(root_dir, directory), ignore_errors=True)


def delete_leftovers(root_dir: str, paths: Iterable[str]) -> None:
    """Removes what crashed saves have left, files and directories relative to the run's directory."""
    for path in paths:
        full = os.path.join(root_dir, path)
        logging.info("Removing %s, which belongs to no checkpoint.", full)
        if os.path.isdir(full):
            shutil.rmtree(full, ignore_errors=True)
        else:
            _remove(full)


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        logging.info("%s is gone already.", path)
    except OSError as e:
        logging.warning("%s cannot be removed: %s", path, e)
