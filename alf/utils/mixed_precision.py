"""Matrix products and convolutions of less than float32, with weights and optimisers in float32.

On processors those of traced functions are made in bfloat16: TensorFlow rewrites the graphs when they are first run, and
code that is run eagerly stays as it is. GPUs make all of them in TensorFloat-32, of ten bits in place of 23, unless told
not to, as `alf` does.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

from alf import _tf
from alf.utils.devices import has_gpu

_OPTION = "auto_mixed_precision_onednn_bfloat16"
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
