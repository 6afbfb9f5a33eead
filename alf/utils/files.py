"""Files that a crash at any instant leaves old or new, never half of one, and that are read whatever state they are in."""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import sys
import urllib.parse
from collections.abc import Iterator
from typing import Any

_beginning: contextvars.ContextVar[str | None] = contextvars.ContextVar("beginning", default=None)


def is_pattern(path: str) -> bool:
    """Whether TensorFlow, which reads the path of a checkpoint as a pattern, would not find the file of that name."""
    return "[" in path or "\\" in path


def check_name(path: str, what: str) -> None:
    """Checks that a path is that of the same file for TensorFlow, which takes names for UTF-8, and for patterns.

    Args:
      path: of a directory with checkpoints.
      what: the setting that it comes from.

    Raises:
      ValueError: it does not.
    """
    if is_pattern(path):
        raise ValueError(
            f"{what}={path} has a [ or \\, with which TensorFlow finds no checkpoint again: give another path, or rename the "
            "directory."
        )
    try:
        same = os.fsencode(path) == path.encode()
    except UnicodeEncodeError:
        same = False
    if not same:
        raise ValueError(
            f"{what}={path} has letters that TensorFlow takes for UTF-8, and in this locale names of files are of "
            f"{sys.getfilesystemencoding()}: set PYTHONUTF8=1 in the environment, or give a path of ASCII letters."
        )


@contextlib.contextmanager
def relative_to(directory: str | None) -> Iterator[None]:
    """Around code that reads paths when an environment may have left the working directory that they are relative to.

    Args:
      directory: where `absolute` has relative paths begin, in this thread; None for the working directory.
    """
    before = _beginning.set(directory)
    try:
        yield
    finally:
        _beginning.reset(before)


def beginning() -> str | None:
    """Where relative paths begin now; None in a working directory that is gone."""
    try:
        return _beginning.get() or os.getcwd()
    except FileNotFoundError:
        return None


def absolute(path: str) -> str:
    """A path that stays the same whatever the working directory becomes; `~` is the home folder."""
    return os.path.abspath(os.path.join(_beginning.get() or "", os.path.expanduser(path)))


def full_path(path: str, what: str) -> str:
    """As `absolute`; raises as `check_name`."""
    found = absolute(path)
    check_name(found, what)
    return found


def write_atomically(path: str, text: str) -> None:
    """Makes `text` the content of a file; when this returns, it is on disk.

    Args:
      path: of the file; its directory is made.
      text: written as UTF-8.

    Raises:
      OSError: the file cannot be written; what was there before is unharmed.
    """
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with open(partial, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise
    sync(directory)


def read_object(path: str, problems: list[str], what: str, so: str) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no such file, or it holds something else.

    Args:
      path: of the file.
      problems: gets a sentence when the file is there and is not what it should be.
      what: it should be, for that sentence: "table of workers".
      so: what follows from a file that cannot be read: "nothing is known of the workers".
    """
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        problems.append(f"{path} cannot be read ({type(e).__name__}), so {so}.")
        return None
    if not isinstance(found, dict):
        problems.append(f"{path} is no {what}.")
        return None
    return found


def sync(path: str) -> None:
    """Waits until a file, or the names in a directory, are on disk, not in the cache of the operating system."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_name(name: str) -> str:
    """A file name that stands for any text: letters, digits and `_.-~` as they are, but a first dot, others as `%xx`."""
    quoted = urllib.parse.quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
