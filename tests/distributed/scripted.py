"""Drivers that need no TensorFlow, and an engine that loses things: for tests of what lies between worker and learner."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alf.distributed.engine import WorkerLost
from alf.distributed.in_process_engine import InProcessCall, InProcessEngine, InProcessWorker
from alf.distributed.pool import WorkerPool
from alf.drivers.pumping import WireSegment
from alf.drivers.queues import QueueClosed, QueueEmpty
from alf.metrics.time_shares import Timings

MAKER = "tests.distributed.scripted:make_driver"

# Threads of a worker, steps in a segment, rows of an environment.
N, T, B = 2, 3, 2
PATIENCE_SECS = 30.0
_HANG_SECS = 60.0


class Boom(Exception):
    """What scripted drivers raise."""


class ScriptedDriver:
    """Has the next segment of its threads, in turn, whenever it is asked; or fails, or hangs, at one of them.

    A segment's arrays are step types [T, B], and (worker, life, thread, number in the thread, version, at_random).

    Attributes:
      taken: segments handed out.
      loaded: the versions it was given.
      asked: the sizes of batches it was asked for.
    """

    def __init__(self, run: Run, number: int, life: int) -> None:
        self._run, self._number, self._life = run, number, life
        self.taken = 0
        self.loaded: list[tuple[int, bool]] = []
        self.weights: list[np.ndarray] = []
        self.asked: list[int] = []
        self.stopped = False

    def load(self, version: int, weights: Sequence[np.ndarray], at_random: bool = False) -> None:
        self.loaded.append((version, at_random))
        self.weights = list(weights)

    def start(self) -> None:
        assert self.loaded, "weights come before the start"

    def ask(self, count: int) -> None:
        self.asked.append(count)

    def next_segment(self, timeout: float) -> WireSegment:
        if self.stopped:
            raise QueueClosed("scripted")
        script = self._run.script_of(self._number, self._life)
        if self.taken == script.get("fail_at"):
            raise Boom(script.get("error", f"boom after {self.taken}"))
        if self.taken == script.get("hang_at"):
            self._run.let_go.wait(_HANG_SECS)
            raise QueueEmpty
        if self.taken == script.get("empty_at"):
            # As of an environment that takes longer than the request waits.
            raise QueueEmpty
        serial, thread = divmod(self.taken, self._run.threads)
        self.taken += 1
        version, at_random = self.loaded[-1]
        told = np.array([self._number, self._life, thread, serial, version, at_random], np.int64)
        return WireSegment(thread, [np.zeros((T, B), np.int32), told])

    def stop(self) -> None:
        self.stopped = True

    def stats(self) -> dict[str, float]:
        if self._run.script_of(self._number, self._life).get("mute"):
            self._run.let_go.wait(_HANG_SECS)
        return {"env_steps": float(self.taken)}

    def timings(self) -> Timings:
        return Timings(environment=1.0, inference=2.0, waiting_for_learner=4.0, threads=self._run.threads)


class Run:
    """What one test's drivers do, and what became of them.

    Attributes:
      drivers: by worker and life.
      scripts: by worker, or by worker and life: `fail_at`, `hang_at`, `empty_at` number of a segment; `error` its
        message; `mute`: hangs when asked for a sign of life; `maker`: "fails" or "hangs".
      let_go: ends all that hangs.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.drivers: dict[tuple[int, int], ScriptedDriver] = {}
        self.scripts: dict[Any, dict[str, Any]] = {}
        self.let_go = threading.Event()

    def script_of(self, number: int, life: int) -> dict[str, Any]:
        return self.scripts.get((number, life), self.scripts.get(number, {}))

    def newest(self, number: int) -> ScriptedDriver:
        return self.drivers[max(key for key in self.drivers if key[0] == number)]


# The runs of the tests of this process, by the number that makers are told.
RUNS: dict[int, Run] = {}


def make_driver(number: int, life: int, run: int) -> ScriptedDriver:
    script = RUNS[run].script_of(number, life)
    if script.get("maker") == "hangs":
        RUNS[run].let_go.wait(_HANG_SECS)
    if script.get("maker") == "fails":
        raise Boom(script.get("error", f"no environment at 0x7f{life:02x}"))
    driver = RUNS[run].drivers[number, life] = ScriptedDriver(RUNS[run], number, life)
    return driver


