"""Random streams: repeatable, distinct, per thread."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from alf.utils import rng


def _draws(seed: tuple[int, int], count: int) -> list[tuple[int, ...]]:
    with rng.scope(tf.constant(seed)):
        return [tuple(rng.next_seed().numpy()) for _ in range(count)]


def test_same_seed_same_draws_and_all_draws_differ():
    first = _draws((1, 2), 50)
    assert first == _draws((1, 2), 50)
    assert len(set(first)) == 50
    assert not set(first) & set(_draws((1, 3), 50))
    assert not set(first) & set(_draws((2, 2), 50))


def test_scopes_nest_and_the_outer_one_goes_on():
    plain = _draws((5, 6), 2)
    with rng.scope(tf.constant([5, 6])):
        first = tuple(rng.next_seed().numpy())
        with rng.scope(tf.constant([7, 8])):
            inner = tuple(rng.next_seed().numpy())
        second = tuple(rng.next_seed().numpy())
    assert [first, second] == plain
    assert inner == _draws((7, 8), 1)[0]


def test_graph_equals_eager_and_takes_the_seed_at_run_time():
    @tf.function(autograph=False)
    def draw(seed):
        with rng.scope(seed):
            return rng.next_seed(), rng.next_seed()

    for seed in ((1, 2), (3, 4)):
        assert [tuple(s.numpy()) for s in draw(tf.constant(seed))] == _draws(seed, 2)
    assert draw.experimental_get_tracing_count() == 1


def test_loop_rounds_get_their_own_numbers():
    @tf.function(autograph=False)
    def unroll(seed):
        numbers = tf.TensorArray(tf.float32, 20)

        def body(t, numbers):
            with rng.scope(tf.stack([seed, t])):
                return t + 1, numbers.write(t, tf.random.stateless_uniform([], rng.next_seed()))

        return tf.while_loop(lambda t, _: t < 20, body, (0, numbers))[1].stack()

    first, other = unroll(tf.constant(1)).numpy(), unroll(tf.constant(2)).numpy()
    np.testing.assert_array_equal(first, unroll(tf.constant(1)).numpy())
    assert len(set(first) | set(other)) == 40


def test_scope_is_of_its_thread():
    results: dict[int, list[tuple[int, ...]]] = {}
    barrier = threading.Barrier(2)

    def work(i: int) -> None:
        with rng.scope(tf.constant([i, i])):
            barrier.wait(10)
            results[i] = [tuple(rng.next_seed().numpy()) for _ in range(20)]
            barrier.wait(10)

    threads = [threading.Thread(target=work, args=(i,)) for i in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {1: _draws((1, 1), 20), 2: _draws((2, 2), 20)}


def test_without_scope_draws_differ_and_follow_the_global_seed():
    tf.random.set_seed(3)
    first = [tuple(rng.next_seed().numpy()) for _ in range(3)]
    tf.random.set_seed(3)
    assert first == [tuple(rng.next_seed().numpy()) for _ in range(3)]
    assert len(set(first)) == 3


@pytest.mark.parametrize("seed", [tf.constant([1.0, 2.0]), tf.constant([1, 2, 3]), tf.constant(1)])
def test_wrong_seed_is_refused(seed):
    with pytest.raises(ValueError, match=r"shape \[2\]"), rng.scope(seed):
        pass


def test_scope_closes_on_error():
    with pytest.raises(RuntimeError, match="x"), rng.scope(tf.constant([1, 2])):
        raise RuntimeError("x")
    tf.random.set_seed(3)
    outside = tuple(rng.next_seed().numpy())
    assert outside != _draws((1, 2), 1)[0]
