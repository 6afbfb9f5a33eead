"""Workers as Ray actors: processes of this machine or of a cluster."""

from __future__ import annotations

import contextlib
import importlib
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from alf.distributed import ray_connection
from alf.distributed.engine import CONTROL_METHODS, Engine, WorkerLost, resolve, split
from alf.distributed.remote_errors import RemoteError, described, rebuilt

# How long a thread stays in Ray at a time, while another may want to stop it.
_SLICE_SECS = 0.2
# For an answer that is there, but on another machine or on disk.
_FETCH_TIMEOUT_SECS = 60.0
_STOP_TIMEOUT_SECS = 10.0
# Ray tells at length what may have happened; the first sentences say what did.
_REASON_CHARACTERS = 500

# The engines that use a Ray which one of them has started.
_sharers: weakref.WeakSet[RayEngine] = weakref.WeakSet()
_sharing = threading.Lock()


class Host:
    """What runs as a Ray actor: it owns the worker's object and runs its methods.

    Errors of user code are answers here, so that Ray never pickles them, and an object that cannot be made still has
    someone to say so.
    """

    def __init__(self, number: int, life: int, make: str, settings: dict[str, Any], paths: list[str]) -> None:
        ray_connection.extend_path(paths)
        self._object: Any = None
        self._failure: tuple[Any, ...] | None = None
        try:
            self._object = resolve(make)(number, life, **settings)
        except BaseException as error:  # whatever it is, the callers have to hear of it
            self._failure = tuple(described(error))

    def call(self, method: str, *args: Any) -> tuple[tuple[Any, ...] | None, Any]:
        """Runs a method of the object.

        Returns:
          None and what the method returned, or a `RemoteError`, as a plain tuple, and None.
        """
        if self._failure is not None:
            return self._failure, None
        try:
            return None, getattr(self._object, method)(*args)
        except BaseException as error:  # as above
            return tuple(described(error)), None


class RayWorker:
    """An actor.

    Attributes:
      name: for messages.
      actor: Ray's handle.
      lost: whether it was killed here.
    """

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor
        self.lost = False


class RayCall:
    """A call on its way.

    Attributes:
      worker: that was asked.
      method: what it was asked for.
      ref: Ray's reference to the answer; None if the call was never sent.
    """

    def __init__(self, worker: RayWorker, method: str, ref: Any) -> None:
        self.worker = worker
        self.method = method
        self.ref = ref


