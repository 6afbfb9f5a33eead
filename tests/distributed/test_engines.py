"""What every engine does, whatever it is made of."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from alf.distributed.engine import Engine, WorkerLost, resolve
from alf.distributed.in_process_engine import InProcessEngine
from alf.distributed.ray_engine import RayEngine
from tests.distributed import puppet
from tests.distributed.puppet import OddError, PuppetError

PUPPET = "tests.distributed.puppet:Puppet"
# A bound for what should take no time, or as long as a process takes to start on a busy machine.
PATIENCE_SECS = 240.0

# Processes of TensorFlow start here, several at a time.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=["in_process", "ray"])
def make_engine(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    if request.param == "in_process":
        return InProcessEngine
    request.getfixturevalue("ray_session")
    return RayEngine


@pytest.fixture(scope="module")
def engine(make_engine: Callable[[], Engine]) -> Iterator[Engine]:
    engine = make_engine()
    yield engine
    engine.stop()


def start(engine: Engine, number: int = 0, life: int = 0, make: str = PUPPET, **settings: Any) -> Any:
    return engine.start(number, life, make, settings, num_cpus=1.0, resources={})


@pytest.fixture(scope="module")
def worker(engine: Engine) -> Any:
    """One for all tests that do it no harm."""
    return start(engine, number=3, life=1, offset=40)


def answer(engine: Engine, worker: Any, method: str, *args: Any) -> Any:
    return finished(engine, engine.call(worker, method, *args))


def finished(engine: Engine, call: Any) -> Any:
    assert engine.wait([call], PATIENCE_SECS) == [call]
    return engine.result(call)


def whole_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_worker_is_made_of_its_number_life_and_settings(engine: Engine, worker: Any) -> None:
    facts = answer(engine, worker, "facts")
    assert (facts["number"], facts["life"], facts["offset"]) == (3, 1, 40)


def test_calls_of_a_line_run_in_the_order_in_which_they_were_sent(engine: Engine, worker: Any) -> None:
    calls = [engine.call(worker, "say", word) for word in range(20)]
    assert finished(engine, calls[-1]) == list(range(20))
    assert engine.wait(calls, PATIENCE_SECS) == calls
    assert [len(engine.result(call)) for call in calls] == list(range(1, 21))


def test_control_calls_are_answered_while_others_wait(engine: Engine, worker: Any) -> None:
    answer(engine, worker, "close")
    taking = engine.call(worker, "take")
    assert answer(engine, worker, "beat"), "nobody was in take"
    assert engine.wait([taking], 0) == []
    with pytest.raises(ValueError, match="not done"):
        engine.result(taking)
    assert answer(engine, worker, "load", 7) == (7,)
    assert finished(engine, taking) == "loaded"


def test_waiting_returns_what_is_done_or_nothing_in_time(engine: Engine, worker: Any) -> None:
    answer(engine, worker, "close")
    taking, later = engine.call(worker, "take"), engine.call(worker, "facts")
    assert engine.wait([taking, later], 0.3) == []
    assert engine.wait([], PATIENCE_SECS) == []
    asked = engine.call(worker, "load")
    assert finished(engine, asked) == ()
    assert finished(engine, later)
    assert engine.wait([later, taking, asked], PATIENCE_SECS) == [later, taking, asked]


def test_plain_data_and_arrays_cross_and_come_back(engine: Engine, worker: Any) -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros([0, 4], np.int64), np.array(True)]
    large = np.random.default_rng(0).standard_normal(300_000)
    sent = ("text", 1, 2.5, None, True, {"a": [1, (2, 3)]})
    *plain, back, large_back = answer(engine, worker, "give_back", *sent, arrays, large)
    assert tuple(plain) == sent
    for array, twin in zip(arrays, back, strict=True):
        assert array.dtype == twin.dtype
        np.testing.assert_array_equal(array, twin)
    np.testing.assert_array_equal(large, large_back)


def test_a_shared_value_arrives_as_itself_and_lies_in_one_place(engine: Engine, worker: Any) -> None:
    value = np.arange(400_000, dtype=np.float64)
    ref = engine.share(value)
    looks = [answer(engine, worker, "look_at", ref) for _ in range(3)]
    assert {total for _, _, total in looks} == {float(value.sum())}
    assert len({place for _, place, _ in looks}) == 1
    mixed = answer(engine, worker, "give_back", 1, ref, engine.share("text"))
    assert mixed[0] == 1
    assert mixed[2] == "text"
    np.testing.assert_array_equal(mixed[1], value)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("plain", PuppetError, "('two', 2)"),
        ("key", KeyError, "'no such key'"),
        ("exit", RuntimeError, "SystemExit: 3"),
    ],
)
def test_errors_of_user_code_arrive_with_their_type_and_traceback(
    engine: Engine, worker: Any, how: str, kind: type[Exception], text: str
) -> None:
    call = engine.call(worker, "fail", how)
    assert engine.wait([call], PATIENCE_SECS) == [call]
    with pytest.raises(kind) as raised:
        engine.result(call)
    assert type(raised.value) is kind
    assert str(raised.value) == text
    assert "in fail" in whole_text(raised.value)
    assert "worker 3 (life 1)" in whole_text(raised.value)
    assert answer(engine, worker, "facts"), "the worker lives on"


@pytest.mark.parametrize(("how", "kind"), [("odd", OddError), ("array", ValueError)])
def test_errors_that_cannot_be_rebuilt_keep_their_text(
    engine: Engine, worker: Any, how: str, kind: type[Exception]
) -> None:
    with pytest.raises((kind, RuntimeError)) as raised:
        answer(engine, worker, "fail", how)
    assert type(raised.value) is kind or kind.__name__ in str(raised.value)
    assert "in fail" in whole_text(raised.value)


def test_an_unknown_method_is_an_error_of_the_call(engine: Engine, worker: Any) -> None:
    with pytest.raises(AttributeError, match="no_such_method"):
        answer(engine, worker, "no_such_method")


def test_a_worker_that_cannot_be_made_says_why(engine: Engine) -> None:
    worker = start(engine, number=5, unmakable=True)
    for method in ("facts", "beat"):
        with pytest.raises(PuppetError) as raised:
            answer(engine, worker, method)
        assert raised.value.args == ("cannot be made", 5)
        assert "worker 5" in whole_text(raised.value)


@pytest.mark.parametrize("name", ["no colon", "module:", ":attribute", ""])
def test_names_of_another_form_are_refused(engine: Engine, name: str) -> None:
    with pytest.raises(ValueError, match="write 'module:attribute'"):
        start(engine, make=name)


@pytest.mark.parametrize("name", ["tests.distributed.puppet:NoSuchThing", "no_such_module:Thing"])
def test_a_class_that_cannot_be_imported_is_named(name: str) -> None:
    engine = InProcessEngine()
    worker = start(engine, make=name)
    for method in ("facts", "beat"):
        with pytest.raises(ImportError, match=rf"'{name}' cannot be imported .*'module:attribute'"):
            answer(engine, worker, method)
    engine.stop()


def test_a_class_may_lie_within_another() -> None:
    assert resolve("tests.distributed.puppet:Puppet.say") is puppet.Puppet.say


def test_a_killed_worker_is_lost_at_once(engine: Engine) -> None:
    puppet.LET_GO.clear()
    victim = start(engine, number=8)
    hanging, waiting = engine.call(victim, "hang"), engine.call(victim, "facts")
    assert answer(engine, victim, "beat")
    engine.kill(victim)
    assert engine.wait([hanging, waiting], PATIENCE_SECS) == [hanging, waiting]
    later = engine.call(victim, "facts")
    assert engine.wait([later], 0) == [later]
    for call in (hanging, waiting, later):
        with pytest.raises(WorkerLost, match="worker 8"):
            engine.result(call)
    engine.kill(victim)
    puppet.LET_GO.set()


def test_an_engine_stops_with_calls_under_way(make_engine: Callable[[], Engine]) -> None:
    threads = set(threading.enumerate())
    engine = make_engine()
    worker = start(engine, number=2)
    pid = answer(engine, worker, "facts")["pid"]
    process = psutil.Process(pid)
    taking = engine.call(worker, "take")
    assert answer(engine, worker, "beat")
    outcome: list[Any] = []
    waiter = threading.Thread(target=lambda: outcome.append(engine.wait([taking], PATIENCE_SECS)))
    waiter.start()
    stoppers = [threading.Thread(target=engine.stop) for _ in range(2)]
    for thread in stoppers:
        thread.start()
    for thread in [*stoppers, waiter]:
        thread.join(PATIENCE_SECS)
        assert not thread.is_alive()
    engine.stop()
    assert outcome == [[taking]]
    for call in (taking, engine.call(worker, "facts")):
        assert engine.wait([call], 0) == [call]
        with pytest.raises(WorkerLost):
            engine.result(call)
    with pytest.raises(RuntimeError, match="stopped"):
        start(engine)
    with pytest.raises(RuntimeError, match="stopped"):
        engine.share(1)
    engine.kill(worker)
    assert engine.describe()
    if process != psutil.Process():
        process.wait(PATIENCE_SECS)
    assert [t.name for t in set(threading.enumerate()) - threads if t.is_alive() and t.name.startswith("alf")] == []


def test_engines_say_where_workers_run(engine: Engine) -> None:
    assert engine.describe().startswith(("threads of this process", "Ray on this machine, which has"))


def test_a_ray_of_the_program_is_used_and_left_running(ray_session: None) -> None:
    import ray

    engine = RayEngine()
    engine.stop()
    assert ray.is_initialized()


class TestThreads:
    """What only threads of this process can show."""

    def test_a_thread_that_hangs_is_left_behind(self, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("alf.distributed.in_process_engine._STOP_TIMEOUT_SECS", 0.2)
        puppet.LET_GO.clear()
        engine = InProcessEngine()
        worker = start(engine, number=4)
        hanging = engine.call(worker, "hang")
        assert answer(engine, worker, "beat")
        begun = time.monotonic()
        engine.stop()
        assert time.monotonic() - begun < PATIENCE_SECS
        with pytest.raises(WorkerLost):
            engine.result(hanging)
        assert any("left behind" in line and "worker 4" in line for line in logged)
        puppet.LET_GO.set()
        for thread in worker.threads:
            thread.join(PATIENCE_SECS)
            assert not thread.is_alive()

    def test_what_a_killed_worker_had_not_begun_is_not_done(self) -> None:
        puppet.LET_GO.clear()
        engine = InProcessEngine()
        worker = start(engine, number=6)
        engine.call(worker, "hang")
        engine.call(worker, "say", 1)
        assert answer(engine, worker, "beat")
        engine.kill(worker)
        puppet.LET_GO.set()
        for thread in worker.threads:
            thread.join(PATIENCE_SECS)
            assert not thread.is_alive()
        assert worker._object._said == []
        engine.stop()

    def test_workers_that_are_gone_are_forgotten(self) -> None:
        engine = InProcessEngine()
        worker = start(engine, number=6)
        engine.kill(worker)
        for thread in worker.threads:
            thread.join(PATIENCE_SECS)
        seen = weakref.ref(worker)
        del worker, thread
        start(engine, number=6, life=1)
        gc.collect()
        assert seen() is None
        engine.stop()

    def test_the_object_of_a_killed_worker_is_ended(self) -> None:
        engine = InProcessEngine()
        worker = start(engine, number=77)
        taking = engine.call(worker, "take")
        assert answer(engine, worker, "beat")
        engine.kill(worker)
        with pytest.raises(WorkerLost):
            engine.result(taking)
        for thread in worker.threads:  # `take` returns because `end` was called
            thread.join(PATIENCE_SECS)
            assert not thread.is_alive()
        assert 77 in puppet.ENDED
        engine.stop()