class LossyEngine(InProcessEngine):
    """Forgets answers: what was asked has been done, and the caller hears that the worker is lost.

    Attributes:
      started: the workers, in the order of their lives.
      forgets: the share of answers that are forgotten, to calls of `methods`.
      methods: whose answers may be.
      forgotten: how many answers were.
      sent: how often each method of each worker was called, by the worker's name and the method's.
    """

    def __init__(self, share: float = 0.0, seed: int = 0) -> None:
        """Creates the engine; by default it forgets `share` of the answers to what is asked of workers that have begun."""
        super().__init__()
        self.started: list[tuple[int, int, InProcessWorker]] = []
        self.forgets = share
        self.methods: tuple[str, ...] = ("take", "collect", "load")
        self._rng = np.random.default_rng(seed)
        self._methods: dict[InProcessCall, str] = {}
        self.forgotten = 0
        self.sent: collections.Counter[tuple[str, str]] = collections.Counter()

    def start(self, number: int, life: int, *args: Any) -> InProcessWorker:
        worker = super().start(number, life, *args)
        self.started.append((number, life, worker))
        return worker

    def call(self, worker: InProcessWorker, method: str, *args: Any) -> InProcessCall:
        call = super().call(worker, method, *args)
        self._methods[call] = method
        self.sent[worker.name, method] += 1
        return call

    def result(self, call: InProcessCall) -> Any:
        answer = super().result(call)
        if self._methods.pop(call) in self.methods and self._rng.random() < self.forgets:
            self.forgotten += 1
            raise WorkerLost("the network was away")
        return answer

    def newest(self, number: int) -> InProcessWorker:
        """The worker of this number that was started last."""
        return next(worker for n, _, worker in reversed(self.started) if n == number)


def told(segment: WireSegment) -> dict[str, int]:
    """What a scripted segment says of itself."""
    names = ("worker", "life", "thread", "serial", "version", "at_random")
    return dict(zip(names, segment.arrays[1].tolist(), strict=True))


def check_prefixes(segments: Sequence[WireSegment], threads: int) -> dict[tuple[int, int], int]:
    """Asserts that of each life of each worker all segments have come, in order, up to some point; returns how many."""
    counts: dict[tuple[int, int], int] = {}
    lives: dict[int, int] = {}
    for segment in segments:
        said = told(segment)
        life = said["worker"], said["life"]
        assert segment.thread == said["worker"] * threads + said["thread"]
        count = counts.get(life, 0)
        assert (said["serial"], said["thread"]) == divmod(count, threads), f"segment {count} of life {life} is {said}"
        assert said["life"] >= lives.get(said["worker"], 0), "a life goes on after the next has begun"
        lives[said["worker"]] = said["life"]
        counts[life] = count + 1
    return counts


class Stage:
    """A pool over scripted drivers."""

    def __init__(self, workers: int = 2, share: float = 0.0, seed: int = 0, **kwargs: Any) -> None:
        self.run = RUNS[0] = Run(N)
        self.engine = LossyEngine(share, seed)
        self.pool = WorkerPool(self.engine, workers, N, MAKER, {"run": 0}, **kwargs)
        self.segments: list[WireSegment] = []

    def start(self) -> None:
        self.pool.start(0, [np.zeros(1)], False)

    def fetch(self, count: int) -> list[WireSegment]:
        """The next segments, patiently."""
        found: list[WireSegment] = []
        deadline = time.monotonic() + PATIENCE_SECS
        while len(found) < count:
            try:
                found.append(self.pool.fetch(0.2))
            except QueueEmpty:
                assert time.monotonic() < deadline, f"{len(found)} of {count}: {self.pool.who_is_waited_for()}"
        self.segments += found
        return found

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while not true():
            assert time.monotonic() < deadline, self.pool.who_is_waited_for()
            time.sleep(0.005)

    def fetch_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while not true():
            assert time.monotonic() < deadline, self.pool.who_is_waited_for()
            self.fetch(1)

    def error(self) -> BaseException:
        """What ends the pool."""
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            try:
                self.segments.append(self.pool.fetch(0.2))
            except QueueEmpty:
                continue
            except Exception as e:
                return e
        raise AssertionError(f"nothing has ended the pool: {self.pool.who_is_waited_for()}")

    def fact(self, worker: int, name: str) -> Any:
        return self.pool.facts()[worker][name]

    def close(self) -> None:
        self.run.let_go.set()
        self.pool.stop()
