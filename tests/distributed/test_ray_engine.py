"""What only Ray does: processes that die, clusters to join, a Ray of one's own."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import sys
import threading
from typing import Any

import numpy as np
import psutil
import pytest

from alf.distributed import ray_connection
from alf.distributed.engine import WorkerLost
from alf.distributed.ray_engine import RayEngine

PUPPET = "tests.distributed.puppet:Puppet"
PATIENCE_SECS = 240.0

# Processes of TensorFlow start here, several at a time.
pytestmark = pytest.mark.timeout(300)


def start(engine: RayEngine, number: int = 0, **settings: Any) -> Any:
    return engine.start(number, 0, PUPPET, settings, num_cpus=1000.0, resources={"rollout": 1.0})


def answer(engine: RayEngine, worker: Any, method: str, *args: Any) -> Any:
    call = engine.call(worker, method, *args)
    assert engine.wait([call], PATIENCE_SECS) == [call]
    return engine.result(call)


def test_a_ray_of_ones_own_starts_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: what Ray has not is not asked of it, workers see no GPU, arrays are read-only, kill -9 is seen, two engines
    share it."""
    ray = pytest.importorskip("ray")
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    engine, other = RayEngine(), RayEngine()
    try:
        assert ray.is_initialized()
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
        worker, victim = start(engine, 1), start(engine, 2)
        (array,) = answer(engine, worker, "give_back", np.ones(200_000))
        assert not array.flags.writeable
        assert answer(engine, worker, "variable", "CUDA_VISIBLE_DEVICES") == ""
        pid = answer(engine, victim, "facts")["pid"]
        taking = engine.call(victim, "take")
        assert answer(engine, victim, "beat")
        os.kill(pid, signal.SIGKILL)
        assert engine.wait([taking], PATIENCE_SECS) == [taking]
        for call in (taking, engine.call(victim, "facts")):
            assert engine.wait([call], PATIENCE_SECS) == [call]
            with pytest.raises(WorkerLost, match=r"worker 2 .*take|worker 2 .*facts"):
                engine.result(call)
        assert answer(engine, worker, "facts")["number"] == 1
        hanging = engine.call(worker, "hang")
        assert answer(engine, worker, "beat")
        started = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
        assert len(started) >= 3
        engine.stop()
        assert answer(other, start(other, 3), "facts")["number"] == 3
    finally:
        engine.stop()
        other.stop()
    assert not ray.is_initialized()
    assert psutil.wait_procs(started, PATIENCE_SECS)[1] == []
    with pytest.raises(WorkerLost):
        engine.result(hanging)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'Remote workers need Ray .*pip install "\.\[distributed\]"'):
        RayEngine()


