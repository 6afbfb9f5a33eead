"""Code of others that wants to end the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def not_an_exit(raised: BaseException, who: str) -> BaseException:
    """`raised` itself, but a SystemExit, by which a run would end as if all were well, as the error that it is there.

    Args:
      raised: by an environment, a teacher, an observer or a metric.
      who: raised it.

    Returns:
      `raised`, or a RuntimeError that names `who` and is caused by it.
    """
    if not isinstance(raised, SystemExit):
        return raised
    error = RuntimeError(
        f"{who} asked the program to end, by sys.exit({'' if raised.code is None else repr(raised.code)}): have it raise "
        "an error, or end the episode."
    )
    error.__cause__ = raised
    return error


@contextlib.contextmanager
def no_exit(who: str) -> Iterator[None]:
    """Around code of `who`, or as a decorator: its SystemExit becomes an error, as of `not_an_exit`.

    Raises:
      RuntimeError: instead of SystemExit.
    """
    try:
        yield
    except SystemExit as e:
        raise not_an_exit(e, who) from e
