"""Log-probability, entropy, sample and mode of a single distribution.

Categorical, diagonal normal and squashed normal distributions are computed from their parameters; a subclass of these
(such as a masked categorical) and everything else goes through TensorFlow Probability. All results have the batch shape
of the distribution, samples and modes also its event shape.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import utils as tfa_distributions

_tfd = tfp.distributions

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# The float32 below 1: an action on its bound has no finite pre-image.
_MAX_TANH = 0.99999997
# In the place of -inf, by which a network may forbid an action: 0 * -inf is NaN. Below the logits of masks, -1e10, and with
# a finite square.
_LEAST_LOG_PROB = -1e12


class _Normal(NamedTuple):
    """A normal with independent dimensions; `squash` is the distribution that bounds it to an action spec, if any."""

    loc: tf.Tensor
    scale: tf.Tensor
    event_ndims: int
    squash: Any = None


def _logits(dist: Any) -> tf.Tensor | None:
    """The logits of a plain Categorical, None for anything else."""
    return dist.logits if type(dist) is _tfd.Categorical else None


def _normal(dist: Any) -> _Normal | None:
    """The parameters of a diagonal normal, squashed or not, None for anything else."""
    if type(dist) is tfa_distributions.SquashToSpecNormal:
        inner = _normal(dist.input_distribution)
        return None if inner is None else inner._replace(squash=dist)
    if type(dist) is _tfd.Normal:
        if dist.scale.shape.rank > dist.loc.shape.rank:
            raise ValueError(
                f"A normal has means {dist.loc.shape} and deviations {dist.scale.shape}, which NormalProjectionNetwork with "
                "state_dependent_std makes for actions of shape (): give the actions of the environment one axis, as "
                "Box(low, high, (1,)) has."
            )
        return _Normal(dist.loc, tf.broadcast_to(dist.scale, tf.shape(dist.loc)), 0)
    if type(dist) is _tfd.MultivariateNormalDiag:
        loc, scale = dist.parameters.get("loc"), dist.parameters.get("scale_diag")
        if loc is not None and scale is not None:
            loc, scale = tf.convert_to_tensor(loc), tf.convert_to_tensor(scale)
            return _Normal(loc, scale if scale.shape == loc.shape else tf.broadcast_to(scale, tf.shape(loc)), 1)
    return None


def sum_event(x: tf.Tensor, event_ndims: int) -> tf.Tensor:
    """The sum over the last `event_ndims` axes."""
    return tf.reduce_sum(x, list(range(-event_ndims, 0))) if event_ndims else x


def _magnitudes(squash: Any) -> np.ndarray:
    """Half the range of each component of an action, 1 of those that can take one value only."""
    magnitudes = np.asarray(squash.action_magnitudes)
    return np.where(magnitudes > 0, magnitudes, 1)


def _sum_over_action(x: tf.Tensor, normal: _Normal) -> tf.Tensor:
    """The sum over the components of an action, without those that can take one value only: that has probability 1."""
    if normal.squash is not None:
        varies = np.asarray(normal.squash.action_magnitudes) > 0
        if not varies.all():
            x = tf.where(varies, x, 0.0)
    return sum_event(x, normal.event_ndims)


def _log_slope(squash: Any, u: tf.Tensor) -> tf.Tensor:
    """Log of the derivative of magnitude * tanh at u, without cancellation for large |u|."""
    magnitudes = tf.convert_to_tensor(_magnitudes(squash), u.dtype)
    return 2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u)) + tf.math.log(magnitudes)


def _normal_log_prob(normal: _Normal, action: tf.Tensor) -> tf.Tensor:
    squash, x = normal.squash, action
    if squash is not None:
        y = (action - squash.action_means) / _magnitudes(squash)
        x = tf.math.atanh(tf.clip_by_value(y, -_MAX_TANH, _MAX_TANH))
    log_prob = -0.5 * tf.square((x - normal.loc) / normal.scale) - tf.math.log(normal.scale) - _HALF_LOG_2PI
    return _sum_over_action(log_prob if squash is None else log_prob - _log_slope(squash, x), normal)


def _normal_sample(normal: _Normal, seed: tf.Tensor) -> tf.Tensor:
    """A sample before squashing, differentiable in the parameters."""
    noise = tf.random.stateless_normal(tf.shape(normal.loc), seed, dtype=normal.loc.dtype)
    return normal.loc + normal.scale * noise


def _squashed(normal: _Normal, x: tf.Tensor) -> tf.Tensor:
    squash = normal.squash
    return x if squash is None else squash.action_means + squash.action_magnitudes * tf.tanh(x)


def _normal_entropy(normal: _Normal, seed: tf.Tensor | None) -> tf.Tensor:
    entropy = tf.math.log(normal.scale) + (0.5 + _HALF_LOG_2PI)
    if normal.squash is not None:
        # The normal's part is exact; only the squashing's mean log slope is estimated, by one sample.
        entropy += _log_slope(normal.squash, _normal_sample(normal, seed))
    return _sum_over_action(entropy, normal)


def _categorical_log_prob(log_probs: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    # One-hot rather than gather: the gradient of a batched gather is a scatter with a dozen shape operations.
    chosen = tf.one_hot(action, log_probs.shape[-1], dtype=log_probs.dtype)
    return tf.reduce_sum(tf.math.multiply_no_nan(log_probs, chosen), -1)


def _categorical_entropy(log_probs: tf.Tensor) -> tf.Tensor:
    # What the gradient of the second factor would add sums up to zero over the actions, whose probabilities sum up to one.
    factor = tf.stop_gradient(tf.maximum(log_probs, _LEAST_LOG_PROB))
    return -tf.reduce_sum(tf.exp(log_probs) * factor, -1)


def needs_seed(dist: Any) -> bool:
    """Whether `exact_entropy` draws a sample."""
    return type(dist) is tfa_distributions.SquashToSpecNormal


def log_prob(dist: Any, action: tf.Tensor) -> tf.Tensor:
    """The log-probability (density) of `action`."""
    logits = _logits(dist)
    if logits is not None:
        return _categorical_log_prob(tf.nn.log_softmax(logits), action)
    normal = _normal(dist)
    return dist.log_prob(action) if normal is None else _normal_log_prob(normal, action)


def entropy(dist: Any, seed: tf.Tensor | None = None) -> tf.Tensor | None:
    """The entropy, differentiable, or None where it has to be estimated from log-probabilities of samples.

    Args:
      dist: the distribution.
      seed: stateless seed, needed if `needs_seed(dist)`.
    """
    logits = _logits(dist)
    if logits is not None:
        return _categorical_entropy(tf.nn.log_softmax(logits))
    normal = _normal(dist)
    if normal is not None:
        return _normal_entropy(normal, seed)
    try:
        return dist.entropy()
    except NotImplementedError:
        return None


def log_prob_and_entropy(
    dist: Any, action: tf.Tensor, seed: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """`log_prob` and `entropy` from one pass over the parameters."""
    logits = _logits(dist)
    if logits is None:
        return log_prob(dist, action), entropy(dist, seed)
    log_probs = tf.nn.log_softmax(logits)
    return _categorical_log_prob(log_probs, action), _categorical_entropy(log_probs)


def _categorical_sample(logits: tf.Tensor, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    draw = tf.int64 if dtype == tf.int64 else tf.int32
    if logits.shape.rank == 2:
        action = tf.squeeze(tf.random.stateless_categorical(logits, 1, seed, dtype=draw), -1)
    else:
        rows = tf.reshape(logits, [-1, logits.shape[-1]])
        action = tf.reshape(tf.random.stateless_categorical(rows, 1, seed, dtype=draw), tf.shape(logits)[:-1])
        action = tf.ensure_shape(action, logits.shape[:-1])
    return action if dtype == draw else tf.cast(action, dtype)


def sample(dist: Any, seed: tf.Tensor) -> tf.Tensor:
    """A sample from a stateless seed."""
    logits = _logits(dist)
    if logits is not None:
        return _categorical_sample(logits, dist.dtype, seed)
    normal = _normal(dist)
    return dist.sample(seed=seed) if normal is None else _squashed(normal, _normal_sample(normal, seed))


def sample_with_log_prob(dist: Any, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A sample and its log-probability, both differentiable in the parameters where samples are.

    Of a squashed normal the log-probability is taken before squashing: behind it, a sample at the bounds of float32 has
    lost what it was made of.
    """
    normal = _normal(dist)
    if normal is None:
        drawn = sample(dist, seed)
        return drawn, log_prob(dist, drawn)
    x = _normal_sample(normal, seed)
    density = _normal_log_prob(normal._replace(squash=None, event_ndims=0), x)
    if normal.squash is not None:
        density -= _log_slope(normal.squash, x)
    return _squashed(normal, x), _sum_over_action(density, normal)


def log_probs(dist: Any) -> tf.Tensor:
    """The log-probabilities of all values of a categorical distribution, [batch shape, number of values]."""
    logits = _logits(dist)
    return tf.maximum(tf.nn.log_softmax(dist.logits_parameter() if logits is None else logits), _LEAST_LOG_PROB)


def mode(dist: Any) -> tf.Tensor:
    """The most probable action; of a transformed distribution, the transformed mode."""
    logits = _logits(dist)
    if logits is not None:
        return tf.cast(tf.argmax(logits, -1), dist.dtype)
    normal = _normal(dist)
    if normal is not None:
        return _squashed(normal, normal.loc)
    if type(dist) is _tfd.TransformedDistribution:
        return dist.bijector.forward(mode(dist.distribution))
    return dist.mode()
