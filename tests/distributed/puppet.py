"""A worker's object that does as it is told; imported by name in the worker's process."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

_PATIENCE_SECS = 240.0

# For threads that nothing but the test itself may let go.
LET_GO = threading.Event()
# Numbers of the workers whose `end` was called in this process.
ENDED: list[int] = []


class PuppetError(Exception):
    """An error of user code that is made with two plain arguments."""


class OddError(Exception):
    """An error of user code that cannot be made from its message."""

    def __init__(self, *, cause: str) -> None:
        super().__init__(f"odd because of {cause}")


class Puppet:
    def __init__(self, number: int, life: int, offset: int = 0, unmakable: bool = False) -> None:
        if unmakable:
            raise PuppetError("cannot be made", number)
        self._facts = {"number": number, "life": life, "offset": offset, "pid": os.getpid()}
        self._said: list[Any] = []
        self._inside = threading.Event()
        self._opened = threading.Event()

    def facts(self) -> dict[str, int]:
        return self._facts

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def say(self, word: int) -> list[int]:
        self._said.append(word)
        return list(self._said)

    def give_back(self, *values: Any) -> tuple[Any, ...]:
        return values

    def made(self, size: int) -> np.ndarray:
        return np.full(size, 1.5)

    def look_at(self, array: np.ndarray) -> tuple[int, int, float]:
        """Where the object is, where its numbers are, and their sum."""
        return id(array), array.__array_interface__["data"][0], float(array.sum())

    def take(self) -> str:
        """Waits until `load` is called."""
        self._inside.set()
        self._opened.wait(_PATIENCE_SECS)
        self._inside.clear()
        return "loaded" if self._opened.is_set() else "nobody came"

    def beat(self) -> bool:
        """Whether somebody is in `take`; waits for that."""
        return self._inside.wait(_PATIENCE_SECS)

    def load(self, *values: Any) -> tuple[Any, ...]:
        self._opened.set()
        return values

    def close(self) -> None:
        """Lets `take` wait again."""
        self._opened.clear()

    def hang(self) -> None:
        self._inside.set()
        LET_GO.wait()

    def fail(self, how: str) -> None:
        if how == "plain":
            raise PuppetError("two", 2)
        if how == "key":
            {}["no such key"]
        if how == "odd":
            raise OddError(cause="the weather")
        if how == "array":
            raise ValueError("a bad array", np.zeros(2))
        raise SystemExit(3)

    def end(self) -> None:
        ENDED.append(self._facts["number"])
        self._opened.set()
