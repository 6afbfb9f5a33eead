"""The gin configuration in force as text, which another process makes the same configuration of."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gin

from alf.utils.gin_utils import GinConfigError, binding_name, parse_gin

# Imported with alf; what gin knows of them is registered by `alf.utils.external_configurables`.
_ALWAYS_THERE = ("gin", "tensorflow", "keras", "tf_keras", "builtins")


def config_text() -> str:
    """All bindings, macros and imports in force, as the text of a gin file without includes.

    Raises:
      GinConfigError: a binding has a value that no gin file can have, such as an object that a program has bound.
    """
    for (scope, selector), parameters in sorted(gin.config._CONFIG.items()):
        for parameter, value in sorted(parameters.items()):
            if not gin.config._is_literally_representable(value):
                raise GinConfigError(
                    f"{binding_name(scope, selector, parameter)}={value!r} cannot be written in a gin file, so other processes "
                    "cannot be told: bind numbers, strings, lists of these, or references such as @MyEnvironment."
                )
    return gin.config_str()


def modules_in_use() -> list[str]:
    """Names of the modules, sorted, whose functions and classes the configuration in force binds or refers to.

    Raises:
      GinConfigError: one is defined in the script that was started, which no other process can import.
    """
    used = [gin.config._REGISTRY[selector] for _, selector in gin.config._CONFIG]
    used += [reference.configurable for reference in gin.config.iterate_references(gin.config._CONFIG)]
    for configurable in used:
        if configurable.wrapped.__module__ == "__main__":
            raise GinConfigError(
                f"{configurable.name} is defined in the script that was started, which other processes cannot import: put it "
                "into a module of its own and import that."
            )
    modules = {configurable.wrapped.__module__ for configurable in used}
    return sorted(m for m in modules if m.partition(".")[0] not in _ALWAYS_THERE)


def take_over(text: str, modules: Sequence[str]) -> None:
    """Makes the configuration of another process that of this one, in place of the one before.

    Args:
      text: from `config_text` there.
      modules: from `modules_in_use` there.

    Raises:
      GinConfigError: a module cannot be imported here, or the text is of another version of the code.
    """
    # First, since a configuration in force lets no new names in.
    gin.clear_config()
    for module in ("alf.utils.external_configurables", *modules):
        _import(module)
    parse_gin((), [text])


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise GinConfigError(
            f"The module {module!r} of the configuration cannot be imported here ({e}): install it on every machine, "
            "or put it where the learner has it, whose PYTHONPATH workers take over."
        ) from e
