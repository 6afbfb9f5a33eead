"""Closing goes on whatever happens."""

from __future__ import annotations

import pytest

from alf.utils.closing import close_all


def test_all_are_closed_and_an_interrupt_is_raised_in_the_end() -> None:
    closed: list[str] = []

    def fails() -> None:
        closed.append("fails")
        raise OSError("no disk")

    def interrupted() -> None:
        closed.append("interrupted")
        raise KeyboardInterrupt("the first")

    def again() -> None:
        closed.append("again")
        raise KeyboardInterrupt("the second")

    with pytest.raises(KeyboardInterrupt, match=r"^the first$"):
        close_all([fails, interrupted, again, lambda: closed.append("last")])
    assert closed == ["fails", "interrupted", "again", "last"]
    close_all([fails, lambda: closed.append("all")])
    assert closed[-1] == "all"
