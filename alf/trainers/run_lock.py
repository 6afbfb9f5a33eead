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
_LOOK_SECS = 0.2


class RunLockedError(RuntimeError):
    """Another run that is alive writes to the directory."""


class RunLock:
    """Holds a run's directory from `acquire` to `release`.

    On this machine a holder is alive as long as its process is, so that a lock left by a crash is taken over at once; on
    another machine, and in another container, as long as it touches the file, which a thread does every few seconds: so
    long, and for up to a minute, it is waited for, since a run that was moved, or whose container was started again, goes on.
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
        self._await_sign()
        with _alone(self._root_dir):
            self._check_holder()
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

    def _await_sign(self) -> None:
        """Where nothing else tells whether a holder lives, waits for its next sign of life, or until it counts as dead."""
        found = _last_holder(self._path)
        if found is None or _is_known_alive(found[0]) is not None or found[1] >= _PATIENCE_SECS:
            return
        (holder, quiet), deadline = found, time.monotonic() + _PATIENCE_SECS
        logging.warning(
            "%s is of process %s on %s: waiting for a sign of life, up to %.0f s.",
            self._path,
            holder.get("pid"),
            holder.get("host"),
            _PATIENCE_SECS - quiet,
        )
        while quiet < _PATIENCE_SECS and time.monotonic() < deadline:
            time.sleep(_LOOK_SECS)
            found = _last_holder(self._path)
            if found is None or found[0] != holder or found[1] < quiet:
                return
            quiet = found[1]

    def _check_holder(self) -> None:
        found = _last_holder(self._path)
        if found is None:
            return
        holder, quiet = found
        if _is_alive(holder, quiet):
            raise RunLockedError(
                f"{self._root_dir} is in use by process {holder.get('pid')} on {holder.get('host')}, which gave a sign of "
                f"life {max(0.0, quiet):.0f} s ago: end that run (if it is this process, close() its trainer), or use another "
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
                if _read(self._path).get("token", self._token) != self._token:
                    logging.error("%s is another run's by now: end this one, which stood still too long.", self._path)
                    return
                os.utime(self._path)


def holder_of(root_dir: str) -> dict[str, Any] | None:
    """Who holds a run's directory: `pid`, `host`, `since` and more; None when nobody alive does. Writes nothing."""
    found = _last_holder(os.path.join(root_dir, LOCK_FILE))
    return found[0] if found is not None and _is_alive(*found) else None


def _last_holder(path: str) -> tuple[dict[str, Any], float] | None:
    """What the file of a lock says, and for how many seconds it was not touched; None where it says nothing."""
    holder = _read(path)
    try:
        return (holder, time.time() - os.path.getmtime(path)) if holder else None
    except OSError:
        return None


def _is_alive(holder: dict[str, Any], quiet_secs: float) -> bool:
    known = _is_known_alive(holder)
    return quiet_secs < _PATIENCE_SECS if known is None else known


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
