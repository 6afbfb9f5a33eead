"""What is reported of gradients and the variables that they move."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import tensorflow as tf


def gradient_norms(grads_and_vars: Sequence[tuple[tf.Tensor | None, tf.Variable]]) -> dict[str, tf.Tensor]:
    """The norms of gradients and variables, float32 [], as `grad_norm/NAME` and `var_norm/NAME`.

    Names of layers come back in networks of one kind: the second variable of a name is `NAME/2`, and so on.
    """
    norms, met = {}, collections.Counter[str]()
    for grad, variable in grads_and_vars:
        if grad is None:
            continue
        met[variable.name] += 1
        count = met[variable.name]
        name = variable.name if count == 1 else f"{variable.name}/{count}"
        norms[f"grad_norm/{name}"] = tf.norm(grad)
        norms[f"var_norm/{name}"] = tf.norm(variable)
    return norms