class RayEngine(Engine):
    """Runs workers as processes, on this machine or on those of a Ray cluster.

    Ray copies what crosses: numpy arrays are written into shared memory once and are read where they lie by every process
    of a machine. So arrays in arguments and in answers are read-only, and those of an answer hold their memory in
    Ray's object store until they are dropped; copy what has to stay.

    On one machine of its own (`address` None or "local") workers ask Ray for no processors and no resources: there is one
    machine to choose, and more workers than processors are to share it rather than wait for ever. In a cluster each
    asks for what `start` is given, and waits until a machine has it.
    """

    def __init__(self, address: str | None = None) -> None:
        """Connects to Ray.

        If the program has initialised Ray before, that is used, and left running by `stop`. Engines of one program share
        the Ray that the first of them started; the last one's `stop` ends it.

        Args:
          address: None or "local" starts a Ray on this machine, for this process only, to be done in the main thread;
            "auto" joins the cluster that this machine belongs to; "host:port" joins the cluster whose head is there.

        Raises:
          ImportError: the package `ray` is missing.
          ValueError: `address` has another form.
          ConnectionError: no cluster answers at `address`.
          RuntimeError: the cluster runs another version of Ray or Python.
        """
        self._ray = ray_connection.import_ray()
        with _sharing:
            if not self._ray.is_initialized():
                _sharers.clear()
                ray_connection.connect(self._ray, address)
                _sharers.add(self)
            elif _sharers:
                _sharers.add(self)
        self._alone = address in ray_connection.LOCAL and len(self._machines()) == 1
        self._errors: Any = importlib.import_module("ray.exceptions")
        self._host = self._ray.remote(concurrency_groups={"control": 1})(Host)
        self._workers: set[RayWorker] = set()
        # Ray must not be shut down while a thread is inside, and must not be entered afterwards: it would start anew.
        self._guard = threading.Condition()
        self._inside = 0
        self._stopping = False
        self._closed = threading.Event()

    def start(
        self, number: int, life: int, make: str, settings: dict[str, Any], num_cpus: float, resources: dict[str, float]
    ) -> RayWorker:
        split(make)
        asks = dict(resources)
        gpus = asks.pop("GPU", 0.0)
        options = {
            "num_cpus": 0 if self._alone else num_cpus,
            "num_gpus": gpus,
            "resources": {} if self._alone else asks,
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": ray_connection.environment(gpus > 0)},
        }
        with self._in_ray() as connected:
            if not connected:
                raise RuntimeError(f"Worker {number} cannot start: the engine has been stopped.")
            actor = self._host.options(**options).remote(number, life, make, settings, ray_connection.path())
            worker = RayWorker(f"worker {number} (life {life})", actor)
            with self._guard:
                self._workers.add(worker)
        return worker

    def call(self, worker: RayWorker, method: str, *args: Any) -> RayCall:
        with self._in_ray() as connected:
            ref = None
            if connected and not worker.lost:
                group = "control" if method in CONTROL_METHODS else None
                ref = worker.actor.call.options(concurrency_group=group).remote(method, *args)
        return RayCall(worker, method, ref)

    def wait(self, calls: Sequence[RayCall], timeout: float) -> list[RayCall]:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            done = self._done(calls, max(0.0, min(left, _SLICE_SECS)))
            if done or not calls or left <= 0:
                return done

    def _done(self, calls: Sequence[RayCall], timeout: float) -> list[RayCall]:
        with self._in_ray() as connected:
            if not connected:
                return list(calls)
            given_up = any(_is_given_up(call) for call in calls)
            sent = [call.ref for call in calls if call.ref is not None]
            ready: list[Any] = []
            if sent and not given_up:
                ready, _ = self._ray.wait(sent, num_returns=1, timeout=timeout)
            # Ray returns no more than it was asked for.
            if sent and (ready or given_up):
                ready, _ = self._ray.wait(sent, num_returns=len(sent), timeout=0)
        found = set(ready)
        return [call for call in calls if _is_given_up(call) or call.ref in found]

    def result(self, call: RayCall) -> Any:
        with self._in_ray() as connected:
            ready = connected and call.ref is not None and self._ray.wait([call.ref], timeout=0)[0]
            if not ready and connected and not _is_given_up(call):
                raise ValueError("This call is not done: wait for it first.")
            if not ready:
                why = "it was killed" if connected else "the engine has been stopped"
                raise WorkerLost(f"{call.worker.name} has no answer to {call.method!r}: {why}.")
            error, answer = self._fetch(call)
        if error is not None:
            raise rebuilt(RemoteError(*error), call.worker.name)
        return answer

    def _fetch(self, call: RayCall) -> Any:
        try:
            return self._ray.get(call.ref, timeout=_FETCH_TIMEOUT_SECS)
        except self._errors.RayTaskError as error:
            # Not of user code, which `Host` answers with: an argument or an answer that Ray could not carry.
            if isinstance(error.cause, self._errors.RayError):
                raise self._lost(call, error.cause) from error
            raise RuntimeError(f"{call.worker.name} could not be asked for {call.method!r}: {error}") from error
        except self._errors.RayError as error:
            raise self._lost(call, error) from error

    def _lost(self, call: RayCall, error: Exception) -> WorkerLost:
        told = textwrap.shorten(str(error), _REASON_CHARACTERS)
        return WorkerLost(
            f"{call.worker.name} has no answer to {call.method!r}: Ray says {type(error).__name__}: {told}"
        )

    def share(self, value: Any) -> Any:
        with self._in_ray() as connected:
            if not connected:
                raise RuntimeError("A value cannot be shared: the engine has been stopped.")
            return self._ray.put(value)

    def kill(self, worker: RayWorker) -> None:
        with self._guard:
            worker.lost = True
            self._workers.discard(worker)
        with self._in_ray() as connected:
            if connected:
                self._end(worker)

    def _end(self, worker: RayWorker) -> None:
        try:
            self._ray.kill(worker.actor, no_restart=True)
        except (self._errors.RayError, ValueError) as error:
            logging.warning("%s could not be killed: %s", worker.name, error)

    def stop(self) -> None:
        with self._guard:
            first, self._stopping = not self._stopping, True
        if not first:
            self._closed.wait(2 * _STOP_TIMEOUT_SECS)
            return
        try:
            with self._guard:
                workers, self._workers = self._workers, set()
                for worker in workers:
                    worker.lost = True
            if self._ray.is_initialized():
                for worker in workers:
                    self._end(worker)
            with self._guard:
                if not self._guard.wait_for(lambda: self._inside == 0, _STOP_TIMEOUT_SECS):
                    logging.warning("Ray is shut down although %d threads are in it", self._inside)
            with _sharing:
                was_last = self in _sharers and len(_sharers) == 1
                _sharers.discard(self)
                if was_last:
                    self._ray.shutdown()
        finally:
            self._closed.set()

    def describe(self) -> str:
        with self._in_ray() as connected:
            if not connected:
                return "Ray, stopped"
            if self._alone:
                return f"Ray on this machine, which has {ray_connection.processors()} processors"
            machines = self._machines()
        cpus = sum(machine["Resources"].get("CPU", 0.0) for machine in machines)
        return f"Ray on {len(machines)} {'machine' if len(machines) == 1 else 'machines'} with {cpus:g} processors"

    def _machines(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    @contextlib.contextmanager
    def _in_ray(self) -> Iterator[bool]:
        """Holds `stop` up while the block runs; gives False, and holds nothing, once the engine stops."""
        with self._guard:
            connected = not self._stopping and self._ray.is_initialized()
            self._inside += connected
        try:
            yield connected
        finally:
            if connected:
                with self._guard:
                    self._inside -= 1
                    self._guard.notify_all()


def _is_given_up(call: RayCall) -> bool:
    return call.worker.lost or call.ref is None
