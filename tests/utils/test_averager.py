"""Averagers against plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.utils import averager

SCALAR = tf.TensorSpec([], tf.float32)


def window(values: list[float]) -> float:
    return float(np.mean(values[-3:]))


def exponential(values: list[float]) -> float:
    weights = [0.3 * 0.7 ** (len(values) - 1 - i) for i in range(len(values))]
    return float(np.dot(weights, values) / np.sum(weights))


def adaptive(values: list[float]) -> float:
    average = 0.0
    for n, x in enumerate(values):
        average += 4.0 / (4.0 + n) * (x - average)
    return average


KINDS: dict[str, tuple[Any, Any]] = {
    "window": (lambda spec: averager.WindowAverager(spec, 3), window),
    "exponential": (lambda spec: averager.EMAverager(spec, 0.3), exponential),
    "adaptive": (lambda spec: averager.AdaptiveAverager(spec, 4.0), adaptive),
}


@pytest.mark.parametrize("kind", KINDS)
@given(values=st.lists(st.floats(-1e3, 1e3, width=32, allow_subnormal=False), min_size=1, max_size=9))
def test_average_of_a_stream(kind: str, values: list[float]) -> None:
    make, oracle = KINDS[kind]
    made = make(SCALAR)
    assert float(made.get()) == 0.0
    for n, x in enumerate(values):
        got = made.average(tf.constant(x))
        np.testing.assert_allclose(got, oracle(values[: n + 1]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_counts_as_the_mean_of_its_rows_and_nests_are_kept(kind: str) -> None:
    make, oracle = KINDS[kind]
    spec = {"a": tf.TensorSpec([2], tf.float32), "b": (tf.TensorSpec([], tf.float64),)}
    made, rs, means = make(spec), np.random.RandomState(0), []

    @tf.function(autograph=False)
    def update(batch: Any, mask: Any) -> Any:
        return made.average(batch, mask)

    for n in range(5):
        batch = {"a": rs.randn(4, 3, 2).astype(np.float32), "b": (rs.randn(4, 3),)}
        mask = rs.rand(4, 3) < 0.6
        if n != 2:
            means.append((batch["a"][mask].mean(0), batch["b"][0][mask].mean()))
        got = update(tf.nest.map_structure(tf.constant, batch), tf.constant(mask & (n != 2)))
        assert got["a"].dtype == tf.float32
        for i in range(2):
            assert float(got["a"][i]) == pytest.approx(oracle([a[i] for a, _ in means]), rel=1e-5)
        assert float(got["b"][0]) == pytest.approx(oracle([b for _, b in means]), rel=1e-6)
    assert update.experimental_get_tracing_count() == 1


def test_scalar_forms() -> None:
    for made in (
        averager.ScalarWindowAverager(4),
        averager.ScalarEMAverager(0.5),
        averager.ScalarAdaptiveAverager(speed=3.0),
    ):
        assert float(made.average(tf.constant([1.0, 3.0]))) == 2.0
        assert made.get().shape == []


def test_a_long_run_does_not_drift() -> None:
    made = averager.ScalarEMAverager(1e-4)

    @tf.function(autograph=False)
    def run() -> None:
        tf.while_loop(lambda i: i < 20000, lambda i: (made.update(tf.constant(1e4 + 0.125)), i + 1)[1:], [0])

    run()
    assert float(made.get_float64()) == pytest.approx(1e4 + 0.125, rel=1e-12)


def test_averages_are_checkpointed(tmp_path: Any) -> None:
    for kind, (make, _) in KINDS.items():
        made, other = make(SCALAR), make(SCALAR)
        for x in (1.0, 5.0, 2.0, 7.0):
            made.update(tf.constant(x))
        path = tf.train.Checkpoint(a=made).write(str(tmp_path / kind))
        tf.train.Checkpoint(a=other).read(path).assert_consumed()
        assert float(other.average(tf.constant(3.0))) == float(made.average(tf.constant(3.0)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: averager.WindowAverager(SCALAR, 0), "at least 1, got 0"),
        (lambda: averager.EMAverager(SCALAR, 0.0), r"\(0, 1\], got 0.0"),
        (lambda: averager.AdaptiveAverager(SCALAR, -1.0), "above 0, got -1.0"),
    ],
)
def test_bad_sizes_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()
