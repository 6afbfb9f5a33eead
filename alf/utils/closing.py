"""Closing many things, whatever becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from absl import logging


def close_all(closers: Iterable[Callable[[], None]]) -> None:
    """Calls all of them; what one raises is logged, since everything is over, and keeps the others from nothing.

    Raises:
      BaseException: Ctrl-C or the like, the first that came, when all have been called.
    """
    interrupt: BaseException | None = None
    for close in closers:
        try:
            close()
        except Exception as e:
            logging.warning("While closing: %s: %s", type(e).__name__, e)
        except BaseException as e:
            interrupt = interrupt or e
    if interrupt is not None:
        raise interrupt
