"""Training records of every kind of action, and a float64 numpy view of their distributions, for the loss tests."""

from __future__ import annotations

import collections
import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import utils as tfa_distributions
from tf_agents.specs import tensor_spec

from alf.data_structures import StepType

tfd = tfp.distributions
FIRST, MID, LAST = (int(x) for x in (StepType.FIRST, StepType.MID, StepType.LAST))
Info = collections.namedtuple("Info", ["action_distribution"])

_BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [2.0, 6.0])
_MEANS, _MAGNITUDES = np.array([0.0, 3.0]), np.array([2.0, 3.0])


class Case(NamedTuple):
    """`build` makes the distribution, `log_prob` and `entropy` are numpy, all from params [T, B, width]."""

    width: int
    spec: Any
    build: Any
    sample: Any
    log_prob: Any
    entropy: Any


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _discrete(shape: list[int], choices: int, dtype: tf.DType) -> Case:
    width = int(np.prod(shape)) * choices

    def split(p: Any) -> Any:
        return np.reshape(p, [*p.shape[:-1], -1, choices])

    def log_prob(p: np.ndarray, a: np.ndarray) -> np.ndarray:
        flat = np.reshape(a, [*p.shape[:-1], -1, 1]).astype(int)
        return np.take_along_axis(_log_softmax(split(p)), flat, -1).sum((-1, -2))

    def entropy(p: np.ndarray) -> np.ndarray:
        log_p = _log_softmax(split(p))
        return -(np.exp(log_p) * log_p).sum((-1, -2))

    return Case(
        width,
        tensor_spec.BoundedTensorSpec(shape, dtype, 0, choices - 1),
        lambda p: tfd.Categorical(logits=tf.reshape(p, [*p.shape[:-1], *shape, choices]), dtype=dtype),
        lambda rs, outer: rs.randint(0, choices, [*outer, *shape]).astype(dtype.as_numpy_dtype),
        log_prob,
        entropy,
    )


def _normal_log_prob(p: np.ndarray, x: np.ndarray) -> np.ndarray:
    loc, log_scale = p[..., :2], p[..., 2:]
    return (-0.5 * ((x - loc) / np.exp(log_scale)) ** 2 - log_scale - 0.5 * np.log(2 * np.pi)).sum(-1)


def _normal_entropy(p: np.ndarray) -> np.ndarray:
    return (p[..., 2:] + 0.5 * np.log(2 * np.pi * np.e)).sum(-1)


def _squashed_log_prob(p: np.ndarray, a: np.ndarray) -> np.ndarray:
    y = (a.astype(np.float64) - _MEANS) / _MAGNITUDES
    return _normal_log_prob(p, np.arctanh(y)) - np.log(_MAGNITUDES * (1 - y**2)).sum(-1)


def _normal(p: tf.Tensor) -> Any:
    return tfd.MultivariateNormalDiag(p[..., :2], tf.exp(p[..., 2:]))


CASES = {
    "discrete": _discrete([], 3, tf.int64),
    "discrete_1": _discrete([1], 3, tf.int32),
    "multi_discrete": _discrete([2], 3, tf.int64),
    "normal": Case(
        4,
        tensor_spec.BoundedTensorSpec([2], tf.float32, -1, 1),
        _normal,
        lambda rs, outer: rs.randn(*outer, 2).astype(np.float32),
        _normal_log_prob,
        _normal_entropy,
    ),
    "squashed": Case(
        4,
        _BOX,
        lambda p: tfa_distributions.SquashToSpecNormal(_normal(p), _BOX),
        lambda rs, outer: (_MEANS + _MAGNITUDES * np.tanh(0.7 * rs.randn(*outer, 2))).astype(np.float32),
        _squashed_log_prob,
        None,
    ),
}


def _nest(parts: list[Case]) -> Case:
    """One part in a dict and one in a tuple in it; log-probabilities and entropies are sums over the parts."""
    ends = np.cumsum([0, *(part.width for part in parts)])

    def split(p: Any) -> list[Any]:
        return [p[..., a:b] for a, b in itertools.pairwise(ends)]

    def nest(a: Any, b: Any) -> Any:
        return {"first": a, "more": (b,)}

    return Case(
        int(ends[-1]),
        nest(*(part.spec for part in parts)),
        lambda p: nest(*(part.build(x) for part, x in zip(parts, split(p), strict=True))),
        lambda rs, outer: nest(*(part.sample(rs, outer) for part in parts)),
        lambda p, a: sum(
            part.log_prob(x, y) for part, x, y in zip(parts, split(p), (a["first"], a["more"][0]), strict=True)
        ),
        lambda p: sum(part.entropy(x) for part, x in zip(parts, split(p), strict=True)),
    )


CASES["nest"] = _nest([CASES["multi_discrete"], CASES["normal"]])


def step_types(rs: np.random.RandomState, steps: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Step types and discounts [T, B] with terminated and truncated episodes inside."""
    types, discounts = np.full((steps, batch), MID, np.int32), np.ones((steps, batch), np.float32)
    for b in range(batch):
        end = rs.randint(1, steps - 1)
        types[end, b], types[end + 1, b] = LAST, FIRST
        discounts[end, b] = b % 2
    return types, discounts


def numeric_gradient(f: Any, x: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Central differences of a scalar function of a float64 array."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        kept = x[i]
        x[i] = kept + step
        above = f(x)
        x[i] = kept - step
        gradient[i] = (above - f(x)) / (2 * step)
        x[i] = kept
    return gradient
