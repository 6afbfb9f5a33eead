"""The settings of a run, as TensorBoard's HPARAMS page and the run report show them."""

from __future__ import annotations

from typing import Any

import gin

from alf.utils import gin_utils

Setting = bool | int | float | str


def used_settings() -> dict[str, Setting]:
    """The parameters that the process has used of gin's configuration so far, by name, defaults included.

    Numbers, texts and truth values are as they are; of anything else its gin text, and None is left out. Where a
    configurable is used in several scopes, the scope is part of the name.
    """
    found: dict[str, Setting] = {}
    for (scope, selector), parameters in sorted(gin.config._OPERATIVE_CONFIG.items()):
        if selector == "gin.macro":
            continue
        for parameter, value in sorted(parameters.items()):
            if value is not None:
                found[gin_utils.binding_name(scope, selector, parameter)] = _plain(value)
    return found


def _plain(value: Any) -> Setting:
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
