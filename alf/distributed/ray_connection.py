"""How this process gets into Ray, and what its workers need to find there."""

from __future__ import annotations

import importlib
import os
import pathlib
import signal
import site
import socket
import sys
import sysconfig
import threading
from typing import Any

from absl import logging

from alf._extras import how_to_install
from alf.utils.uninterrupted import held_up

LOCAL = (None, "local")

_REACH_TIMEOUT_SECS = 5.0
# What a client of HTTP/2 says first, and no settings: RFC 9113, 3.4.
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# Ray takes no less than 75 MiB. More than 2 GiB is of no use to one machine: the store holds some versions of the weights
# and the segments under way, a few megabytes each, and what does not fit is written to disk.
_LEAST_STORE_BYTES = 80 * 2**20
_MOST_STORE_BYTES = 2 * 2**30
# Ray starts at most as many processes at a time as it is told processors, and so many idle ones for nothing, 80 MB each.
_MOST_STARTING = 4
# Set by the user, or by alf, for this process; they mean the same in a worker.
_HANDED_ON = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_USE_LEGACY_KERAS",
    "MUJOCO_GL",
    "SDL_VIDEODRIVER",
)


def import_ray() -> Any:
    """The package `ray`.

    Raises:
      ImportError: it is not installed.
    """
    # It is not Ray's to report on alf's users.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(f"Remote workers need Ray ({error}): {how_to_install('distributed')}") from error


def connect(ray: Any, address: str | None) -> None:
    """Starts a Ray on this machine or joins a cluster; see `RayEngine` for the arguments and the errors."""
    # What Ray warns of at the start is how it is set up, by the lines below; and workers write into Ray's own log files.
    quietly = {"logging_level": "ERROR", "log_to_driver": False}
    # A Ray that is left half-way into its start crashes the process at its end.
    with held_up():
        if address in LOCAL:
            _start(ray, quietly)
        else:
            assert address is not None
            _join(ray, address, quietly)
    # It also prints the log of a machine or process that died, to stdout. Whoever loses a worker by that is told anyway.
    importlib.import_module("ray._private.worker").__dict__["_worker_logs_enabled"] = False


def _start(ray: Any, settings: dict[str, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        # Linux ends Ray's processes with the thread that started them.
        raise RuntimeError("A Ray of this machine has to be started in the main thread, whose end it shares.")
    kept = _handlers()
    try:
        ray.init(
            "local",
            include_dashboard=False,
            num_cpus=min(_MOST_STARTING, processors()),
            object_store_memory=object_store_bytes(),
            **settings,
        )
    finally:
        _restore(kept)


def processors() -> int:
    """Of this machine, as far as this process may use them."""
    return len(os.sched_getaffinity(0))


def object_store_bytes(shared_memory: str = "/dev/shm") -> int:
    """How much memory Ray may use for what crosses: half of what is free in `shared_memory`, within bounds.

    Environments in processes of their own use shared memory too. A container has 64 MB of it unless it is given more; Ray
    then takes files in its place.
    """
    room = os.statvfs(shared_memory)
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_STORE_BYTES:
        logging.warning(
            "%s has only %d MB free, so that what workers send goes through files: give a container more by `--shm-size`",
            shared_memory,
            free // 10**6,
        )
    return max(_LEAST_STORE_BYTES, min(_MOST_STORE_BYTES, free // 2))


def _join(ray: Any, address: str, settings: dict[str, Any]) -> None:
    kept = _handlers()
    try:
        _reach(_found(address) if address == "auto" else address)
        ray.init(address, **settings)
    except Exception as error:
        if not (isinstance(error, (ConnectionError, RuntimeError, TimeoutError)) or _is_of_a_token(error)):
            raise
        raise _explained(address, error) from error
    finally:
        _restore(kept)


def _found(auto: str) -> str:
    """The address that Ray takes "auto" for: of the environment, or of a cluster that runs, or ran, on this machine."""
    given = os.environ.get("RAY_ADDRESS")
    return given or importlib.import_module("ray._private.services").canonicalize_bootstrap_address(auto)


def _reach(address: str) -> None:
    """Asks whether a cluster may be at `address`: Ray itself would try for minutes.

    Ray's head speaks gRPC, that is HTTP/2, where both sides begin with their settings.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(f"{address!r} is no address of a Ray cluster: give 'local', 'auto' or 'host:port'.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _REACH_TIMEOUT_SECS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(_HTTP2_GREETING)
                if connection.recv(1) == b"":
                    raise ConnectionError("what listens there has hung up")
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing answers at {address}: {error}") from error


def _explained(address: str, error: Exception) -> Exception:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    told = ""
    for cause in causes:
        text = " ".join(str(cause).partition("Traceback")[0].split())
        if text not in told:
            told = f"{told}; {text}" if told else text
    if any(map(_is_of_a_token, causes)):
        return ConnectionError(
            f"The Ray cluster at {address} asks for a token that this process does not give: set RAY_AUTH_MODE=token in its "
            "environment, with the file ~/.ray/auth_token of the machine of the head; or start the cluster with "
            "RAY_AUTH_MODE=disabled."
        )
    if "ersion mismatch" in told:
        return RuntimeError(f"The Ray cluster at {address} runs other versions than this process: {told}")
    return ConnectionError(
        f"This process cannot join a Ray cluster at {address} ({told}): run `ray start --head` on one machine and "
        "`ray start --address=HOST:PORT` on all others, this one included; or leave the address out, to use this machine only."
    )


def _is_of_a_token(error: BaseException) -> bool:
    # Older versions of Ray have neither tokens nor the class. From a cluster it comes at the end of a traceback in a text.
    return type(error).__name__ == "AuthenticationError" or "InvalidAuthToken" in str(error)


def _handlers() -> dict[int, Any]:
    """What signals mean now: Ray makes SIGTERM end the process at once, when it is the training service's to handle."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # not of Python
            signal.signal(number, handler)


def environment(gpu: bool) -> dict[str, str]:
    """The environment variables of a worker.

    Args:
      gpu: whether Ray gives it a GPU; without, it sees none, because TensorFlow would take all memory of the learner's.
    """
    variables = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    if not gpu:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return {**variables, "PYTHONPATH": os.pathsep.join(_first_paths())}


def path() -> list[str]:
    """Where this process looks for modules, all absolute."""
    return [str(pathlib.Path(entry).absolute()) for entry in sys.path]


def _first_paths() -> list[str]:
    """Where it looks before it looks into Python itself: a worker has to look there before `alf` is imported.

    What comes with Python or with a virtual environment is left out: another machine has its own.
    """
    places = sysconfig.get_paths()
    python = places["stdlib"], places["platstdlib"]
    installed = tuple(f"{place}{os.sep}" for place in (*site.getsitepackages(), places["purelib"], places["platlib"]))
    first = []
    for entry in path():
        if entry in python or entry.endswith(".zip"):
            break
        if not f"{entry}{os.sep}".startswith(installed):
            first.append(entry)
    return first


def extend_path(paths: list[str]) -> None:
    """Lets this process, a worker, look for modules where the learner's does, after where it looks itself."""
    sys.path.extend(entry for entry in paths if entry not in sys.path and pathlib.Path(entry).exists())
