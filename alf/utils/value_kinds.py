"""Whether values are of the kinds that annotations say."""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

# What the values of scalar annotations are called in messages.
SCALARS: dict[type, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}

_LISTS = (collections.abc.Sequence, list, tuple)
_DICTS = (collections.abc.Mapping, dict)
_LITERALS = (int, float, str, list, tuple, dict)


def is_scalar(value: Any, kind: type) -> bool:
    """Whether a value can be what one of `SCALARS` asks for; 1e6 can be a whole number, 0 and 1 can be truth values."""
    truth = isinstance(value, bool)
    if kind is bool:
        return truth or (isinstance(value, numbers.Integral) and value in (0, 1))
    if kind is int and isinstance(value, float):
        return value.is_integer()
    wider: dict[type, type] = {int: numbers.Integral, float: numbers.Real}
    return not truth and isinstance(value, wider.get(kind, kind))


def fits(value: Any, hint: Any) -> bool:
    """Whether a literal value, as a gin file gives it, can be what a type hint asks for.

    Args:
      value: numbers, text, None, and lists, tuples and dicts of them; of anything else only the places are looked at
        where nothing but literals will do.
      hint: resolved, as of `hints_of`; one that is not understood takes everything.
    """
    if hint is None or hint is type(None):
        return value is None
    if hint in SCALARS:
        return is_scalar(value, hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(hint))
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return callable(value)
    if origin in _LISTS or hint in _LISTS:
        return isinstance(value, (list, tuple)) and _elements_fit(value, hint)
    if origin in _DICTS or hint in _DICTS:
        return isinstance(value, collections.abc.Mapping)
    if isinstance(hint, type) and hint.__module__.startswith("alf."):
        return isinstance(value, hint) or not (value is None or isinstance(value, _LITERALS))
    return True


def _elements_fit(values: list[Any] | tuple[Any, ...], hint: Any) -> bool:
    args = typing.get_args(hint)
    if not args:
        return True
    if typing.get_origin(hint) is not tuple or args[-1] is Ellipsis:
        return all(fits(value, args[0]) for value in values)
    return len(args) == len(values) and all(fits(value, arg) for value, arg in zip(values, args, strict=True))


def expected(hint: Any) -> str:
    """What a type hint asks for, in words, such as "a number or None"."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        words = list(dict.fromkeys(expected(part) for part in typing.get_args(hint)))
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    if hint in SCALARS:
        return SCALARS[hint]
    if hint is type(None):
        return "None"
    origin = typing.get_origin(hint) or hint
    if origin is collections.abc.Callable:
        return "a function or class (@name)"
    if origin in _LISTS:
        return "a list" + _of_what(hint)
    if origin in _DICTS:
        return "a dict"
    name = getattr(hint, "__name__", str(hint))
    return f"an object (@{name}())" if isinstance(hint, type) else name


def _of_what(hint: Any) -> str:
    args = [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
    if not args:
        return ""
    if typing.get_origin(hint) is tuple and args[-1] is typing.get_args(hint)[-1]:
        return f" of {len(args)}: {', '.join(expected(arg) for arg in args)}"
    union = typing.get_origin(args[0]) in (typing.Union, types.UnionType)
    kinds = [_plural(kind) for kind in (typing.get_args(args[0]) if union else args[:1])]
    return f" of {' or '.join(kinds)}" if all(kinds) else ""


def _plural(hint: Any) -> str:
    """Several of a kind, in words, "" where there are none for it."""
    if typing.get_origin(hint) is collections.abc.Callable:
        return "functions or classes (@name)"
    return {int: "whole numbers", float: "numbers", str: "texts"}.get(hint, "")


class _Names(dict[str, Any]):
    """The names that annotations of a module use; those that only type checkers import are Any."""

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, name: str) -> Any:
        return self._known.get(name, getattr(builtins, name, Any))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of the parameters of a function, or of a class with its bases, by name."""
    found: dict[str, Any] = {}
    for one in _functions_of(function):
        try:
            hints = typing.get_type_hints(one, localns=_Names(one.__globals__))
        # Whatever an annotation raises when it is resolved, it tells nothing then.
        except Exception:
            continue
        found = {**hints, **found}
    found.pop("return", None)
    return found


def parameters_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """What the arguments of a function may be called, or of a class with the bases that its `**kwargs` go to.

    Args:
      function: a function or class, decorated or not.

    Returns:
      the names, and whether it may take others: that is known only of classes of alf, whose `**kwargs` all go to the base.
    """
    names: dict[str, None] = {}
    for one in _functions_of(function):
        parameters = inspect.signature(one).parameters.values()
        names |= dict.fromkeys(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return [name for name in names if name != "self"], False
        if not one.__module__.startswith("alf."):
            break
    return [name for name in names if name != "self"], True


def _functions_of(function: Callable[..., Any]) -> Iterator[Any]:
    """The functions that take the arguments of a call: the nearest class first."""
    called = (c.__dict__.get("__init__") for c in function.__mro__) if isinstance(function, type) else [function]
    for one in called:
        unwrapped = inspect.unwrap(one) if callable(one) else one
        if isinstance(unwrapped, types.FunctionType):
            yield unwrapped
