"""Flags and preparations that the command lines share."""

from __future__ import annotations

import codecs
import contextlib
import glob
import io
import logging as std_logging
import math
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType

from absl import app, flags, logging

from alf import _starting
from alf._extras import how_to_install
from alf.utils import files

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
USE_CPU = flags.DEFINE_bool("use_cpu", False, "Make TensorFlow see no GPU.")

MISTAKE = 2
INTERRUPTED = 130
UNREAD = 141

_STDOUT = 1

_NVIDIA_GPU = "/dev/nvidia0"

# Errors whose message says what to do; looked up only in what is imported, since some commands do without TensorFlow.
_TOLD = (
    ("alf.utils.gin_utils", "GinConfigError"),
    ("alf.trainers.checkpointing", "CheckpointError"),
    ("alf.trainers.run_lock", "RunLockedError"),
    ("alf.trainers.saving", "NonFiniteError"),
    ("alf.replay.dataset", "DatasetError"),
    ("alf.export.policy", "ExportError"),
    ("alf.replay.experience_replayer", "ReplayTooSmallError"),
    ("alf.environments.crash_isolation", "BrokenEnvironmentError"),
)

# How standard output treats letters that it cannot encode.
_SPELLED_OUT = "alf_spelled_out"

# An interrupted command may close environments before its error comes out.
_SECONDS_TO_UNWIND = 10.0
# Threads that end by themselves do so sooner.
_SECONDS_TO_END = 5.0


class UsageError(ValueError):
    """The command line asks for something that cannot be done; the message says what to do instead."""


def start(main: Callable[[Sequence[str]], int]) -> None:
    """Parses the flags and runs `main` as absl's `app.run` does, but with a line and exit code 2 for a wrong flag.

    A process that does not end then, since a thread that an environment has left goes on, says so.
    """
    codecs.register_error(_SPELLED_OUT, _spelled_out)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_SPELLED_OUT)
    try:
        app.run(main, flags_parser=_parse_flags)
    finally:
        threading.Thread(target=_tell_who_is_waited_for, name="alf-end", daemon=True).start()


def _tell_who_is_waited_for() -> None:
    time.sleep(_SECONDS_TO_END)
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    if left:
        logging.warning(
            "The command is over, and its process waits for threads that still run, of an environment perhaps: %s. Have its "
            "close() end them, or make them daemons.",
            ", ".join(left),
        )


def _spelled_out(error: UnicodeError) -> tuple[str | bytes, int]:
    """For letters that the locale lacks: those of a file's name as they are there, others by their numbers."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(error)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.Error as e:
        message = str(e).replace(" ?", "?").rstrip(".")
        logging.error("%s%s See --help.", message, "" if message.endswith("?") else ".")
        sys.exit(MISTAKE)


def run(body: Callable[[], int | None]) -> int:
    """Runs the body of a command.

    Args:
      body: returns an exit code, or None for 0.

    Returns:
      the exit code: that of `body`; 2, with one line, when the command line, the configuration, a checkpoint or a dataset
      is wrong, or a loss no longer finite; 130 after Ctrl-C; 141 where nobody reads its output to the end, as `head`.
    """
    _starting.started()
    with _noting_interrupts() as interrupts, files.relative_to(files.beginning()):
        try:
            code = body() or 0
            if sys.stdout is not None:  # It is where standard output was closed.
                sys.stdout.flush()
            return code
        except (KeyboardInterrupt, Exception) as e:
            if isinstance(e, BrokenPipeError) and _nobody_reads():
                logging.debug("It came from here:", exc_info=e)
                return UNREAD
            if isinstance(e, KeyboardInterrupt) or _made_of_an_interrupt(e, interrupts):
                logging.debug("It came from here:", exc_info=e)
                logging.warning("Interrupted.")
                return INTERRUPTED
            if not isinstance(e, _told_errors()):
                raise
            logging.debug("It came from here:", exc_info=e)
            logging.error("%s", e)
            return MISTAKE


def _nobody_reads() -> bool:
    """Whether standard output is a pipe that has been closed; nothing is written to it then any more."""
    looked_at = select.poll()
    looked_at.register(_STDOUT, 0)
    unread = any(event & select.POLLERR for _, event in looked_at.poll(0))
    if unread:
        # What is still to be written would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return unread


def _made_of_an_interrupt(error: BaseException, interrupts: Sequence[float]) -> bool:
    """Whether a library in C made `error` of a KeyboardInterrupt that came, at one of `interrupts`, while it was at work."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    made = any(isinstance(e, (TypeError, SystemError)) for e in causes)
    return made and bool(interrupts) and time.monotonic() - interrupts[-1] < _SECONDS_TO_UNWIND


