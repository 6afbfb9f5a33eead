"""What weights are taken from: the text of `initialize_from`, and the checkpoint that it means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from alf.trainers.checkpointing import Checkpointer, CheckpointError, locate


class Origin(NamedTuple):
    """Whose weights go where.

    Attributes:
      target: the behavior of this run that gets them; None for the whole algorithm.
      behavior: the behavior there that they are of; None where it was not named.
      path: of the checkpoint, without suffix.
    """

    target: str | None
    behavior: str | None
    path: str


def origins(text: str, names: Sequence[str], setting: str = "initialize_from") -> list[Origin]:
    """The origins that a text means.

    Args:
      text: `[TARGET=][BEHAVIOR@]SOURCE`, with TARGETs several of them between commas. SOURCE is the path of a run, of a
        checkpoint, or `RUN:which` with "best", "final" or a step.
      names: of the behaviors of this run, one of which a TARGET is; none of a single agent's.
      setting: what the text is given as, for errors.

    Raises:
      CheckpointError: there is no such checkpoint, or a TARGET comes twice.
    """
    targets = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    parts = re.split(rf",(?=(?:{targets})=)", text) if names else [text]
    found = [_origin(part, names, f"{setting}={part}") for part in parts]
    given = [origin.target for origin in found]
    for target in given:
        if given.count(target) > 1:
            raise CheckpointError(f"{setting}={text}: the behavior {target!r} is given twice.")
    return found


def _origin(text: str, names: Sequence[str], what: str) -> Origin:
    path = _find(text, what)
    if path is not None:
        return Origin(None, None, path)
    target, found, rest = text.partition("=")
    if not found or target not in names:
        target, rest = "", text
    path, behavior = _find(rest, what), ""
    if path is None and "@" in rest:
        behavior, _, rest = rest.partition("@")
        path = _find(rest, what)
    if path is None:
        behaviors = f" Behaviors of this run: {', '.join(map(repr, names))}." if names else ""
        raise CheckpointError(f"{what}: there is no run and no checkpoint of that name.{behaviors}")
    return Origin(target or None, behavior or None, path)


def _find(source: str, what: str) -> str | None:
    """The checkpoint that a path means, without suffix; None where there is nothing of the kind."""
    directory, which = locate(source)
    if directory is None and ":" in source:
        run, _, which = source.rpartition(":")
        directory, _ = locate(run)
    if directory is None:
        return None
    checkpointer = Checkpointer(directory, {})
    record = checkpointer.index.find(which)
    if record is None:
        there = ", ".join(r.name for r in checkpointer.index.records()) or "none"
        raise CheckpointError(f"{what}: there is no checkpoint {which!r} in {directory}; there are: {there}.")
    return next(p for p in checkpointer.available() if p.endswith(record.name))
