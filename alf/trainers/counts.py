"""Counts with a unit: how much acting, learning or time is meant.

A count equals and compares with counts of its own unit only, so that steps and episodes are never mixed by mistake. In a
gin file a count is a text, `'300000 env_steps'`, or `@counts.EnvironmentSteps()` with its `value` bound.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, overload

import gin

from alf.utils.gin_utils import did_you_mean

Number = int | float
_C = TypeVar("_C", bound="Count")
_TEXT = re.compile(
    r"\s*((?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE]\+?[0-9]+)?)\s*([A-Za-z_]+)\s*"
)


class Count:
    """An amount in one unit, which is its class. Not to be changed; a key of dicts and sets."""

    unit: ClassVar[str] = "counts"
    __slots__ = ("_value",)
    _value: Number

    def __init__(self, value: Number = 0) -> None:
        """Creates the count.

        Args:
          value: 0 or more; whole, however written (1e6), in units that are counted.

        Raises:
          ValueError: it is not.
        """
        object.__setattr__(self, "_value", self._checked(value))

    @classmethod
    def _checked(cls, value: Number) -> Number:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError(f"{cls.__name__} takes a finite number, got {value!r}.")
        if value < 0 or value != int(value):
            raise ValueError(f"{cls.__name__} takes a whole number of 0 or more, got {value!r}.")
        return int(value)

    @property
    def value(self) -> Number:
        """How many."""
        return self._value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} cannot be changed: make another one.")

    def __reduce__(self) -> tuple[type[Count], tuple[Number]]:
        return type(self), (self._value,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value!r})"

    def __str__(self) -> str:
        return f"{self._value:,} {self.unit}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Count) and other.unit == self.unit and other._value == self._value

    def __hash__(self) -> int:
        return hash((self.unit, self._value))

    def _of_other(self, other: Any, how: str) -> Number:
        if not isinstance(other, Count) or other.unit != self.unit:
            what = f"{other!r} ({other.unit})" if isinstance(other, Count) else repr(other)
            raise TypeError(f"{self!r} and {what} are no counts of one unit: {how} takes two of the same.")
        return other._value

    def __lt__(self, other: Count) -> bool:
        return self._value < self._of_other(other, "<")

    def __le__(self, other: Count) -> bool:
        return self._value <= self._of_other(other, "<=")

    def __gt__(self, other: Count) -> bool:
        return self._value > self._of_other(other, ">")

    def __ge__(self, other: Count) -> bool:
        return self._value >= self._of_other(other, ">=")

    def __add__(self: _C, other: _C) -> _C:
        return type(self)(self._value + self._of_other(other, "+"))

    def __sub__(self: _C, other: _C) -> _C:
        return type(self)(self._value - self._of_other(other, "-"))

    @overload
    def __truediv__(self: _C, other: int) -> _C: ...
    @overload
    def __truediv__(self, other: Count) -> int: ...

    def __truediv__(self: _C, other: int | Count) -> _C | int:
        """Rounded up: by a count of the same unit, how often it fits; by a whole number, a share in this unit."""
        if isinstance(other, Count):
            divisor = self._of_other(other, "/")
            if not divisor:
                raise ZeroDivisionError(f"{self!r} / {other!r}")
            return _ceil(self._value, divisor)
        if isinstance(other, bool) or not isinstance(other, int):
            raise TypeError(f"{self!r} is divided by a count of its unit or by a whole number, not by {other!r}.")
        if other < 1:
            raise ValueError(f"{self!r} is divided into 1 or more shares, not {other}.")
        return self._share(other)

    def _share(self: _C, shares: int) -> _C:
        return type(self)(_ceil(self._value, shares))


def _ceil(value: Number, divisor: Number) -> int:
    # In whole numbers, since floats of this size are not exact.
    if isinstance(value, int) and isinstance(divisor, int):
        return -(-value // divisor)
    return math.ceil(value / divisor)


# In gin `alf.EnvironmentSteps` is the metric of that name.
@gin.configurable(module="alf.counts")
class EnvironmentSteps(Count):
    """Steps of single environments: a batched step of B rows is B of them."""

    unit = "env_steps"
    __slots__ = ()


@gin.configurable(module="alf.counts")
class EnvironmentEpisodes(Count):
    """Episodes that have ended, over all environments."""

    unit = "episodes"
    __slots__ = ()


@gin.configurable(module="alf.counts")
class TrainingSteps(Count):
    """Iterations of the trainer, each of which collects and learns once."""

    unit = "training_steps"
    __slots__ = ()


@gin.configurable(module="alf.counts")
class Seconds(Count):
    """Time by the wall clock; need not be whole, and is shared out without rounding."""

    unit = "seconds"
    __slots__ = ()

    @classmethod
    def _checked(cls, value: Number) -> Number:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
            raise ValueError(f"Seconds takes a finite number of 0 or more, got {value!r}.")
        return float(value)

    def _share(self: _C, shares: int) -> _C:
        return type(self)(self._value / shares)


UNITS: dict[str, type[Count]] = {c.unit: c for c in (EnvironmentSteps, EnvironmentEpisodes, TrainingSteps, Seconds)}


# What is given for a count: one, or a text.
Amount = Count | str


def count(given: Amount, what: str, allowed: Sequence[str] = tuple(UNITS)) -> Count:
    """The count that a setting gives.

    Args:
      given: a count, or a text such as '300000 env_steps', '100 episodes', '50 training_steps', '90 seconds'.
      what: name of the setting, for errors.
      allowed: units that the setting takes.

    Raises:
      ValueError: it is neither, or of another unit.
    """
    found = _parsed(given, what) if isinstance(given, str) else given
    if not isinstance(found, Count):
        units = ", ".join(allowed)
        raise ValueError(f"{what}={given!r} has no unit: write for example '{given} {allowed[0]}' (units: {units}).")
    if found.unit not in allowed:
        raise ValueError(f"{what}={given!r} is given in {found.unit}; it takes {' or '.join(allowed)}.")
    return found


def _parsed(text: str, what: str) -> Count:
    match = _TEXT.fullmatch(text)
    if not match:
        commas = (
            "; commas only group thousands, as in '1,000', and parts are written as in '1.5'" if "," in text else ""
        )
        raise ValueError(f"{what}={text!r} is no count: write a number and a unit, such as '1000 env_steps'{commas}.")
    number, unit = match[1].replace("_", "").replace(",", ""), match[2]
    if unit not in UNITS:
        hint = did_you_mean(unit, list(UNITS))
        raise ValueError(f"{what}={text!r}: there is no unit {unit!r}, only {', '.join(UNITS)}.{hint}")
    try:
        return UNITS[unit](int(number) if number.isdigit() else float(number))
    except ValueError as e:
        # gin adds lines of its own.
        raise ValueError(f"{what}={text!r}: {str(e).splitlines()[0]}") from None


class Acted(NamedTuple):
    """What acting came to, over all environments."""

    environment_steps: int
    episodes: int

    @property
    def episode_ended(self) -> bool:
        """Whether an episode has ended in any of the environments."""
        return self.episodes > 0
