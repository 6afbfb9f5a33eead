"""Makes the TensorFlow names that gin files use visible to gin; importing this module is enough.

`gin.tf` would do it, but does not import on current TensorFlow.
"""

from __future__ import annotations

import inspect
from typing import Any

import gin
import tensorflow as tf

from alf.utils.tensorflow_names import NAMES, OPTIMIZERS


def _lookup(path: str) -> Any:
    found: Any = tf
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def _register() -> None:
    for module, names in NAMES.items():
        for name in names:
            gin.external_configurable(getattr(_lookup(module), name), name=name, module=module)
    for name in OPTIMIZERS:
        # In a traced loop the legacy ones take a quarter of the time of those that replaced them in Keras 2.11 (Adam on two
        # 64x64 networks: 36 us an update against 143 us), and are what TF-Agents is written against.
        optimizer = getattr(tf.keras.optimizers.legacy, name)
        # They take any keyword and refuse it only when called; named here, a misspelt one is an error of its line.
        named = [p for p in inspect.signature(optimizer.__init__).parameters if p not in ("self", "kwargs")]
        gin.external_configurable(
            optimizer,
            name=name,
            module="tf.keras.optimizers",
            allowlist=[*named, "clipnorm", "clipvalue", "global_clipnorm"],
        )
    from tf_agents.specs import tensor_spec

    gin.external_configurable(tensor_spec.BoundedTensorSpec, name="BoundedTensorSpec", module="tf")
    for dtype in (tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool):
        gin.constant(f"tf.{dtype.name}", dtype)


_register()
