"""Signals that come in the midst of what must be done as a whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from alf.utils.uninterrupted import held_up, in_whole, whole


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt, however the tests were started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_an_interrupt_comes_after_the_stretch_that_it_fell_into() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), whole():
        with whole():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    assert not in_whole()


def test_a_second_interrupt_is_not_held_up() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), whole():
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        signal.raise_signal(signal.SIGINT)
        done.append("second")
    assert done == ["first"]


@pytest.mark.parametrize("stretch", [held_up, whole])
def test_a_handler_is_called_once_at_the_end_and_the_error_of_the_stretch_stays(stretch: Any) -> None:
    called: list[bool] = []

    def handle(number: int, frame: FrameType | None) -> None:
        called.append(in_whole())

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(ValueError, match="mine"), stretch():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("mine")
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [stretch is whole]


def test_signals_that_waited_are_all_handled_whatever_the_first_one_raises() -> None:
    called: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        called.append(number)
        if number == signal.SIGHUP:
            raise ValueError("the first")

    numbers = (signal.SIGHUP, signal.SIGTERM)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        with pytest.raises(ValueError, match="the first"), held_up():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            assert not called
        assert called == list(numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_other_threads_have_stretches_too() -> None:
    seen: list[bool] = []

    def work() -> None:
        with whole():
            seen.append(in_whole())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
    assert not in_whole()
