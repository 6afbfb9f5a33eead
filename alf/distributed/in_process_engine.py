"""Workers as threads of this process: what a remote engine does, without processes."""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from alf.distributed.engine import CONTROL_METHODS, Engine, WorkerLost, resolve, split
from alf.distributed.remote_errors import described, rebuilt

_STOP_TIMEOUT_SECS = 5.0


class InProcessCall(concurrent.futures.Future):
    """A call and, once it is done, its answer."""


class InProcessWorker:
    """An object and the two threads that run its methods: one those in `CONTROL_METHODS`, the other all others."""

    def __init__(self, number: int, life: int, make: str, settings: dict[str, Any]) -> None:
        """Starts the threads; see `Engine.start` for the arguments."""
        self.name = f"worker {number} (life {life})"
        self._new = functools.partial(self._made, make, number, life, settings)
        self._object: Any = None
        self._failure: Exception | None = None
        self._made_or_failed = threading.Event()
        # Re-entrant: whoever waits for a call may be told of its end, and call again, inside `kill`.
        self._lock = threading.RLock()
        self._lost = False
        self._pending: set[InProcessCall] = set()
        self._lines: dict[bool, queue.SimpleQueue] = {False: queue.SimpleQueue(), True: queue.SimpleQueue()}
        # A method that hangs must not keep the interpreter from ending.
        self.threads = [
            threading.Thread(target=self._work, name=f"alf {self.name} calls", daemon=True),
            threading.Thread(target=self._control, name=f"alf {self.name} control", daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def call(self, method: str, args: tuple[Any, ...]) -> InProcessCall:
        """Puts a call into its line."""
        call = InProcessCall()
        with self._lock:
            if self._lost:
                call.set_exception(self._lost_error(method))
                return call
            self._pending.add(call)
            self._lines[method in CONTROL_METHODS].put((call, method, args))
        return call

    def kill(self) -> None:
        """Gives up all calls that are not done, and ends the threads as soon as their methods return."""
        with self._lock:
            if self._lost:
                return
            self._lost = True
            pending, self._pending = self._pending, set()
            for call in pending:
                call.set_exception(self._lost_error("a call"))
            for line in self._lines.values():
                line.put(None)

    def _lost_error(self, what: str) -> WorkerLost:
        return WorkerLost(f"{self.name} was killed: {what} has no answer.")

    def _made(self, make: str, number: int, life: int, settings: dict[str, Any]) -> Any:
        return resolve(make)(number, life, **settings)

    def _work(self) -> None:
        try:
            self._object = self._new()
        except BaseException as error:  # whatever it is, the callers have to hear of it
            self._failure = _noted(error, self.name)
        self._made_or_failed.set()
        self._serve(self._lines[False])

    def _control(self) -> None:
        self._made_or_failed.wait()
        self._serve(self._lines[True])
        # No process ends with this worker, and what its object owns would go on.
        if self._failure is None:
            try:
                self._object.end()
            except Exception as error:
                logging.warning("%s failed when it was ended: %s: %s", self.name, type(error).__name__, error)

    def _serve(self, line: queue.SimpleQueue) -> None:
        while (job := line.get()) is not None:
            call, method, args = job
            if call.done():
                continue
            answer: Any = None
            error: Exception | None = self._failure
            if error is None:
                try:
                    answer = getattr(self._object, method)(*args)
                except BaseException as raised:  # as above
                    error = _noted(raised, self.name)
            with self._lock:
                if call in self._pending:
                    self._pending.remove(call)
                    _finish(call, answer, error)


def _finish(call: InProcessCall, answer: Any, error: Exception | None) -> None:
    if error is None:
        call.set_result(answer)
    else:
        call.set_exception(error)


def _noted(error: BaseException, name: str) -> Exception:
    if not isinstance(error, Exception):
        return rebuilt(described(error), name)
    error.add_note(f"In {name}.")
    return error


class InProcessRef:
    """A shared value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class InProcessEngine(Engine):
    """Runs workers in threads of this process, for tests and for environments that need no other process.

    Nothing is copied: arguments and answers are the objects themselves, which neither side may change any more.

    A thread cannot be ended from outside. A killed worker is lost at once for its callers; its `end()` is called, and
    its threads are left behind until their methods return.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._workers: list[InProcessWorker] = []

    def start(
        self, number: int, life: int, make: str, settings: dict[str, Any], num_cpus: float, resources: dict[str, float]
    ) -> InProcessWorker:
        """Starts a worker; `num_cpus` and `resources` say nothing here, where there is one machine to choose from."""
        split(make)
        with self._lock:
            if self._stopped:
                raise RuntimeError(f"Worker {number} cannot start: the engine has been stopped.")
            self._workers = [worker for worker in self._workers if any(t.is_alive() for t in worker.threads)]
            worker = InProcessWorker(number, life, make, settings)
            self._workers.append(worker)
        return worker

    def call(self, worker: InProcessWorker, method: str, *args: Any) -> InProcessCall:
        return worker.call(method, tuple(arg.value if isinstance(arg, InProcessRef) else arg for arg in args))

    def wait(self, calls: Sequence[InProcessCall], timeout: float) -> list[InProcessCall]:
        if calls:
            concurrent.futures.wait(calls, timeout, concurrent.futures.FIRST_COMPLETED)
        return [call for call in calls if call.done()]

    def result(self, call: InProcessCall) -> Any:
        if not call.done():
            raise ValueError("This call is not done: wait for it first.")
        return call.result()

    def share(self, value: Any) -> InProcessRef:
        if self._stopped:
            raise RuntimeError("A value cannot be shared: the engine has been stopped.")
        return InProcessRef(value)

    def kill(self, worker: InProcessWorker) -> None:
        worker.kill()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        deadline = time.monotonic() + _STOP_TIMEOUT_SECS
        left = [t for worker in workers for t in worker.threads if not _joined(t, deadline)]
        if left:
            logging.warning("These threads are left behind in their methods: %s", ", ".join(t.name for t in left))

    def describe(self) -> str:
        return "threads of this process"


def _joined(thread: threading.Thread, deadline: float) -> bool:
    if thread is not threading.current_thread():
        thread.join(max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()
