"""What runs rollout workers and carries calls to them, whatever it is made of.

An engine knows nothing of reinforcement learning: it makes an object of a named class somewhere, calls its methods, and
says when it is gone. What crosses are numpy arrays, strings, numbers, booleans, None, and tuples, lists and dicts of
these; never functions or classes, and never objects of user code.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, Protocol

# Opaque outside of the engine that made them.
Worker = Any
Call = Any
Ref = Any

CONTROL_METHODS = frozenset({"load", "beat", "end"})


class WorkerLost(Exception):
    """The worker died or cannot be reached; whether it did what it was asked to do is not known."""


class Engine(Protocol):
    """Starts workers and calls them; all methods may be used from any thread.

    A worker is an object of a class given by its name. Its methods run in two lines that do not wait for each other:
    those in `CONTROL_METHODS`, and all others. Within a line calls run one at a time, in the order in which one thread
    sent them. If the class cannot be imported, or its constructor raises, every call of that worker raises that error.

    A lost worker stays lost: whoever wants it back starts another. Nothing is sent twice: a call reaches its worker once
    or, if the worker is lost, perhaps not at all.
    """

    def start(
        self, number: int, life: int, make: str, settings: dict[str, Any], num_cpus: float, resources: dict[str, float]
    ) -> Worker:
        """Starts a worker and returns at once, before it runs.

        Args:
          number: of the worker, counted from 0.
          life: how many workers of this number came before this one.
          make: "module:attribute", the name of a class, which the worker imports and calls as
            `make(number, life, **settings)`. It has a method `end()`, which frees what the object owns, and may be
            called any number of times.
          settings: further arguments of the class.
          num_cpus: processors that are set aside for the worker where the engine chooses among machines.
          resources: further resources it needs, such as {"rollout": 1.0}, by which machines are chosen.

        Raises:
          ValueError: `make` is not of the form "module:attribute".
          RuntimeError: the engine has been stopped.
        """

    def call(self, worker: Worker, method: str, *args: Any) -> Call:
        """Asks a worker to run one of its methods; returns at once, also when the worker is lost.

        Args:
          worker: from `start`.
          method: the name of the method.
          args: its positional arguments; a `Ref` arrives as the value that it stands for.
        """

    def wait(self, calls: Sequence[Call], timeout: float) -> list[Call]:
        """Waits until at least one call is done, by an answer or by an error.

        Args:
          calls: different ones; an empty sequence is answered at once.
          timeout: in seconds; 0 looks without waiting.

        Returns:
          those that are done by now, in the order given; empty when the time has passed.
        """

    def result(self, call: Call) -> Any:
        """What the method returned.

        Args:
          call: one that is done.

        Raises:
          WorkerLost: its worker was lost before the answer arrived, or the engine has been stopped.
          ValueError: it is not done.
          Exception: what the method raised, of its own type, with the traceback of the worker as a note.
        """

    def share(self, value: Any) -> Ref:
        """Stores a value once, however many calls carry it; each machine fetches it once.

        It is released when the last `Ref` to it is dropped. It must not be changed any more.

        Raises:
          RuntimeError: the engine has been stopped.
        """

    def kill(self, worker: Worker) -> None:
        """Ends a worker at once, whatever it is doing; its calls that are not done are lost. May be called again."""

    def stop(self) -> None:
        """Ends all workers and what the engine started, in bounded time; may be called again, and by several threads."""

    def describe(self) -> str:
        """Where workers run, in one line: machines and processors."""


class Shared:
    """A value for many calls, put into an engine's store when it is first asked for and held here until then; one thread."""

    def __init__(self, value: Any) -> None:
        """Holds `value`, which must not be changed any more."""
        self._value = value
        self._ref: Ref = None

    def ref(self, engine: Engine) -> Ref:
        """What stands for it in calls of `engine`."""
        if self._ref is None:
            self._ref, self._value = engine.share(self._value), None
        return self._ref


def resolve(make: str) -> Any:
    """The class or function with the name "module:attribute", where the attribute may have dots.

    Raises:
      ValueError: the name has another form.
      ImportError: the module cannot be imported, or does not have the attribute.
    """
    module, attribute = split(make)
    try:
        return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{make!r} cannot be imported ({type(error).__name__}: {error}): give the name of a class or function as "
            "'module:attribute', with a module that every machine of the workers has."
        ) from error


def split(make: str) -> tuple[str, str]:
    """The module and the attribute of "module:attribute".

    Raises:
      ValueError: the name has another form.
    """
    module, colon, attribute = make.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"{make!r} names no class or function: write 'module:attribute'.")
    return module, attribute
