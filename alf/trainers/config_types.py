"""Whether the values of a configuration are of the kinds that its parameters say."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

_KINDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "text"}


def checked(owner: str, values: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    """The values, with whole numbers such as 1e6 as Python's integers where these are asked for.

    Args:
      owner: what the parameters belong to, for messages.
      values: by name.
      annotations: by name, as they stand in the source; those other than int, float, bool, str, and these "| None", are
        not looked at.

    Raises:
      ValueError: a value is of another kind.
    """
    return {name: _checked(f"{owner}.{name}", value, annotations.get(name, "")) for name, value in values.items()}


def _checked(name: str, value: Any, annotation: str) -> Any:
    kind, _, rest = annotation.partition(" | ")
    if kind not in _KINDS or rest not in ("", "None") or (value is None and rest):
        return value
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    truth = isinstance(value, bool)
    sound = {
        "int": isinstance(value, numbers.Integral) and not truth,
        "float": isinstance(value, numbers.Real) and not truth,
        "bool": truth or (isinstance(value, numbers.Integral) and value in (0, 1)),
        "str": isinstance(value, str),
    }
    if not sound[kind]:
        raise ValueError(f"{name}={value!r} must be {_KINDS[kind]}{' or None' if rest else ''}.")
    return value
