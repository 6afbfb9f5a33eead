"""TensorFlow, imported once with the settings that `alf` needs.

`alf/__init__.py` imports this module first, so that whatever in `alf` a program imports, the environment variables
below are set before TensorFlow reads them. Everything that differs between the supported TensorFlow lines (2.15 with
Keras 2 built in, 2.16 and later with Keras 2 as `tf-keras`) is decided here and nowhere else.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import importlib.util
import logging
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator

import absl.logging

_CHATTER = (b"absl::InitializeLog", b"cudart_stub", b"cuda_platform", b"cpu_feature_guard", b"oneDNN", b"TensorRT")
# One BLAS thread a caller: the actor and learner threads are the parallelism.
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_X86 = ("x86_64", "AMD64")


def _tensorflow_version() -> tuple[int, int]:
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
        try:
            major, minor = importlib.metadata.version(name).split(".")[:2]
            return int(major), int(minor)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ImportError(
        "alf needs TensorFlow and found none: install alf from its source folder, `pip install .`, which brings it."
    )


def _check_tf_agents() -> None:
    if importlib.util.find_spec("tf_agents") is None:
        raise ImportError(
            "alf needs TF-Agents and found none: from Python 3.12 on pip cannot install its last release with what that pins, so "
            "install it alone, `pip install --no-deps tf-agents==0.19.0`."
        )


def _prepare_environment() -> None:
    before = dict(os.environ)
    if _tensorflow_version() >= (2, 16):
        # TF-Agents 0.19 is written against Keras 2.
        if os.environ.setdefault("TF_USE_LEGACY_KERAS", "1") != "1":
            raise ImportError(
                f"alf needs Keras 2 and found TF_USE_LEGACY_KERAS={os.environ['TF_USE_LEGACY_KERAS']!r}: unset it or set it to 1."
            )
        if "tensorflow" in sys.modules and "TF_USE_LEGACY_KERAS" not in before:
            raise ImportError(
                "TensorFlow was imported before alf, and with Keras 3: import alf first, or set TF_USE_LEGACY_KERAS=1."
            )
    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")
    # TensorFlow itself uses oneDNN only on processors with AVX-512's or later instructions for neural networks. On one
    # with AVX2 alone convolutional networks are trained 1.4 times as fast by it, and others no more slowly.
    if platform.machine() in _X86:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # So that several runs share a GPU, and nvidia-smi shows what is used.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # What goes wrong in TensorFlow comes out as an exception; its log is about devices that are not there.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TF-Agents imports gym 0.23, which prints a notice that alf's users can do nothing about.
    try:
        import gym_notices.notices

        gym_notices.notices.notices.clear()
    except ImportError:
        pass
    # Nor about this one, of the pygame that TF-Agents asks for, where an environment draws pictures.
    warnings.filterwarnings("ignore", "pkg_resources is deprecated", module=r"pygame\.pkgdata")


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Drops what TensorFlow's libraries write to stderr, past every log level, about devices while they load.

    All other lines are passed on.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # no stderr
        yield
        return
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            caught.seek(0)
            for line in caught:
                if not any(word in line for word in _CHATTER):
                    os.write(2, line)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Modules make very many objects that stay: looking through them again and again is a quarter of the import's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


_check_tf_agents()
_prepare_environment()

with _without_garbage_collection(), _without_chatter():
    import tensorflow as tf
    import tf_agents.networks  # noqa: F401
    from tensorflow.python.util import _pywrap_util_port

logging.getLogger("tensorflow").setLevel(logging.ERROR)

# What TensorFlow merges into one operation with oneDNN: products with the bias and the activation after them.
_FUSING = "remapping"
# Whether alf has it merged; None where it has not said yet.
_merged: bool | None = None


def merge_activations(wanted: bool) -> None:
    """Makes one operation of a product and the activation after it where oneDNN computes them, unless the program set it.

    In float32 oneDNN takes 3.7 ns for a tanh then (AVX2), TensorFlow's own operation 0.6: of a minibatch through layers of
    64 a third. In bfloat16 TensorFlow's own activations are the slow ones. Without oneDNN TensorFlow never merges these
    two, and gains by what it does merge.
    """
    global _merged
    in_force = tf.config.optimizer.get_experimental_options().get(_FUSING)
    if _pywrap_util_port.IsMklEnabled() and in_force == _merged:
        tf.config.optimizer.set_experimental_options({_FUSING: wanted})
        _merged = wanted


merge_activations(False)
# GPUs would round the factors of products to ten bits; `TrainerConfig.mixed_precision` lets them.
tf.config.experimental.enable_tensor_float_32_execution(False)

# Idle threads of the pool look for work of the others, so that a larger pool is slower: on two processors 12 threads
# learned 105k to 118k steps/s, 4 threads 125k to 174k.
_FREE_INTER_OP = 2
# The size that alf gave the pool unasked; None where it was asked for.
_unasked: int | None = None


def default_inter_op() -> int:
    """Threads in TensorFlow's pool: one a processor, and two that are free for the learner."""
    return max(4, _processors() + _FREE_INTER_OP)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def configure_threads(intra_op: int | None = None, inter_op: int | None = None) -> dict[str, int]:
    """Caps TensorFlow's thread pools; to be called before the first operation runs.

    Importing `alf` calls it with its defaults, unless the program has set threads itself before.

    Args:
      intra_op: threads that one operation may use; by default 1: a driver thread runs one operation at a time and the
        parallelism comes from the threads. Raise it for large convolutional networks.
      inter_op: threads that run independent operations; by default `default_inter_op`, until a trainer that collects and
        learns in turns lowers it.

    Returns:
      The settings in force, which differ from those asked for when TensorFlow has already started; 0 is TensorFlow's own
      default, one a processor.
    """
    global _unasked
    threading = tf.config.threading
    _unasked = default_inter_op() if inter_op is None else None
    try:
        threading.set_intra_op_parallelism_threads(1 if intra_op is None else intra_op)
        threading.set_inter_op_parallelism_threads(default_inter_op() if inter_op is None else inter_op)
    except RuntimeError:
        pass  # TensorFlow has started: the settings in force are returned for the caller to report.
    return {
        "intra_op": threading.get_intra_op_parallelism_threads(),
        "inter_op": threading.get_inter_op_parallelism_threads(),
    }


def leave_no_thread_free() -> None:
    """Has the pool no more threads than there are processors, unless its size was asked for or TensorFlow has started.

    For a learner that nothing runs beside: more operations at a time than processors get in each other's way.
    """
    # A program may have set it itself since.
    if tf.config.threading.get_inter_op_parallelism_threads() != _unasked:
        return
    threads = max(2, _processors())
    try:
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        return
    absl.logging.info("TensorFlow threads: inter_op %d, since nothing collects beside the learner.", threads)


def unroll_threads() -> int:
    """Threads of the pool that traced unrolls may hold at the same time, so that the learner always finds some free."""
    pool = tf.config.threading.get_inter_op_parallelism_threads() or _processors()
    return max(1, pool - _FREE_INTER_OP)


if not any(
    (
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
    )
):
    configure_threads()
