"""The flag `--output`, which several commands take, and how a result gets into that file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from absl import flags

from alf.bin.command_line import UsageError
from alf.utils.files import write_atomically

OUTPUT = flags.DEFINE_string("output", None, "File that the result is written to.")


def write(path: str, value: Any) -> None:
    """Makes a JSON value the content of a file.

    Raises:
      UsageError: it cannot be written.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Makes `text` the content of a file.

    Raises:
      UsageError: it cannot be written.
    """
    with told(path):
        write_atomically(path, text)


def append_line(path: str, value: Any) -> None:
    """Appends a JSON value to a file of JSON lines; a line that a crash cut off is ended first.

    Raises:
      UsageError: it cannot be written.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with told(path), open(path, "a+b") as f:
        if f.seek(0, os.SEEK_END):
            f.seek(-1, os.SEEK_END)
            cut_off = f.read(1) != b"\n"
            f.write(b"\n" if cut_off else b"")
        f.write(json.dumps(value, allow_nan=False).encode() + b"\n")


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Around code that writes the file: an OSError becomes one line.

    Raises:
      UsageError: instead of OSError.
    """
    try:
        yield
    except OSError as e:
        raise UsageError(f"--output={path} cannot be written ({e.strerror or e}): give another path.") from e


def read_lines(path: str) -> list[dict[str, Any]]:
    """The JSON objects of a file of JSON lines, without lines that are none; [] where there is no file."""
    values = []
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in f:
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    values.append(value)
    except FileNotFoundError:
        pass
    return values
