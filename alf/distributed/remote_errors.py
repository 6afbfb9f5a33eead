"""Errors of user code as plain data, so that they travel from a worker without being pickled."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any, NamedTuple

from alf.distributed.engine import resolve

_PLAIN = (str, int, float, bool, bytes, type(None))


class RemoteError(NamedTuple):
    """What a worker tells of an error.

    Attributes:
      kind: "module:name" of its class.
      args: the arguments that it was made with; those that are not plain data are left out, and so are all then.
      text: its message.
      trace: its traceback, as Python prints it.
    """

    kind: str
    args: tuple[Any, ...] | None
    text: str
    trace: str


def described(error: BaseException) -> RemoteError:
    """The error as plain data; to be called in the worker."""
    plain = all(type(arg) in _PLAIN for arg in error.args)
    return RemoteError(
        kind=f"{type(error).__module__}:{type(error).__qualname__}",
        args=tuple(error.args) if plain else None,
        text=str(error),
        trace="".join(traceback.format_exception(error)),
    )


def rebuilt(told: RemoteError, worker: str) -> Exception:
    """An exception of the class that the worker raised, with the worker's traceback as a note.

    Args:
      told: from `described`.
      worker: which worker, for the note.

    Returns:
      the exception. A RuntimeError that names the class if that cannot be imported here, is made in another way, or ends
      programs rather than calls, as SystemExit does.
    """
    error = _of_its_class(told) or RuntimeError(f"{told.kind.rpartition(':')[2]}: {told.text}")
    error.add_note(f"In {worker}:\n{told.trace}")
    return error


def _of_its_class(told: RemoteError) -> Exception | None:
    try:
        kind = resolve(told.kind)
    except Exception:  # whatever an import of user code does
        return None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    # What gin raises again, with the names of what it called in its text, has no arguments any more.
    ways: list[tuple[Any, ...]] = [(told.text,)] if told.args is None else [told.args, (told.text,)]
    for arguments in ways:
        with contextlib.suppress(Exception):  # whatever a constructor of user code does with these arguments
            error = kind(*arguments)
            if str(error) == told.text:
                return error
    return None
