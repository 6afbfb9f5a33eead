"""The worker's side: numbered requests, weights, signs of life."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from alf.distributed.worker import RolloutWorker
from tests.distributed.scripted import MAKER, RUNS, B, Boom, Run, T

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

THREADS = 2


@pytest.fixture
def run() -> Iterator[Run]:
    RUNS[0] = Run(THREADS)
    yield RUNS[0]
    RUNS.pop(0).let_go.set()


def make_worker(begin: bool = True, number: int = 1, life: int = 0, **kwargs: Any) -> RolloutWorker:
    worker = RolloutWorker(number, life, MAKER, {"run": 0}, **kwargs)
    if begin:
        worker.begin(0, False, [np.zeros(1)])
    return worker


def serials(answer: list[Any]) -> list[int]:
    return [int(arrays[1][3]) * THREADS + thread for thread, arrays in answer]


def test_a_worker_begins_with_weights_and_says_where_it_is(run: Run) -> None:
    worker = make_worker(begin=False)
    facts = worker.begin(3, True, [np.ones(2)])
    assert facts["threads"] == THREADS
    assert facts["pid"] > 0
    assert facts["host"]
    assert worker.begin(4, False, [np.ones(2)]) == facts, "asked again it only answers"
    assert run.drivers[1, 0].loaded == [(3, True)]
    worker.end()
    worker.end()
    assert run.drivers[1, 0].stopped


def test_a_request_gets_at_least_one_segment_and_at_most_those_that_are_there(run: Run) -> None:
    run.scripts[1] = {"empty_at": 3}
    worker = make_worker()
    assert serials(worker.take(0, 2, 0.01)) == [0, 1]
    assert serials(worker.take(1, 9, 0.01)) == [2]
    assert worker.take(2, 9, 0.01) == []
    run.scripts[1] = {}
    assert serials(worker.take(2, 1, 0.01)) == [3]


def test_the_same_request_gets_the_same_answer(run: Run) -> None:
    worker = make_worker(requests_in_flight=2)
    answers = [worker.take(number, 2, 0.01) for number in range(3)]
    for number in (2, 1, 2):
        again = worker.take(number, 5, 0.01)
        assert serials(again) == serials(answers[number])
        assert again[0][1][1] is answers[number][0][1][1]
    assert run.drivers[1, 0].taken == 6
    with pytest.raises(
        ValueError, match="has forgotten its answer to request 0: it keeps 2, and request 3 is the next"
    ):
        worker.take(0, 2, 0.01)


def test_a_request_waits_for_those_before_it(run: Run) -> None:
    worker = make_worker()
    assert worker.take(1, 2, 0.01) == []
    assert worker.take(4, 2, 0.01) == []
    assert serials(worker.take(0, 2, 0.01)) == [0, 1]
    assert serials(worker.take(1, 2, 0.01)) == [2, 3]


def test_two_requests_at_a_time_are_served_one_after_the_other(run: Run) -> None:
    run.scripts[1] = {"hang_at": 0}
    worker = make_worker()
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(worker.take(0, 1, 0.01)))
    thread.start()
    try:
        # Empty either way: the first holds the place, or has not come yet.
        assert worker.take(1, 1, 0.01) == []
        assert worker.beat()["segments"] == 0, "signs of life do not wait"
    finally:
        run.let_go.set()
        thread.join(10)
    assert first == [[]]


def test_a_batch_is_collected_by_its_weights(run: Run) -> None:
    worker = make_worker()
    answer = worker.collect(0, 4, 5, True, [np.ones(1)])
    assert serials(answer) == [0, 1, 2, 3]
    assert {(int(a[1][4]), int(a[1][5])) for _, a in answer} == {(5, 1)}
    assert serials(worker.collect(0, 4, 5, True, [np.ones(1)])) == [0, 1, 2, 3]
    driver = run.drivers[1, 0]
    assert driver.asked == [4]
    assert driver.taken == 4


def test_older_weights_that_come_late_are_ignored(run: Run) -> None:
    worker = make_worker()
    for version in (2, 1, 2, 5, 4):
        worker.load(version, False, [np.ones(1)])
    assert [version for version, _ in run.drivers[1, 0].loaded] == [0, 2, 2, 5]
    assert worker.beat()["version"] == 5


def test_a_sign_of_life_tells_what_was_collected(run: Run) -> None:
    worker = make_worker(begin=False)
    assert worker.beat()["segments"] == 0
    worker.begin(0, False, [np.zeros(1)])
    worker.take(0, 2, 0.01)
    worker.take(1, 1, 0.01)
    worker.take(1, 1, 0.01)
    facts = worker.beat()
    assert (facts["steps"], facts["segments"]) == (3 * T * B, 3)
    assert facts["timings"]["waiting_for_learner"] == 4.0
    assert facts["stats"] == {"env_steps": 3.0}


def test_nothing_is_taken_before_the_learner_listens(run: Run) -> None:
    worker = make_worker(begin=False)
    with pytest.raises(TimeoutError, match=r"Worker 1 \(life 0\) has waited 0.01 s for a learner"):
        worker.take(0, 1, 0.01)
    with pytest.raises(RuntimeError, match="has not begun"):
        worker.load(0, False, [])
    worker.end()
    with pytest.raises(RuntimeError, match="is of no use any more"):
        worker.take(0, 1, 0.01)


def test_what_ends_the_driver_reaches_the_learner(run: Run) -> None:
    run.scripts[1] = {"fail_at": 1}
    worker = make_worker()
    assert serials(worker.take(0, 2, 0.01)) == [0], "not without what was collected before"
    for _ in range(2):
        with pytest.raises(Boom, match="boom after 1"):
            worker.take(1, 2, 0.01)
    worker.end()


def test_a_worker_that_is_ended_while_it_begins_leaves_nothing(run: Run) -> None:
    run.scripts[1] = {"maker": "hangs"}
    worker = make_worker(begin=False)
    raised: list[BaseException] = []

    def begin() -> None:
        try:
            worker.begin(0, False, [np.zeros(1)])
        except RuntimeError as e:
            raised.append(e)

    thread = threading.Thread(target=begin)
    thread.start()
    worker.end()
    run.let_go.set()
    thread.join(10)
    assert "was ended while it began" in str(raised[0])
    assert run.drivers[1, 0].stopped


def test_a_maker_that_fails_is_heard(run: Run) -> None:
    run.scripts[1] = {"maker": "fails"}
    with pytest.raises(Boom, match="no environment"):
        make_worker()
    worker = RolloutWorker(0, 0, "tests.distributed.scripted:nothing", {})
    with pytest.raises(ImportError, match=r"tests.distributed.scripted:nothing.*cannot be imported"):
        worker.begin(0, False, [])
