"""What goes between workers and the learner, without either: order, windows, counts, marks, lives."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.distributed.batch_channel import BatchChannel, check_batch
from alf.distributed.experience_channel import MalformedAnswer
from alf.distributed.in_process_engine import InProcessEngine
from alf.distributed.member import GOOD_LIFE_SECS, Member
from alf.distributed.policy_channel import PolicyChannel, Published
from alf.distributed.run_marks import RunMarks
from alf.distributed.stream_channel import StreamChannel
from alf.drivers.queues import QueueClosed, QueueEmpty, SegmentQueue


def answer_of(first: int, count: int, threads: int = 2) -> list[tuple[int, list[np.ndarray]]]:
    """Segments `first` .. of a worker whose threads take turns."""
    return [(i % threads, [np.array([i])]) for i in range(first, first + count)]


def drain(channel: Any) -> list[tuple[int, int]]:
    """(thread, number) of all that can be fetched now."""
    found = []
    try:
        while True:
            segment = channel.fetch(0.0)
            found.append((segment.thread, int(segment.arrays[0][0])))
    except QueueEmpty:
        return found


class Workers:
    """Workers as a plain model: lists of what they have answered, and requests that are out."""

    def __init__(self, workers: int, in_flight: int) -> None:
        self.channel = StreamChannel(workers, 2, in_flight)
        self.out: list[tuple[int, int, int]] = []
        self.made = [0] * workers
        self.answers: list[dict[int, Any]] = [{} for _ in range(workers)]
        self.life = [0] * workers
        self.received: list[list[tuple[int, int]]] = [[] for _ in range(workers)]

    def ask(self, worker: int) -> None:
        for request in self.channel.due(worker):
            self.out.append((worker, self.life[worker], request.number))

    def answer(self, at: int, size: int, heard: bool) -> None:
        """The worker answers one of the requests; the learner hears of it, or has to ask again."""
        worker, life, number = self.out.pop(at % len(self.out))
        if life != self.life[worker]:
            return
        answers = self.answers[worker]
        if number not in answers:
            if number > len(answers):
                size = 0
            answer = answer_of(self.made[worker], size)
            self.made[worker] += size
            if size:
                answers[number] = answer
        else:
            answer = answers[number]
        if heard:
            self.channel.answered(worker, number, answer)
        else:
            self.channel.unanswered(worker, number)

    def lose(self, worker: int) -> None:
        self.channel.lost(worker)
        self.life[worker] += 1
        self.made[worker] = 1000 * self.life[worker]
        self.answers[worker] = {}

    def fetch(self) -> None:
        for thread, number in drain(self.channel):
            self.received[thread // 2].append((thread % 2, number))


@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_segments_arrive_once_and_in_order_whatever_is_lost(data: st.DataObject, workers: int, in_flight: int) -> None:
    """Answers in any order, of any size, lost and asked for again, and workers that begin anew, against a plain model."""
    model = Workers(workers, in_flight)
    for _ in range(data.draw(st.integers(1, 60))):
        worker = data.draw(st.integers(0, workers - 1))
        step = data.draw(st.sampled_from(["ask", "answer", "answer", "lost answer", "fetch", "lose"]))
        if step == "ask":
            model.ask(worker)
        elif step == "lose":
            model.lose(worker)
        elif step == "fetch":
            model.fetch()
        elif model.out:
            model.answer(data.draw(st.integers(0, 20)), data.draw(st.integers(0, 3)), step == "answer")
        assert len(set(model.out)) == len(model.out), "a request is out twice"
        for w in range(workers):
            assert sum(life == model.life[w] for x, life, _ in model.out if x == w) <= in_flight
    model.fetch()
    for received in model.received:
        for life, segments in itertools.groupby(received, lambda x: x[1] // 1000):
            numbers = [number for _, number in segments]
            assert numbers == list(range(1000 * life, 1000 * life + len(numbers))), "lost, doubled or out of order"
        lives = [number // 1000 for _, number in received]
        assert lives == sorted(lives)
        assert all(thread == number % 2 for thread, number in received)


def test_who_waits_for_a_segment_is_woken_by_it() -> None:
    channel, waiting, found = StreamChannel(1, 2, 1), threading.Event(), []
    wait_for = channel._changed.wait_for

    def told(*args: Any) -> Any:
        waiting.set()
        return wait_for(*args)

    channel._changed.wait_for = told
    thread = threading.Thread(target=lambda: found.append(channel.fetch(600.0)))
    thread.start()
    assert waiting.wait(10)
    channel.due(0)
    channel.answered(0, 0, answer_of(0, 1))
    thread.join(10)
    channel.close()
    assert [segment.thread for segment in found] == [0]


def test_a_slow_learner_holds_workers_up() -> None:
    channel = StreamChannel(1, 2, 2)
    assert [r.number for r in channel.due(0)] == [0, 1]
    channel.answered(0, 0, answer_of(0, 2))
    channel.answered(0, 1, answer_of(2, 2))
    assert channel.due(0) == []
    channel.fetch(0.0)
    assert channel.due(0) == [], "an answer is in flight until all of it is fetched"
    channel.fetch(0.0)
    assert [r.number for r in channel.due(0)] == [2]
    assert [r.segments for r in channel.due(0)] == []


def test_what_a_lost_worker_takes_along_is_counted() -> None:
    channel = StreamChannel(2, 2, 3)
    channel.due(0)
    channel.answered(0, 0, answer_of(0, 1))
    channel.answered(0, 2, answer_of(5, 4))
    channel.lost(0)
    assert channel.lost_requests.tolist() == [1, 0]
    assert channel.counts["cut_segments"] == 4
    assert drain(channel) == [(0, 0)]
    assert [r.number for r in channel.due(0)] == [0, 1, 2]


def test_answers_that_come_twice_are_dropped_and_counted() -> None:
    channel = StreamChannel(1, 2, 2)
    channel.due(0)
    for _ in range(3):
        channel.answered(0, 0, answer_of(0, 2))
    assert channel.counts["repeated_answers"] == 2
    assert drain(channel) == [(0, 0), (1, 1)]
    assert channel.fetched.tolist() == [2]


@pytest.mark.parametrize(
    "answer", [None, 5, "ab", [1], [(0,)], [(2, [np.zeros(1)])], [(-1, [np.zeros(1)])], [(0, [1])], [("0", [])]]
)
def test_malformed_answers_are_refused(answer: Any) -> None:
    channel = StreamChannel(1, 2, 1)
    channel.due(0)
    with pytest.raises(MalformedAnswer, match="Worker 0 has sent something else than segments of its 2"):
        channel.answered(0, 0, answer)
    assert drain(channel) == []
    assert channel.counts["malformed_answers"] == 1


def test_purging_drops_what_is_under_way_and_counts_it() -> None:
    channel = StreamChannel(2, 2, 2)
    for worker in (0, 1):
        channel.due(worker)
    channel.answered(0, 0, answer_of(0, 2))
    channel.answered(1, 1, answer_of(3, 2))
    channel.fetch(0.0)
    assert channel.purge() == 1
    channel.answered(0, 1, answer_of(2, 1))
    channel.answered(1, 0, answer_of(0, 3))
    assert drain(channel) == []
    assert channel.counts["purged_segments"] == 1 + 1 + 3 + 2
    assert [r.number for worker in (0, 1) for r in channel.due(worker)] == [2, 3, 2, 3]
    channel.answered(0, 2, answer_of(3, 1))
    assert drain(channel) == [(1, 3)]


def test_every_subscriber_gets_every_segment_and_holds_the_learner_up() -> None:
    channel = StreamChannel(1, 2, 4)
    wide, narrow, closed = SegmentQueue(10, "wide"), SegmentQueue(1, "narrow"), SegmentQueue(1, "closed")
    for queue in (wide, narrow, closed):
        channel.subscribe(queue)
    closed.close()
    channel.due(0)
    channel.answered(0, 0, answer_of(0, 3))
    assert channel.fetch(0.0).arrays[0] == 0
    for _ in range(3):
        with pytest.raises(QueueEmpty, match="waits for a subscriber: Queue narrow is full"):
            channel.fetch(0.0)
    assert narrow.dequeue(0).arrays[0] == 0
    assert channel.fetch(0.0).arrays[0] == 1
    narrow.close()
    assert channel.fetch(0.0).arrays[0] == 2
    assert [int(s.arrays[0][0]) for s in wide.dequeue_many(3, 0)] == [0, 1, 2]
    assert wide.is_empty()


def test_closing_wakes_the_learner_with_the_first_error() -> None:
    channel = StreamChannel(1, 2, 1)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            channel.fetch(30.0)
        except Exception as e:
            raised.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    channel.close(TimeoutError("environment 0 hangs"))
    channel.close(ValueError("later"))
    thread.join(10)
    # A TimeoutError would say that there is no segment yet.
    assert [type(e) for e in raised] == [RuntimeError]
    with pytest.raises(RuntimeError, match="environment 0 hangs"):
        channel.fetch(0.0)
    other = StreamChannel(1, 2, 1)
    other.close()
    with pytest.raises(QueueClosed):
        other.fetch(0.0)


def test_a_window_needs_a_request() -> None:
    with pytest.raises(ValueError, match="requests_in_flight must be at least 1, got 0"):
        StreamChannel(1, 1, 0)


# ---- batches ----


def policy(version: int = 0) -> Published:
    return Published(version, [], False, version)


def test_batches_come_in_rounds_over_all_workers() -> None:
    channel = BatchChannel(2, 2)
    assert channel.due(0) == []
    channel.request(8, policy(3))
    channel.request(4, policy(4))
    (first,) = channel.due(0)
    assert (first.number, first.segments, first.policy.version) == (0, 4, 3)
    assert channel.due(0) == []
    channel.due(1)
    channel.answered(1, 0, answer_of(10, 4))
    assert drain(channel) == [], "a batch is delivered as a whole"
    channel.answered(0, 0, answer_of(0, 4))
    assert drain(channel) == [(0, 0), (1, 1), (2, 10), (3, 11), (0, 2), (1, 3), (2, 12), (3, 13)]
    (second,) = channel.due(1)
    assert (second.number, second.segments, second.policy.version) == (1, 2, 4)
    assert channel.purge() == 0


def test_the_part_of_a_lost_worker_is_asked_anew() -> None:
    channel = BatchChannel(2, 1)
    channel.request(2, policy())
    for worker in (0, 1):
        channel.due(worker)
    channel.answered(0, 0, answer_of(0, 1, threads=1))
    channel.answered(0, 0, answer_of(0, 1, threads=1))
    assert channel.counts["repeated_answers"] == 1
    channel.unanswered(1, 0)
    channel.lost(0)
    channel.lost(1)
    channel.lost(1)
    assert channel.lost_requests.tolist() == [0, 1], "what has arrived is not lost, nor what was not asked for"
    assert channel.due(0) == []
    (again,) = channel.due(1)
    assert again.number == 0
    channel.unanswered(1, 0)
    assert [r.number for r in channel.due(1)] == [0]
    channel.answered(1, 0, answer_of(7, 1, threads=1))
    assert drain(channel) == [(0, 0), (1, 7)]
    channel.unanswered(1, 0)
    channel.request(2, policy())
    assert [channel.due(w)[0].number for w in (0, 1)] == [0, 1]


def test_a_batch_must_be_what_was_asked_for() -> None:
    channel = BatchChannel(1, 2)
    channel.request(4, policy())
    channel.due(0)
    with pytest.raises(MalformedAnswer, match=r"has sent 3 segments of threads \[0, 1, 0\].*which is 4"):
        channel.answered(0, 0, answer_of(0, 3))
    with pytest.raises(MalformedAnswer, match="in turn"):
        channel.answered(0, 0, answer_of(1, 4))
    for count in (0, 3, 5):
        with pytest.raises(ValueError, match=rf"A batch of {count} segments .*learn_queue_cap a multiple of 2"):
            channel.request(count, policy())
    check_batch(12, 3, 2)


# ---- policies ----


def test_the_newest_weights_win_and_are_stored_once() -> None:
    shared: list[Any] = []

    class Store(InProcessEngine):
        def share(self, value: Any) -> Any:
            shared.append(value)
            return super().share(value)

    engine, channel = Store(), PolicyChannel()
    with pytest.raises(RuntimeError, match="No weights are published yet"):
        channel.latest()
    for version in range(4):
        channel.publish(version, [np.full(2, version)], False)
    sent = [channel.due(worker) for worker in range(3)]
    for published in sent:
        assert published is not None
        version, at_random, ref = published.arguments(engine)
        assert (version, at_random, ref.value[0].tolist()) == (3, False, [3, 3])
    assert len(shared) == 1, "one object for all workers"
    channel.publish(4, [np.full(2, 4)], False)
    channel.publish(5, [np.full(2, 5)], False)
    assert channel.due(0) is None, "one load at a time"
    channel.arrived(0)
    newest = channel.due(0)
    assert newest is not None
    assert newest.version == 5
    channel.failed(0)
    assert channel.due(0) is newest
    channel.arrived(0)
    assert channel.due(0) is None
    channel.publish(5, [], True)
    random = channel.due(0)
    assert random is not None
    assert random.at_random, "of two of one version the later one counts"
    channel.forget(0)
    assert channel.due(0) is random


def test_weights_that_were_sent_are_held_by_the_engine_only() -> None:
    class Remote(InProcessEngine):
        def share(self, value: Any) -> Any:
            return "a place in its store"

    channel, weights = PolicyChannel(), [np.zeros(2)]
    seen = weakref.ref(weights[0])
    channel.publish(0, weights, False)
    del weights
    assert channel.latest().arguments(Remote()) == (0, False, "a place in its store")
    gc.collect()
    assert seen() is None


def test_versions_only_grow() -> None:
    channel = PolicyChannel()
    channel.publish(7, [], False)
    with pytest.raises(ValueError, match="Version 6 is older than the published 7: versions only grow"):
        channel.publish(6, [], False)


# ---- marks ----


def test_marks_wake_those_who_wait() -> None:
    marks = RunMarks()
    with pytest.raises(TimeoutError, match=r"Worker 3 has waited 0.01 s for a learner"):
        marks.wait_ready(0.01, "Worker 3")
    woken = threading.Event()

    def wait() -> None:
        marks.wait_ready(30, "Worker 3")
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    marks.signal_ready()
    assert woken.wait(10)
    thread.join()
    assert marks.ready
    assert marks.finished is None
    marks.signal_finished("all is learned")
    marks.signal_finished("and more")
    assert marks.finished == "all is learned"
    with pytest.raises(RuntimeError, match="Worker 3 is of no use any more: all is learned"):
        marks.wait_ready(0, "Worker 3")


def test_the_end_of_a_run_wakes_those_who_wait_for_its_beginning() -> None:
    marks, waiting, raised = RunMarks(), threading.Event(), []
    wait_for = marks._changed.wait_for

    def told(*args: Any) -> Any:
        waiting.set()
        return wait_for(*args)

    def wait() -> None:
        try:
            marks.wait_ready(600.0, "Worker 3")
        except RuntimeError as e:
            raised.append(str(e))

    marks._changed.wait_for = told
    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(10)
    marks.signal_finished("it was stopped")
    thread.join(10)
    marks.signal_ready()
    assert raised == ["Worker 3 is of no use any more: it was stopped."]


# ---- lives ----


def beat(steps: int, held: float = 0.0, **facts: Any) -> dict[str, Any]:
    timings = {"training": 0.0, "environment": 1.0, "inference": 2.0, "waiting_for_learner": held, "threads": 2}
    return {"pid": 1, "host": "here", "version": 3, "steps": steps, "timings": timings, **facts}


def test_pauses_double_up_to_a_limit_and_are_forgiven_after_a_good_life() -> None:
    member, now = Member(0, 2, 0.0), 0.0
    for pause in (1, 2, 4, 8, 16, 30, 30, 30):
        member.begin(object(), now)
        member.lose("gone", now)
        assert 0.8 * pause <= member.restart_at - now <= 1.2 * pause
        now = member.restart_at
    member.begin(object(), now)
    member.lose("gone", now + GOOD_LIFE_SECS + 1)
    assert member.restart_at - now - GOOD_LIFE_SECS - 1 <= 1.2
    assert member.restarts == 9
    pauses = {Member(i, 2, 0.0)._rng.uniform() for i in range(10)}
    assert len(pauses) == 10, "workers do not come back all at once"


def test_the_same_error_is_counted_whatever_its_numbers() -> None:
    member = Member(0, 2, 0.0)
    errors = [ValueError("no map at 0x7f1e after 12 s"), ValueError("no map at 0x8f00 after 9 s"), KeyError("map")]
    assert [member.failed(e, 1.0) for e in [*errors, errors[0], errors[1]]] == [1, 2, 1, 1, 2]
    assert member.failed(errors[0], GOOD_LIFE_SECS + 1) == 1


def test_what_a_worker_tells_adds_up_over_its_lives() -> None:
    member = Member(4, 2, 0.0)
    assert not member.alive
    member.begin("handle", 1.0)
    member.up({"pid": 9, "host": "there", "threads": 2}, 2.0)
    member.heard(beat(100, held=1.0), 4.0)
    member.heard(beat(400, held=3.0), 8.0)
    assert member.steps_per_sec == 75.0
    facts = member.facts(10.0)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["waits_for_learner"] == 0.25
    assert (facts["state"], facts["host"], facts["policy_version"], facts["steps"]) == ("running", "here", 3, 400)
    assert facts["last_heartbeat_secs"] == 2.0
    assert "worker 4 is running, last heard of 2 s ago" in member.describe(10.0)
    assert [member.doubt(*lost) for lost in (("take", 9.0), ("take", 9.5), ("load", 10.0))] == [0.0, 0.5, 0.0]
    member.answered("take")
    assert [member.doubt(*lost) for lost in (("take", 11.0), ("load", 11.0))] == [0.0, 1.0]
    assert member.alive
    assert member.state == "unreachable"
    member.lose("killed", 12.0)
    facts = member.facts(12.0)
    assert (facts["state"], facts["steps_per_sec"], facts["waits_for_learner"]) == ("waiting to restart", 0.0, 0.0)
    assert "worker 4 restarts in 0 s after: killed" in member.describe(99.0)
    assert "worker 4 restarts in 1 s after: killed" in member.describe(12.0)
    member.begin("handle", 14.0)
    assert member.doubt("load", 14.0) == 0.0
    member.begin("handle", 14.0)
    assert member.state == "starting"
    assert "starting for 1 s" in member.describe(15.0)
    member.up({"pid": 9, "host": "there", "threads": 2}, 15.0)
    member.heard(beat(50, held=5.0), 16.0)
    assert member.steps == 450
    assert member.timings.waiting_for_learner == 8.0
    assert member.timings.threads == 2
    member.stop(17.0)
    assert (member.state, member.steps, member.worker) == ("stopped", 450, None)
