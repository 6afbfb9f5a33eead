"""The TensorFlow names that gin files use, told without registering them; `external_configurables` does that."""

from __future__ import annotations

# gin needs the module under which TensorFlow publishes a name, as files write it: tf.nn.relu, @tf.math.exp.
NAMES: dict[str, tuple[str, ...]] = {
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
    "tf.keras.activations": ("softsign",),
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

OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD")
