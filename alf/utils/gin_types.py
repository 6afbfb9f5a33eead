"""Whether what a gin configuration binds is of the kinds that the parameters are annotated with."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin

from alf.utils.value_kinds import SCALARS, expected, fits, hints_of, is_scalar

# TensorFlow annotates nothing: what these take are numbers, but for a few.
_OPTIMIZERS = "tf.keras.optimizers"
_NOT_NUMBERS = ("name", "boundaries", "values")
# Nor does TF-Agents: what its networks call like this are sizes of layers. One of 0 units kills the process.
_LAYERS = ("fc_layer_params", "lstm_size")


class _Unknown(Exception):
    """What a value will be shows only when the configuration is used."""


def wrong_bindings() -> Iterator[tuple[str, str, str, Any, str]]:
    """The bindings whose value is of another kind than its parameter.

    Whole numbers written as 1e6 become integers where these are asked for. Of what is made by a reference, as @name(), it
    is only known whether it is an object, and whether that can be called.

    Yields:
      scope, selector and parameter, the value, and in words what it must be.
    """
    for (scope, selector), parameters in gin.config._CONFIG.items():
        configurable = gin.config._REGISTRY.get(selector)
        if configurable is None or configurable.wrapped is gin.config.macro:
            continue
        for name, bound in parameters.items():
            try:
                value = _literal(bound)
            # A macro that is its own value, or contains it, has none.
            except (_Unknown, RecursionError):
                continue
            told = _complaint(configurable, name, value)
            if told is not None:
                yield scope, selector, name, bound, told
            elif isinstance(value, float) and hints_of(configurable.wrapped).get(name) in (int, int | None):
                _to_integer(parameters, name)


def _literal(value: Any) -> Any:
    """A value with its references resolved, as far as that is possible now; those to functions become functions."""
    if isinstance(value, gin.config.ConfigurableReference):
        if value.configurable.wrapped is gin.config.macro:
            return _literal(_macro(value))
        return _stand_in(value.configurable.wrapped) if value.evaluate else value.scoped_configurable_fn
    if isinstance(value, (list, tuple)):
        return type(value)(_literal(x) for x in value)
    return value


def _to_integer(holder: dict[str, Any], name: str) -> None:
    """Makes a whole number an integer where it stands, which may be a macro: one that nothing refers to is unused."""
    while isinstance(holder[name], gin.config.ConfigurableReference):
        holder, name = _bound_of(holder[name]), "value"
    holder[name] = int(holder[name])


def _stand_in(makes: Any) -> Any:
    """An object that fits where the result of calling `makes`, @name() in gin, would; known for classes only."""
    if not isinstance(makes, type) or issubclass(makes, (numbers.Number, str, list, tuple, Mapping)):
        raise _Unknown
    return _stand_in if any("__call__" in base.__dict__ for base in makes.__mro__) else object()


def _macro(reference: Any) -> Any:
    bound = _bound_of(reference)
    if "value" not in bound:
        raise _Unknown
    return bound["value"]


def _bound_of(macro: Any) -> dict[str, Any]:
    return gin.config._CONFIG.get(("/".join(macro.scopes), "gin.macro"), {})


def _complaint(configurable: Any, name: str, value: Any) -> str | None:
    """What the value of a parameter must be, in words; None where it may be as it is."""
    hint, default = hints_of(configurable.wrapped).get(name), _default(configurable.wrapped, name)
    if name.endswith(_LAYERS) and str(configurable.module).startswith(("alf.", "tf_agents.")):
        hint = hint or (Sequence[int] | None)
        if isinstance(value, (list, tuple)) and any(is_scalar(units, int) and units < 1 for units in value):
            return "a list of whole numbers of at least 1"
    if hint is not None:
        # Many write `size: int = None`.
        return None if fits(value, hint) or value is default is None else expected(hint)
    if not str(configurable.module).startswith(_OPTIMIZERS) or name in _NOT_NUMBERS:
        return None
    if not isinstance(value, (str, list, tuple, dict)) and not (value is None and isinstance(default, float)):
        return None
    return SCALARS[bool if isinstance(default, bool) else float]


def _default(function: Callable[..., Any], name: str) -> Any:
    """The default of a parameter; `inspect.Parameter.empty` where there is none."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (ValueError, TypeError):
        parameter = None
    return inspect.Parameter.empty if parameter is None else parameter.default
