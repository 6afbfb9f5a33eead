"""Matrix products and convolutions of less than float32, with weights and optimisers in float32.

On processors those of traced functions are made in bfloat16, and with them what lies between two of them in a network,
such as activations: TensorFlow rewrites the graphs when they are first run, and code that is run eagerly stays as it is.
Gradients of biases, losses and what else is computed from a network's results are of float32. GPUs make products in
TensorFloat-32, of ten bits in place of 23, unless told not to, as `alf` does.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

from alf import _tf
from alf.utils.devices import has_gpu

_OPTION = "auto_mixed_precision_onednn_bfloat16"
# What TensorFlow would make in bfloat16 too behind a product. It adds the rows of a bias' gradient up one by one, and a
# recurrent network's gradients step by step (AddN), and a sum in bfloat16 ends at 256 times what is added: of a bias' over
# 10,000 rows a twentieth was left, a recurrent kernel's was off by a fifth after 512 steps. A difference of two numbers near
# 200, such as a TD error, was rounded to whole ones.
_IN_FLOAT32 = (
    *("AddN", "BiasAddGrad", "Erf", "FloorDiv", "Log", "Log1p", "LogSoftmax", "Mul", "Prod", "RealDiv", "Reciprocal"),
    *("Rsqrt", "Softmax", "Softplus", "SoftplusGrad", "Sqrt", "Square", "SquaredDifference", "Sub", "Sum"),
)
# Lists that TensorFlow has of operations, and asks the environment for changes of.
_INFERRED = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_REMOVE"
_DENIED = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_DENYLIST_ADD"
# As Linux calls the instructions; without them oneDNN makes such products more slowly than those of float32.
_INSTRUCTIONS = frozenset(("avx512_bf16", "amx_bf16"))
_PROCESSORS = pathlib.Path("/proc/cpuinfo")


def supported() -> bool:
    """Whether this processor multiplies in bfloat16."""
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("flags") and _INSTRUCTIONS & set(line.split()) for line in lines)


def use(wanted: bool) -> None:
    """Has this process run the functions that are traced from now on in mixed precision, or again in float32.

    To be called before threads begin, which keep what was in force at their first call.

    Args:
      wanted: what to set; where neither the processor has such arithmetic nor there is a GPU float32 stays, with a warning.
    """
    gpu = has_gpu()
    if gpu:
        _tensor_float_32(wanted)
    possible = wanted and supported()
    if wanted and not possible and not gpu:
        logging.warning(
            "TrainerConfig.mixed_precision=True has no effect: this processor has no bfloat16 arithmetic (%s), so "
            "products stay in float32.",
            " or ".join(sorted(_INSTRUCTIONS)),
        )
    if possible:
        for name in (_INFERRED, _DENIED):
            others = filter(None, os.environ.get(name, "").split(","))
            os.environ[name] = ",".join(dict.fromkeys((*others, *_IN_FLOAT32)))
    if possible != in_force():
        tf.config.optimizer.set_experimental_options({_OPTION: possible})
        _tf.merge_activations(possible)


def in_force() -> bool:
    """Whether functions of this thread that are run from now on have mixed precision."""
    rewrites = _config(context.context().function_call_options).graph_options.rewrite_options
    return bool(getattr(rewrites, _OPTION) == RewriterConfig.ON)


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Runs functions of this thread in float32, and leaves those of others as they are, but for what runs on a GPU meanwhile."""
    now = context.context()
    before, tf32 = now.function_call_options, tf.config.experimental.tensor_float_32_execution_enabled()
    config = _config(before)
    setattr(config.graph_options.rewrite_options, _OPTION, RewriterConfig.OFF)
    now.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    _tensor_float_32(False)
    try:
        yield
    finally:
        now.function_call_options = before
        _tensor_float_32(tf32)


def _tensor_float_32(wanted: bool) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(wanted)


def _config(options: context.FunctionCallOptions) -> tf.compat.v1.ConfigProto:
    return tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
