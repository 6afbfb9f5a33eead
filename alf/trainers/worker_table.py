"""What a run tells of its workers in `train/workers.json`: written by the learner, read without TensorFlow."""

from __future__ import annotations

import contextlib
import json
import math
import os
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

from alf.utils.files import read_object, write_atomically

WORKERS_FILE = os.path.join("train", "workers.json")

_ERROR_CHARS = 200

# Name, heading and format of the columns that a person is shown.
_COLUMNS = (
    ("worker", "worker", "{:.0f}"),
    ("state", "state", "{}"),
    ("host", "host", "{}"),
    ("pid", "pid", "{:.0f}"),
    ("steps_per_sec", "steps/s", "{:,.0f}"),
    ("steps", "steps", "{:,.0f}"),
    ("lag", "lag", "{:.0f}"),
    ("waits_for_learner", "waits for learner", "{:.0%}"),
    ("restarts", "restarts", "{:.0f}"),
    ("lost_requests", "lost requests", "{:.0f}"),
    ("evaluations", "evaluations", "{:.0f}"),
    ("skipped_evaluations", "skipped", "{:.0f}"),
    ("last_heartbeat_secs", "heartbeat", "{:.0f} s ago"),
)


def write_workers(root_dir: str, facts: Mapping[str, Any] | None) -> None:
    """Writes the table of a run; without workers takes away one that is there.

    Args:
      root_dir: of the run.
      facts: of its workers, JSON values; None when it has none.

    Raises:
      OSError: it cannot be written.
    """
    path = os.path.join(root_dir, WORKERS_FILE)
    if facts is None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        return
    write_atomically(path, json.dumps({"written": time.time(), **_finite(facts)}, indent=1) + "\n")


def read_workers(root_dir: str, problems: list[str]) -> dict[str, Any]:
    """The table of a run, with `age_secs` since it was written; {} when it has none.

    Args:
      root_dir: of the run.
      problems: gets a sentence when the table cannot be read.
    """
    path = os.path.join(root_dir, WORKERS_FILE)
    found = read_object(path, problems, "table of workers", "nothing is known of the workers")
    if found is None:
        return {}
    rows = found.get("workers")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        problems.append(f"{path} is no table of workers.")
        return {}
    written = found.get("written")
    if isinstance(written, (int, float)):
        found["age_secs"] = max(0.0, time.time() - written)
    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """The table as a person reads it; nothing when there is none.

    Args:
      found: from `read_workers`.
    """
    if not found:
        return []
    age = f" {found['age_secs']:.0f} s ago" if "age_secs" in found else ""
    rows = found["workers"]
    columns = [c for c in _COLUMNS if any(row.get(c[0]) is not None for row in rows)]
    cells = [[heading for _, heading, _ in columns]]
    cells += [[_cell(form, row.get(name)) for name, _, form in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    told = [f"Workers{age}: {found.get('pool', len(rows))}"]
    told += ["  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    lost = [row for row in rows if row.get("last_error")]
    return told + [f"  Worker {row.get('worker')} was lost: {_in_short(row['last_error'])}" for row in lost]


def _in_short(error: Any) -> str:
    """An error in a line or two; all of it is in the file."""
    return textwrap.shorten(str(error).rstrip("."), _ERROR_CHARS, placeholder=" ...") + "."


def _cell(form: str, value: Any) -> str:
    if value is None:
        return "-"
    try:
        return form.format(value)
    except (ValueError, TypeError):
        return str(value)


def _finite(value: Any) -> Any:
    """`value` with numbers that JSON does not have as None."""
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
