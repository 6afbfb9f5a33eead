"""Numbers that an evaluation is held against: one for the environment as a whole, or one for each of several behaviors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from alf.utils.gin_utils import nearest
from alf.utils.value_kinds import is_scalar

Target = float | Mapping[str, float]


def numbers_of(name: str, target: Any) -> dict[str, float]:
    """The numbers of a target, by what they are called in messages.

    Args:
      name: of the setting, such as "MeanReturn.target".
      target: a finite number, or such numbers by the names of behaviors.

    Raises:
      ValueError: it is something else.
    """
    if isinstance(target, Mapping):
        if not target:
            raise ValueError(f"{name}={{}} names no behavior: give a number for each that is to be judged.")
        found = {f"{name}[{behavior!r}]": value for behavior, value in target.items()}
    else:
        found = {name: target}
    for what, value in found.items():
        if not is_scalar(value, float):
            raise ValueError(f"{what}={value!r} must be a number, or a dict of numbers by the names of behaviors.")
        if not math.isfinite(value):
            raise ValueError(f"{what}={value} must be finite.")
    return found


def check_behavior(name: str, behavior: str | None, behaviors: Sequence[str]) -> None:
    """Raises ValueError where a setting names a behavior that there is not.

    Args:
      name: of the setting.
      behavior: None where none is named.
      behaviors: of the environment; empty where it has a single agent.
    """
    if behavior is None or behavior in behaviors:
        return
    if not behaviors:
        raise ValueError(f"{name}={behavior!r} names a behavior, and the environment has a single agent: leave it out.")
    found = nearest(behavior, behaviors)
    hint = f"Did you mean {found!r}?" if found else f"It has {', '.join(map(repr, behaviors))}."
    raise ValueError(f"{name} names {behavior!r}, and no agent of the environment has this behavior. {hint}")


def check_names(name: str, target: Any, behaviors: Sequence[str]) -> None:
    """Raises ValueError where a target is for behaviors that there are not.

    Args:
      name: of the setting.
      target: a number or None, for the environment as a whole, or numbers by the names of behaviors.
      behaviors: of the environment; empty where it has a single agent.
    """
    if not isinstance(target, Mapping):
        return
    if not behaviors:
        raise ValueError(
            f"{name}={dict(target)!r} is by the names of behaviors, and the environment has a single agent: give one number."
        )
    for behavior in target:
        check_behavior(name, behavior, behaviors)
