"""Whether the values of a configuration are of the kinds that its parameters say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alf.utils.value_kinds import SCALARS, is_scalar

_KINDS = {kind.__name__: kind for kind in SCALARS}


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
    if not is_scalar(value, _KINDS[kind]):
        raise ValueError(f"{name}={value!r} must be {SCALARS[_KINDS[kind]]}{' or None' if rest else ''}.")
    return int(value) if kind == "int" and isinstance(value, float) else value
