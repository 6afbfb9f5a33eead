"""The queues: round trips, waiting, closing, counting; and the order of the paced modes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.drivers.coordinator import Coordinator
from alf.drivers.queues import NestFIFOQueue, QueueClosed, QueueEmpty, SegmentQueue, TFQueues
from alf.environments.testing import CountingEnvironment
from tests.algorithms.networks import specs_of


def _element(i: int) -> dict:
    return {"a": tf.constant([float(i), 2.0]), "nothing": (), "b": (tf.constant(i),)}


def test_nests_come_out_as_they_went_in() -> None:
    queue = NestFIFOQueue(3, _element(0))
    for i in range(3):
        queue.enqueue(_element(i))
    assert queue.size() == 3
    first = queue.dequeue()
    tf.nest.assert_same_structure(first, _element(0))
    np.testing.assert_array_equal(first["a"], [0.0, 2.0])
    queue.enqueue(_element(3))
    many = queue.dequeue_all()
    np.testing.assert_array_equal(many["b"][0], [1, 2, 3])
    assert many["a"].shape == [3, 2]


def test_a_nest_of_one_leaf_can_be_taken_many_at_once() -> None:
    queue = NestFIFOQueue(2, tf.TensorSpec([3], tf.float32))
    for _ in range(2):
        queue.enqueue(tf.ones([3]))
    assert queue.dequeue_many(2).shape == [2, 3]


def test_wrong_elements_are_refused_at_once() -> None:
    queue = NestFIFOQueue(1, _element(0))
    with pytest.raises(ValueError, match="does not fit"):
        queue.enqueue({**_element(0), "a": tf.zeros([5])})
    with pytest.raises((ValueError, TypeError)):
        queue.enqueue({"a": tf.zeros([2])})
    with pytest.raises(ValueError, match="capacity of at least 1, got 0"):
        NestFIFOQueue(0, _element(0))


def test_closing_a_tf_queue_wakes_both_sides_and_can_be_repeated() -> None:
    full, empty = NestFIFOQueue(1, tf.TensorSpec([], tf.int32)), NestFIFOQueue(1, tf.TensorSpec([], tf.int32))
    full.enqueue(tf.constant(1))
    errors: list[BaseException] = []

    def wait(call) -> None:
        try:
            call()
        except tf.errors.OpError as e:
            errors.append(e)

    threads = [
        threading.Thread(target=wait, args=(lambda: full.enqueue(tf.constant(2)),)),
        threading.Thread(target=wait, args=(empty.dequeue,)),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for queue in (full, empty, full, empty):
        queue.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert {type(e) for e in errors} == {tf.errors.CancelledError, tf.errors.OutOfRangeError}
    assert full.is_closed()
    assert int(full.dequeue()) == 1


@given(st.lists(st.one_of(st.integers(1, 4), st.just(0)), max_size=30))
def test_segment_queue_against_a_plain_list(actions: list[int]) -> None:
    """0 puts an item, n takes n; a full or too empty queue times out; sizes and counters are exact at every moment."""
    queue, model, put, taken = SegmentQueue(4), [], 0, 0
    for action in actions:
        if action == 0:
            if len(model) == 4:
                with pytest.raises(TimeoutError, match=r"is full \(4 items\)"):
                    queue.enqueue(put, timeout=0.001)
            else:
                queue.enqueue(put)
                model.append(put)
                put += 1
        elif len(model) < action:
            with pytest.raises(TimeoutError, match=f"has {len(model)} of {action} items"):
                queue.dequeue_many(action, timeout=0.001)
        else:
            assert queue.dequeue_many(action) == model[:action]
            del model[:action]
            taken += action
        assert queue.size() == len(model)
        assert (queue.entered, queue.left) == (put, taken)


def test_a_closed_segment_queue_gives_what_it_has_and_wakes_every_waiter() -> None:
    queue = SegmentQueue(1, "mine")
    queue.enqueue("x")
    woken: list[str] = []

    def put() -> None:
        with pytest.raises(QueueClosed):
            queue.enqueue("y")
        woken.append("put")

    thread = threading.Thread(target=put)
    thread.start()
    time.sleep(0.05)
    queue.close()
    queue.close()
    thread.join(5)
    assert woken == ["put"]
    assert queue.is_closed()
    assert queue.dequeue() == "x"
    with pytest.raises(QueueClosed):
        queue.dequeue()
    with pytest.raises(ValueError, match="will never be there"):
        queue.dequeue_many(2)
    assert queue.waited_secs > 0.02


def test_the_queues_of_a_driver_have_their_sizes() -> None:
    obs, act = specs_of(CountingEnvironment(2))
    queues = TFQueues(4, 2, 3, 2, obs, act, 5, num_actor_queues=2)
    assert queues.learn_queue.capacity == 3
    assert [q.capacity for q in queues.actor_queues] == [2, 2]
    assert [q.capacity for q in queues.action_return_queues] == [1] * 4
    queues.close_all()
    queues.close_all()
    assert not queues.log_queue.is_closed()
    with pytest.raises(ValueError, match="actor_queue_cap=3 times num_actor_queues=2 is more than num_envs=4"):
        TFQueues(4, 2, 3, 3, obs, act, 5, num_actor_queues=2)


def test_a_coordinator_keeps_the_first_error_and_ignores_the_fallout() -> None:
    coord, woken = Coordinator(), []
    coord.on_stop(lambda: woken.append(1))
    first = ValueError("first")
    coord.request_stop(first)
    coord.request_stop(KeyError("fallout"))
    assert coord.should_stop()
    assert coord.exception is first
    assert woken == [1]
    with pytest.raises(ValueError, match="first"):
        coord.raise_if_failed()
    clean = Coordinator()
    clean.request_stop()
    clean.request_stop(KeyError("fallout"))
    clean.raise_if_failed()


def test_a_segment_queue_is_looked_into_and_emptied_without_waiting() -> None:
    queue = SegmentQueue(2, "crates")
    assert (queue.name, queue.capacity, queue.size(), queue.is_empty()) == ("crates", 2, 0, True)
    with pytest.raises(QueueEmpty, match="Queue crates has 0 of 1 items"):
        queue.dequeue(0)
    queue.enqueue("a")
    queue.enqueue("b")
    assert not queue.is_empty()
    with pytest.raises(TimeoutError, match="Queue crates is full") as full:
        queue.enqueue("c", 0)
    assert not isinstance(full.value, QueueEmpty)
    taken = threading.Thread(target=queue.enqueue, args=("c",))
    taken.start()
    assert queue.dequeue(0) == "a"
    taken.join(10)
    assert queue.dequeue_many(2, 0) == ["b", "c"]