@contextlib.contextmanager
def _noting_interrupts() -> Iterator[list[float]]:
    """Has the times of SIGINT, where it raises KeyboardInterrupt, be noted as well."""
    noted: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        noted.append(time.monotonic())
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _told_errors() -> tuple[type[BaseException], ...]:
    found = [getattr(sys.modules.get(module), name, None) for module, name in _TOLD]
    return (UsageError, *(error for error in found if error is not None))


@contextlib.contextmanager
def told_as_usage(while_true: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Around code that builds what the configuration describes: its ValueErrors and the like become one line.

    Args:
      while_true: whether what fails is still the building; later errors are left alone.

    Raises:
      UsageError: instead of ValueError, TypeError, LookupError, ImportError or AttributeError; of gin's notes only the name
        of what it called last is kept.
    """
    try:
        yield
    except _told_errors():
        raise
    except (ValueError, TypeError, LookupError, ImportError, AttributeError) as e:
        if not while_true():
            raise
        raise UsageError(_in_a_line(e)) from e


def _in_a_line(error: BaseException) -> str:
    message, *notes = str(error).split("\n  In call to configurable '")
    message = message.strip() or type(error).__name__
    if isinstance(error, KeyError):
        message = f"There is no {message}"
    called = notes[0].partition("'")[0] if notes else ""
    if called and called not in message:
        message = f"{message.rstrip('.')} (in {called})."
    # What is not worded for people may be a fault of the code as well as of the configuration.
    return (
        message if isinstance(error, ValueError) else f"{message} ({type(error).__name__}; --verbosity=1 tells where.)"
    )


def no_arguments(argv: Sequence[str]) -> None:
    """Refuses arguments that are not flags.

    Raises:
      UsageError: there is one.
    """
    if len(argv) > 1:
        raise UsageError(f"Unexpected argument {argv[1]!r}: every setting is a flag, as in --root_dir=DIR.")


def root_dir(argv: Sequence[str], for_tensorflow: bool = True) -> str:
    """The run's directory, after a check of the command line; absolute, since an environment may go to another.

    Args:
      argv: what is left of the command line.
      for_tensorflow: whether TensorFlow is to find it; else it is as it was given.

    Raises:
      UsageError: an argument is not a flag, --root_dir is missing, or TensorFlow would take it for another one.
    """
    no_arguments(argv)
    if not ROOT_DIR.value:
        raise UsageError(
            "--root_dir is missing: give the directory of the run's files, e.g. --root_dir=runs/cart_pole."
        )
    if not for_tensorflow:
        return os.path.expanduser(ROOT_DIR.value)
    with told_as_usage():
        return files.full_path(ROOT_DIR.value, "--root_dir")


def check_directory(root_dir: str) -> None:
    """Refuses a run's directory that is not there.

    Raises:
      UsageError: it is not.
    """
    if not os.path.isdir(root_dir):
        raise UsageError(f"There is no directory --root_dir={ROOT_DIR.value}: check the path.")


def make_directory(path: str, what: str) -> None:
    """Makes a directory that results will go to, before the work that leads to them, and sees that files can be made there.

    Args:
      path: of the directory.
      what: which asks for it, such as "--root_dir".

    Raises:
      UsageError: it cannot be made, or written to.
    """
    wrong = "cannot be a directory"
    try:
        os.makedirs(path, exist_ok=True)
        wrong = "cannot be written to"
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise UsageError(f"{what}={path} {wrong} ({reason}): give another path.") from e


def refuse_all_but_root_dir(why: str) -> None:
    """Refuses the shared flags that would have no effect on a command.

    Args:
      why: they have none.

    Raises:
      UsageError: one of them is given.
    """
    refuse((GIN_FILE, GIN_PARAM, GIN_BINDINGS, INTRA_OP, INTER_OP, USE_CPU), why)


def refuse(without_effect: Iterable[flags.FlagHolder], why: str) -> None:
    """Refuses flags that would have no effect.

    Args:
      without_effect: the flags.
      why: they have none.

    Raises:
      UsageError: one of them is given.
    """
    for flag in without_effect:
        if flag.value != flag.default:
            raise UsageError(f"--{flag.name} has no effect here: {why}; leave it out.")


def finite(*numbers: flags.FlagHolder) -> None:
    """Checks number flags that may be None; absl's own bounds let NaN through.

    Raises:
      UsageError: one is NaN or infinite.
    """
    for flag in numbers:
        if flag.value is not None and not math.isfinite(flag.value):
            raise UsageError(f"--{flag.name}={flag.value} must be a finite number.")


def at_least(flag: flags.FlagHolder, least: float) -> None:
    """Checks a number flag that may be None.

    Raises:
      UsageError: it is smaller than `least`.
    """
    if flag.value is not None and not flag.value >= least:
        raise UsageError(f"--{flag.name}={flag.value} must be at least {least:g}.")


def has_suffix(flag: flags.FlagHolder, *suffixes: str) -> None:
    """Checks the name of a file to be written, where `~` is the home folder; makes it absolute, and its directory.

    Raises:
      UsageError: it ends in none of `suffixes`, or cannot be there.
    """
    if not flag.value:
        return
    path = os.path.expanduser(flag.value)
    if not path.lower().endswith(suffixes):
        raise UsageError(f"--{flag.name}={path} must end in {' or '.join(suffixes)}.")
    if os.path.isdir(path):
        raise UsageError(f"--{flag.name}={path} is a directory: give a file.")
    flags.FLAGS[flag.name].value = files.absolute(path)
    make_directory(os.path.dirname(flag.value), f"The place of --{flag.name}")


def bindings() -> list[str]:
    """The bindings of the command line, those that win last."""
    return [*GIN_PARAM.value, *GIN_BINDINGS.value]


def parse_gin(directory: str, edits_count: bool = False, begins_anew: bool = False) -> None:
    """Parses the gin files that the flags name, else those of the run's directory, and the bindings of the flags.

    Of those of the directory, what the run was configured by wins over files that the user has put there.

    Args:
      directory: of the run.
      edits_count: but not over files that are newer.
      begins_anew: a new run takes its place, for which the user's files count as much.

    Raises:
      UsageError: there is no gin file.
      GinConfigError: one cannot be used.
    """
    from alf.trainers.run_index import CONFIG_FILE
    from alf.utils import gin_utils

    files = GIN_FILE.value or sorted(glob.glob(os.path.join(glob.escape(directory), "*.gin")))
    written = os.path.join(directory, CONFIG_FILE)
    if not GIN_FILE.value and not begins_anew and written in files:
        files = _in_order([file for file in files if file != written], written, edits_count)
    if not files:
        raise UsageError(
            f"There is no --gin_file, and no *.gin file in --root_dir={directory}: give one, e.g. "
            "--gin_file=async_ppo_cart_pole.gin."
        )
    gin_utils.parse_gin(files, bindings())


def _in_order(files: list[str], written: str, edits_count: bool) -> list[str]:
    """Gin files of the user and the one that a run has `written`, those that win last."""
    edited = [file for file in files if edits_count and os.path.getmtime(file) > os.path.getmtime(written)]
    before = [file for file in files if file not in edited]
    if before:
        logging.info(
            "%s, by which the run was configured, wins over %s; flags win over it.", written, ", ".join(before)
        )
    if edited:
        logging.info("Newer than %s, by which the run was configured, and over it: %s.", written, ", ".join(edited))
    return [*before, written, *edited]


def set_up_logging() -> None:
    """Logs what is INFO and above, but of TensorFlow only warnings."""
    logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
    # TensorFlow reports its own work, such as the time to save a shard, through the same logger.
    logging.get_absl_logger().addFilter(lambda r: r.levelno >= std_logging.WARNING or "/tensorflow/" not in r.pathname)


def set_up() -> None:
    """Sets devices, threads and logging, and imports every module whose names gin files may use without importing them.

    Raises:
      UsageError: --use_cpu comes too late, since TensorFlow already uses a GPU.
    """
    set_up_logging()
    _set_up_devices()
    from alf import _tf

    threads = _tf.configure_threads(INTRA_OP.value, INTER_OP.value)
    logging.info("TensorFlow threads: intra_op %d, inter_op %d.", threads["intra_op"], threads["inter_op"])
    import alf.trainers.configurables  # noqa: F401


def _set_up_devices() -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    try:
        if USE_CPU.value:
            tf.config.set_visible_devices([], "GPU")
            logging.info("--use_cpu: TensorFlow sees no GPU (there are %d).", len(gpus))
        elif gpus:
            logging.info("TensorFlow sees %d GPU(s) and learns on the first; --use_cpu has it see none.", len(gpus))
        elif os.path.exists(_NVIDIA_GPU) and os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in ("", "-1"):
            logging.warning(
                "This machine has a GPU that TensorFlow cannot use; --use_cpu says that it need not. It wants a recent driver, "
                "and libraries: %s",
                how_to_install("gpu"),
            )
    except RuntimeError as e:
        # TensorFlow has started: what is in force stays, which is wrong only where a GPU should not be seen.
        if USE_CPU.value and tf.config.get_visible_devices("GPU"):
            raise UsageError("--use_cpu comes too late: this process already uses a GPU; start a new one.") from e
