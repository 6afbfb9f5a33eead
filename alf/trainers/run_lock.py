"""One live run a directory: the file `run.lock` says who writes there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from alf.trainers.run_index import now
from alf.utils.files import write_atomically

LOCK_FILE = "run.lock"
_HEARTBEAT_SECS = 5.0
# A run on another machine, or in another container, counts as dead when its lock was not touched for this long.
_PATIENCE_SECS = 60.0
# How old a lock looks says little where the clock of the machine that keeps the files goes otherwise than this one's: a
# holder is watched for a few of its heartbeats at least, unless no clocks are as far apart as that.
_WATCH_SECS = 3 * _HEARTBEAT_SECS
_LONG_GONE_SECS = 3600.0
_LOOK_SECS = 0.2


class RunLockedError(RuntimeError):
    """Another run that is alive writes to the directory."""


class RunLock:
    """Holds a run's directory from `acquire` to `release`.

    On this machine a holder is alive as long as its process is, so that a lock left by a crash is taken over at once; on
    another machine, and in another container, as long as it touches the file, which a thread does every few seconds: so
    long, and for up to a minute, it is waited for, since a run that was moved, or whose container was started again, goes on.
    Whether it touches the file is watched for 15 seconds at least, since clocks may differ, unless an hour has passed.
    """

    def __init__(self, root_dir: str) -> None:
        """Creates the lock, not held; `root_dir` is made when it is acquired."""
        self._root_dir = root_dir
        self._path = os.path.join(root_dir, LOCK_FILE)
        self._token: str | None = None
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Takes the directory; does nothing while it is held. Waits where a holder on another machine may be dead.

        Raises:
          RunLockedError: a live run has it.
          OSError: the file cannot be written.
        """
        if self._token is not None:
            return
        os.makedirs(self._root_dir, exist_ok=True)
        gone = self._await_sign()
        with _alone(self._root_dir):
            self._check_holder(gone)
            token = f"{os.getpid()}-{time.monotonic_ns()}-{id(self)}"
            holder = {
                "pid": os.getpid(),
                "born": _born(os.getpid()),
                "host": socket.gethostname(),
                "pid_namespace": _pid_namespace(),
                "since": now(),
                "token": token,
            }
            write_atomically(self._path, json.dumps(holder) + "\n")
        self._token = token
        self._released.clear()
        self._thread = threading.Thread(target=self._beat, name="alf-run-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises RunLockedError where another run has taken the directory over, to which this one seemed dead."""
        if self._is_lost():
            raise RunLockedError(
                f"{self._path} is another run's by now, which took this one for dead since it stood still for too long: it ends, "
                "and writes no checkpoint any more."
            )

    def _is_lost(self) -> bool:
        return self._token is not None and _read(self._path).get("token", self._token) != self._token

    def release(self) -> None:
        """Gives the directory back; may be called any number of times."""
        if self._token is None:
            return
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError), _alone(self._root_dir):
            if _read(self._path).get("token") == self._token:
                os.remove(self._path)
        self._token = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _await_sign(self) -> tuple[dict[str, Any], float] | None:
        """Waits for the next sign of life of a holder of which nothing else tells; what `_last_holder` gives where none came."""
        found = _last_holder(self._path)
        if found is None or _is_known_alive(found[0]) is not None:
            return None
        holder, quiet = found[0], _quiet_secs(found[1])
        if quiet >= _LONG_GONE_SECS:
            return found
        wait = min(_PATIENCE_SECS, max(_WATCH_SECS, _PATIENCE_SECS - quiet))
        logging.warning(
            "%s is of process %s on %s: waiting for a sign of life, up to %.0f s.",
            self._path,
            holder.get("pid"),
            holder.get("host"),
            wait,
        )
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECS)
            if _last_holder(self._path) != found:
                return None
        return found

    def _check_holder(self, gone: tuple[dict[str, Any], float] | None) -> None:
        """Raises where the holder lives; `gone` is one that has given no sign of life for as long as that takes."""
        found = _last_holder(self._path)
        if found is None:
            return
        holder, touched = found
        known = _is_known_alive(holder)
        if found != gone if known is None else known:
            # Another machine's clock does not tell when it was, but it was a moment ago.
            quiet = 0.0 if known is None else max(0.0, _quiet_secs(touched))
            raise RunLockedError(
                f"{self._root_dir} is in use by process {holder.get('pid')} on {holder.get('host')}, which gave a sign of "
                f"life {quiet:.0f} s ago: end that run (if it is this process, close() its trainer), or use another "
                "root_dir."
            )
        logging.warning(
            "%s was left by process %s on %s, which is gone: taken over.",
            self._path,
            holder.get("pid"),
            holder.get("host"),
        )

    def _beat(self) -> None:
        while not self._released.wait(_HEARTBEAT_SECS):
            with contextlib.suppress(OSError):
                # A run that stood still for long may have lost the directory to one on another machine.
                if self._is_lost():
                    logging.error(
                        "%s is another run's by now: this one, which stood still too long, writes no more.", self._path
                    )
                    return
                os.utime(self._path)


def holder_of(root_dir: str) -> dict[str, Any] | None:
    """Who holds a run's directory: `pid`, `host`, `since` and more; None when nobody alive does. Writes nothing.

    It does not wait: of a holder on another machine the age of its last sign of life tells, by this machine's clock.
    """
    found = _last_holder(os.path.join(root_dir, LOCK_FILE))
    if found is None:
        return None
    known = _is_known_alive(found[0])
    alive = _quiet_secs(found[1]) < _PATIENCE_SECS if known is None else known
    return found[0] if alive else None


def _last_holder(path: str) -> tuple[dict[str, Any], float] | None:
    """What the file of a lock says, and when it was last touched; None where it says nothing."""
    holder = _read(path)
    try:
        return (holder, os.path.getmtime(path)) if holder else None
    except OSError:
        return None


def _quiet_secs(touched: float) -> float:
    return time.time() - touched


def _is_known_alive(holder: dict[str, Any]) -> bool | None:
    """Whether the process of a holder lives; None where its signs of life alone can tell."""
    pid, host, namespace = holder.get("pid"), holder.get("host"), holder.get("pid_namespace")
    if isinstance(host, str) and host != socket.gethostname():
        return None
    # Containers may have the name of their machine: the number is that of another process here.
    if isinstance(namespace, str) and namespace != _pid_namespace():
        return None
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # It is there, and the kernel may hide from us when it began.
        if _born(pid) is None:
            return None
    # A process with the number of a dead one is another one.
    return holder.get("born") == _born(pid)


def _pid_namespace() -> str | None:
    """What the numbers of processes belong to, such as a container; None where the kernel does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _born(pid: int) -> str | None:
    """When a process began, in the kernel's own unit; None for one that has ended, or where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            # The name of the program, in parentheses, may hold anything.
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie has ended, though its parent has not asked yet.
    return None if fields[0] in ("Z", "X") else fields[19]


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Keeps other processes of this machine out while the lock changes hands; where file systems cannot, does nothing."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
