"""Normalisers against plain numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from alf.utils import normalizers

SPEC = tf.TensorSpec([2], tf.float32)


def batches(rs: np.random.RandomState, count: int) -> list[np.ndarray]:
    return [(rs.randn(rs.randint(1, 7), 2) * [1.0, 30.0] + [5.0, -200.0]).astype(np.float32) for _ in range(count)]


def by_rows(data: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.concatenate(data).astype(np.float64)
    return rows.mean(0), rows.var(0)


def by_batches(weights: Any) -> Any:
    def oracle(data: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        w = np.array(weights(len(data)))[:, None]
        first = np.stack([x.astype(np.float64).mean(0) for x in data])
        second = np.stack([np.square(x.astype(np.float64)).mean(0) for x in data])
        mean = (w * first).sum(0) / w.sum()
        return mean, (w * second).sum(0) / w.sum() - mean**2

    return oracle


def _adaptive_weights(n: int) -> list[float]:
    weights: list[float] = []
    for i in range(n):
        rate = 8.0 / (8.0 + i)
        weights = [w * (1 - rate) for w in weights] + [rate]
    return weights


KINDS: dict[str, tuple[Any, Any]] = {
    "running": (normalizers.RunningNormalizer, by_rows),
    "window": (
        lambda spec: normalizers.WindowNormalizer(spec, 3),
        by_batches(lambda n: [0.0] * (n - 3) + [1.0] * min(n, 3)),
    ),
    "em": (
        lambda spec: normalizers.EMNormalizer(spec, 0.2),
        by_batches(lambda n: [0.2 * 0.8 ** (n - 1 - i) for i in range(n)]),
    ),
    "adaptive": (normalizers.AdaptiveNormalizer, by_batches(_adaptive_weights)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1000), count=st.integers(1, 6))
def test_statistics_and_results(kind: str, seed: int, count: int) -> None:
    make, oracle = KINDS[kind]
    made, rs = make(SPEC), np.random.RandomState(seed)
    data = batches(rs, count)
    for x in data:
        made.update(tf.constant(x))
    mean, variance = oracle(data)
    x = rs.randn(4, 3, 2).astype(np.float32) * 10
    scale = np.sqrt(np.maximum(variance, 0) + 1e-10)
    if (scale > 1e-2).all():
        np.testing.assert_allclose(made.normalize(tf.constant(x)), (x - mean) / scale, rtol=2e-4, atol=2e-3)
        np.testing.assert_allclose(made.scale(tf.constant(x)), x / scale, rtol=2e-4, atol=2e-3)
        clipped = made.normalize(tf.constant(x), clip_value=1.5)
        np.testing.assert_allclose(clipped, np.clip((x - mean) / scale, -1.5, 1.5), rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_update_and_of_no_rows_nothing_changes(kind: str) -> None:
    made = KINDS[kind][0](SPEC)
    x = tf.constant([[3.0, -4.0]])
    np.testing.assert_allclose(made.normalize(x), x, rtol=1e-6)
    made.update(x, mask=tf.constant([False]))
    np.testing.assert_allclose(made.normalize(x), x, rtol=1e-6)
    made.update(tf.constant([[1.0, 1.0], [3.0, 5.0]]))
    before = made.normalize(x).numpy()
    made.update(x, mask=tf.constant([0.0]))
    np.testing.assert_array_equal(made.normalize(x), before)
    np.testing.assert_allclose(before, [[1.0, -3.5]], rtol=1e-5)


@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 39), max_size=6))
def test_merging_equals_the_whole_however_it_is_cut(seed: int, cuts: list[int]) -> None:
    rows = np.random.RandomState(seed).randn(40, 2).astype(np.float32) + 1e3
    running = normalizers.RunningMoments(SPEC)
    for piece in np.split(rows, sorted(set(cuts))):
        running.add(normalizers.batch_moments(tf.constant(piece), SPEC))
    count, mean, variance = running.get()
    assert float(count) == 40
    np.testing.assert_allclose(mean, rows.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(variance, rows.astype(np.float64).var(0), rtol=1e-9)


def test_a_million_rows_far_from_zero_keep_their_digits() -> None:
    """Float32 sums of squares would give a negative variance here."""
    running, rs, total = normalizers.RunningMoments(tf.TensorSpec([], tf.float32)), np.random.RandomState(0), []
    for _ in range(100):
        total.append((1e5 + rs.randn(10000)).astype(np.float32))
        running.add(normalizers.batch_moments(tf.constant(total[-1]), tf.TensorSpec([], tf.float32)))
    assert float(running.get().variance) == pytest.approx(np.concatenate(total).astype(np.float64).var(), rel=1e-6)


@pytest.mark.parametrize(
    "make", [normalizers.WindowNormalizer, normalizers.EMNormalizer, normalizers.AdaptiveNormalizer]
)
def test_a_large_number_that_does_not_change_is_at_its_mean(make: Any) -> None:
    """The mean of the squares less the square of the mean is rounded, to below zero too."""
    for value in (1e5 / 3, 1e6 / 7, 1e7 / 11):
        made, x = make(SPEC), tf.fill([3, 2], tf.constant(value, tf.float32))
        for _ in range(20):
            made.update(x)
            assert (made.moments().variance.numpy() >= 0.0).all()
            assert np.isfinite(made.normalize(x)).all()


@pytest.mark.parametrize(
    "make",
    [
        normalizers.RunningNormalizer,
        normalizers.WindowNormalizer,
        normalizers.EMNormalizer,
        normalizers.AdaptiveNormalizer,
    ],
)
def test_variance_epsilon_is_added_to_the_variance(make: Any) -> None:
    made = make(SPEC, variance_epsilon=4.0)
    rows = np.array([[1.0, 0.0], [3.0, 0.0]], np.float32)
    made.update(tf.constant(rows))
    mean, scale = rows.mean(0), np.sqrt(rows.var(0) + 4.0)
    x = np.array([[9.0, 5.0]], np.float32)
    np.testing.assert_allclose(made.normalize(tf.constant(x)), (x - mean) / scale, rtol=1e-6)
    np.testing.assert_allclose(made.scale(tf.constant(x)), x / scale, rtol=1e-6)


def test_nests_masks_and_graphs() -> None:
    spec = {"x": SPEC, "y": (tf.TensorSpec([], tf.float32),)}
    made, rs = normalizers.RunningNormalizer(spec), np.random.RandomState(0)
    batch = {"x": rs.randn(5, 4, 2).astype(np.float32), "y": (rs.randn(5, 4).astype(np.float32),)}
    mask = rs.rand(5, 4) < 0.5
    tf.function(made.update, autograph=False)(tf.nest.map_structure(tf.constant, batch), tf.constant(mask))
    rows = batch["x"][mask]
    got = tf.function(made.normalize, autograph=False)(tf.nest.map_structure(tf.constant, batch))
    np.testing.assert_allclose(got["x"], (batch["x"] - rows.mean(0)) / rows.std(0), rtol=1e-4, atol=1e-5)
    y = batch["y"][0][mask]
    np.testing.assert_allclose(got["y"][0], (batch["y"][0] - y.mean()) / y.std(), rtol=1e-4, atol=1e-5)


def test_statistics_are_checkpointed(tmp_path: Any) -> None:
    for kind, (make, _) in KINDS.items():
        made, other = make(SPEC), make(SPEC)
        for x in batches(np.random.RandomState(0), 4):
            made.update(tf.constant(x))
        path = tf.train.Checkpoint(n=made).write(str(tmp_path / kind))
        tf.train.Checkpoint(n=other).read(path).assert_consumed()
        x = tf.constant([[1.0, 2.0]])
        np.testing.assert_array_equal(other.normalize(x), made.normalize(x))


def test_integers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"normalises floats and got \['uint8'\]"):
        normalizers.RunningNormalizer({"image": tf.TensorSpec([4], tf.uint8)})
    made = normalizers.RunningNormalizer(SPEC)
    for whole in (tf.constant([[1, 2]]), np.array([[1, 2]], np.int32)):
        for of in (made.normalize, made.scale):
            with pytest.raises(ValueError, match=r"^RunningNormalizer normalises floats and got \['int32'\]: cast"):
                of(whole)


def test_scalar_forms() -> None:
    for made in (
        normalizers.ScalarWindowNormalizer(),
        normalizers.ScalarEMNormalizer(),
        normalizers.ScalarAdaptiveNormalizer(),
    ):
        made.update(tf.constant([1.0, 3.0]))
        np.testing.assert_allclose(made.normalize(tf.constant([4.0])), [2.0], rtol=1e-5)
