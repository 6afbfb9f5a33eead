"""Code of others that wants to end the program."""

from __future__ import annotations


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
