"""Flags and preparations that the command lines share."""

from __future__ import annotations

import logging as std_logging
import os
from collections.abc import Sequence
from pathlib import Path

from absl import flags, logging

ROOT_DIR = flags.DEFINE_string("root_dir", None, "Directory of everything the run writes.")
GIN_FILE = flags.DEFINE_multi_string("gin_file", [], "Path of a gin file, or name of a shipped example; repeatable.")
GIN_PARAM = flags.DEFINE_multi_string(
    "gin_param", [], "A binding such as TrainerConfig.num_iterations=10, which wins over the files; repeatable."
)
GIN_BINDINGS = flags.DEFINE_multi_string("gin_bindings", [], "The same as --gin_param.")
INTRA_OP = flags.DEFINE_integer(
    "intra_op_threads", None, "Threads that one TensorFlow operation may use; 1 by default.", lower_bound=1
)
INTER_OP = flags.DEFINE_integer(
    "inter_op_threads", None, "Threads that run TensorFlow operations side by side.", lower_bound=1
)


class UsageError(ValueError):
    """The command line asks for something that cannot be done; the message says what to do instead."""


def root_dir(argv: Sequence[str]) -> str:
    """The run's directory, after a check of the command line.

    Raises:
      UsageError: an argument is not a flag, or --root_dir is missing.
    """
    if len(argv) > 1:
        raise UsageError(f"Unexpected argument {argv[1]!r}: every setting is a flag, as in --root_dir=DIR.")
    if not ROOT_DIR.value:
        raise UsageError(
            "--root_dir is missing: give the directory of the run's files, e.g. --root_dir=runs/cart_pole."
        )
    return os.path.expanduser(ROOT_DIR.value)


def parse_gin(directory: str) -> None:
    """Parses the gin files that the flags name, else those of the run's directory, and the bindings of the flags.

    Raises:
      UsageError: there is no gin file.
      GinConfigError: one cannot be used.
    """
    from alf.utils import gin_utils

    files = GIN_FILE.value or sorted(str(p) for p in Path(directory).glob("*.gin"))
    if not files:
        raise UsageError(
            f"There is no --gin_file, and no *.gin file in --root_dir={directory}: give one, e.g. "
            "--gin_file=async_ppo_cart_pole.gin."
        )
    gin_utils.parse_gin(files, [*GIN_PARAM.value, *GIN_BINDINGS.value])


def set_up() -> None:
    """Sets threads and logging, and imports every module whose names gin files may use without importing them."""
    logging.set_verbosity(logging.INFO)
    # TensorFlow reports its own work, such as the time to save a shard, through the same logger.
    logging.get_absl_logger().addFilter(lambda r: r.levelno >= std_logging.WARNING or "/tensorflow/" not in r.pathname)
    from alf import _tf

    threads = _tf.configure_threads(INTRA_OP.value, INTER_OP.value)
    logging.info("TensorFlow threads: intra_op %d, inter_op %d.", threads["intra_op"], threads["inter_op"])
    import alf.algorithms.agent
    import alf.algorithms.ppo_algorithm
    import alf.environments.suite_unittest
    import alf.trainers.off_policy_trainer
    import alf.trainers.on_policy_trainer
    import alf.utils.dist_utils
    import alf.utils.external_configurables
    import alf.utils.losses
    import alf.utils.math_ops  # noqa: F401