@pytest.mark.parametrize("answers", [False, True])
def test_what_is_no_ray_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """It says nothing, or hangs up."""
    monkeypatch.setattr(ray_connection, "_REACH_TIMEOUT_SECS", PATIENCE_SECS if answers else 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if answers:
            threading.Thread(target=lambda: server.accept()[0].close()).start()
        with pytest.raises(ConnectionError, match=f"nothing answers at {address}"):
            ray_connection.connect(_Ray(AssertionError("not to be reached")), address)


class _Ray:
    """Stands for the package, whose `init` fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def init(self, *args: Any, **kwargs: Any) -> None:
        raise self._error


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("address", ["somewhere", "host:port", "ray://host:1", "host:", ":6379"])
def test_addresses_of_another_form_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="'local', 'auto' or 'host:port'"):
        ray_connection.connect(_Ray(AssertionError("not to be reached")), address)


def test_an_address_where_nobody_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for given, variable in ((address, None), ("auto", address)):
        if variable:
            monkeypatch.setenv("RAY_ADDRESS", variable)
        with pytest.raises(ConnectionError, match=f"nothing answers at {address}.*ray start --head"):
            ray_connection.connect(_Ray(AssertionError("not to be reached")), given)


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "_reach", lambda address: None)
    mismatch = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 1.0\n    Python: 3.6")
    error = _caused(ConnectionError("Failed to connect to Ray cluster"), mismatch)
    with pytest.raises(RuntimeError, match=r"at head:6379 runs other versions .*Ray: 1\.0"):
        ray_connection.connect(_Ray(error), "head:6379")


@pytest.mark.parametrize("address", [None, "head:6379"])
def test_an_interrupt_waits_until_ray_has_started(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    """Left half-way, Ray crashes the process at its end."""
    monkeypatch.setattr(ray_connection, "_reach", lambda address: None)
    come_to = []

    class Ray:
        def init(self, *args: Any, **kwargs: Any) -> None:
            come_to.append("begun")
            signal.raise_signal(signal.SIGINT)
            come_to.append("started")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ray_connection.connect(Ray(), address)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert come_to == ["begun", "started"]


@pytest.mark.parametrize("here", [True, False])
def test_a_cluster_that_asks_for_a_token_says_so(monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    monkeypatch.setattr(ray_connection, "_reach", lambda address: None)
    told = "Failed to connect to GCS. Last error: Traceback (most recent call last):\n  File ...\nInvalidAuthToken: ..."
    error = _caused(ConnectionError("Failed to connect to Ray cluster"), RuntimeError(told))
    if here:
        error = type("AuthenticationError", (Exception,), {})("no authentication token was found")
    with pytest.raises(ConnectionError, match=r"at head:6379 asks for a token .*RAY_AUTH_MODE=token.*\.ray/auth_token"):
        ray_connection.connect(_Ray(error), "head:6379")


def test_a_machine_outside_the_cluster_is_told_how_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "_reach", lambda address: None)
    error = RuntimeError("This node has an IP address of 1.2.3.4, and Ray expects another")
    with pytest.raises(ConnectionError, match=r"at head:6379 .*1\.2\.3\.4.*ray start --address=HOST:PORT"):
        ray_connection.connect(_Ray(error), "head:6379")


def test_no_cluster_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_runs(auto: str) -> str:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray_connection, "_found", nothing_runs)
    with pytest.raises(ConnectionError, match=r"at auto \(Could not find .*ray start --head"):
        ray_connection.connect(_Ray(AssertionError("not to be reached")), "auto")


def test_a_ray_of_ones_own_needs_the_main_thread() -> None:
    raised: list[BaseException] = []

    def connect() -> None:
        try:
            ray_connection.connect(_Ray(AssertionError("not to be reached")), None)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


@pytest.mark.parametrize(
    ("free", "bytes_used"), [(64 * 2**20, 80 * 2**20), (2 * 2**30, 2**30), (2**40, 2 * 2**30), (0, 80 * 2**20)]
)
def test_the_object_store_leaves_shared_memory_to_others(
    monkeypatch: pytest.MonkeyPatch, logged: list[str], free: int, bytes_used: int
) -> None:
    class Room:
        f_bavail, f_frsize = free // 4096, 4096

    monkeypatch.setattr(os, "statvfs", lambda place: Room)
    assert ray_connection.object_store_bytes() == bytes_used
    assert any("--shm-size" in line for line in logged) == (free < 80 * 2**20)


def test_workers_look_for_modules_where_the_learner_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """What stands before Python's own modules does so in a worker; all else comes last there, if it exists."""
    first, last = tmp_path / "first", tmp_path / "last"
    first.mkdir()
    last.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(first), *sys.path, str(last)])
    places = ray_connection.environment(gpu=False)["PYTHONPATH"].split(os.pathsep)
    assert places[:2] == [str(tmp_path), str(first)]
    assert str(last) not in places
    assert not any("site-packages" in place or place.endswith("lib-dynload") for place in places)
    told = ray_connection.path()
    monkeypatch.setattr(sys, "path", ["own", str(first)])
    ray_connection.extend_path([*told, str(tmp_path / "gone")])
    assert sys.path[:2] == ["own", str(first)]
    assert sys.path[-1] == str(last)
    assert len(set(sys.path)) == len(sys.path)


def test_workers_get_the_variables_that_concern_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET_TOKEN", "1234")
    without, with_gpu = ray_connection.environment(gpu=False), ray_connection.environment(gpu=True)
    assert without["OMP_NUM_THREADS"] == "1"
    assert without["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in with_gpu
    assert "SECRET_TOKEN" not in without
