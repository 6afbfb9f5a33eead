"""Log-probabilities, entropies, samples and importance ratios of nests of action distributions.

The distributions that TF-Agents' projection networks emit (Categorical, also over several dimensions, diagonal normal,
normal squashed to an action spec) are computed from their parameters with few operations, because these run thousands
of times a second in actors and minibatches; any other distribution goes through TensorFlow Probability.

Leaves of a nest that are tensors instead of distributions are deterministic actions. All random numbers come from
`alf.utils.rng`. `outer_rank` is how many leading axes are time and batch: 1 for [B], 2 for [T, B]; what comes after
them belongs to the action and is summed up.
"""

from __future__ import annotations

import math
from typing import Any

import gin
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from alf.utils import _distributions, nest_utils, rng
from alf.utils.common import is_bounded

Nest = Any

# exp(20) is 5e8: beyond any useful ratio, and far from the float32 limit of exp(88).
_MAX_LOG_RATIO = 20.0


def _sum_action_axes(x: tf.Tensor, outer_rank: int) -> tf.Tensor:
    if x.shape.rank < outer_rank:
        raise ValueError(
            f"A distribution with batch shape {x.shape} has no {outer_rank} leading axes: pass outer_rank=1 for [B], "
            "2 for [T, B]."
        )
    return _distributions.sum_event(x, x.shape.rank - outer_rank)


def _entropy_seed(dist: Any, seed: tf.Tensor | None) -> tf.Tensor | None:
    return rng.next_seed() if seed is None and _distributions.needs_seed(dist) else seed


def _with_fallback(dist: Any, entropy: tf.Tensor | None, seed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """(entropy, entropy for the gradient), each [batch shape of dist]."""
    return (entropy, entropy) if entropy is not None else estimated_entropy(dist, seed=seed)


def _entropy(dist: Any, seed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    seed = _entropy_seed(dist, seed)
    return _with_fallback(dist, _distributions.entropy(dist, seed), seed)


def _add_up(terms: list[tf.Tensor]) -> tf.Tensor:
    return terms[0] if len(terms) == 1 else tf.add_n(terms)


def _flatten_pair(distributions: Nest, actions: Nest) -> tuple[list[Any], list[Any]]:
    dists = tf.nest.flatten(distributions)
    if not dists:
        raise ValueError("The nest of action distributions is empty: the policy must record its action_distribution.")
    return dists, tf.nest.flatten(actions)


def compute_log_probability(distributions: Nest, actions: Nest, outer_rank: int) -> tf.Tensor:
    """The log-probability of a nest of actions.

    Args:
      distributions: nest of distributions.
      actions: nest of the same structure, [outer axes, action shape], int or float.
      outer_rank: number of time and batch axes.

    Returns:
      float32, outer axes: the sum over the nest and over the action's axes.

    Raises:
      ValueError: the nest is empty, or has fewer axes than `outer_rank`.
    """
    dists, actions = _flatten_pair(distributions, actions)
    return _add_up(
        [_sum_action_axes(_distributions.log_prob(d, a), outer_rank) for d, a in zip(dists, actions, strict=True)]
    )


def compute_entropy(distributions: Nest, outer_rank: int, seed: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """The entropy of a nest of distributions, estimated by a sample where there is no closed form.

    Args:
      distributions: nest of distributions.
      outer_rank: number of time and batch axes.
      seed: stateless seed of the samples; by default `rng.next_seed()`.

    Returns:
      (entropy, entropy_for_gradient), float32, outer axes: sums over the nest and over the action's axes. The first is
      the value, the second is to be differentiated; they are the same tensor unless an estimate needs the difference.
    """
    dists, _ = _flatten_pair(distributions, ())
    # A seed of its own for each leaf, or their samples would be correlated.
    seeds = [None if seed is None else tf.random.experimental.stateless_fold_in(seed, i) for i in range(len(dists))]
    pairs = [_entropy(d, s) for d, s in zip(dists, seeds, strict=True)]
    entropy = _add_up([_sum_action_axes(e, outer_rank) for e, _ in pairs])
    if all(e is g for e, g in pairs):
        return entropy, entropy
    return entropy, _add_up([_sum_action_axes(g, outer_rank) for _, g in pairs])


def compute_log_probability_and_entropy(
    distributions: Nest, actions: Nest, outer_rank: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """`compute_log_probability` and `compute_entropy` in one pass: (log_prob, entropy, entropy_for_gradient)."""
    dists, actions = _flatten_pair(distributions, actions)
    terms: list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]] = []
    for dist, action in zip(dists, actions, strict=True):
        seed = _entropy_seed(dist, None)
        log_prob, entropy = _distributions.log_prob_and_entropy(dist, action, seed)
        terms.append((log_prob, *_with_fallback(dist, entropy, seed)))
    same = all(entropy is for_gradient for _, entropy, for_gradient in terms)
    columns = list(zip(*terms, strict=True))[: 2 if same else 3]
    sums = [_add_up([_sum_action_axes(x, outer_rank) for x in column]) for column in columns]
    return sums[0], sums[1], sums[-1]


@gin.configurable
def estimated_entropy(
    dist: Any,
    seed: tf.Tensor | None = None,
    assume_reparametrization: bool = False,
    num_samples: int = 1,
    check_numerics: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Estimates the entropy of one distribution from samples, for distributions without a closed form.

    Args:
      dist: the distribution, batch shape [...].
      seed: stateless seed of the samples; by default `rng.next_seed()`.
      assume_reparametrization: treat samples as differentiable although `dist` does not say so.
      num_samples: samples a row.
      check_numerics: fail on NaN or infinity, naming the tensor.

    Returns:
      (entropy, entropy_for_gradient) [...]. The gradient of the second is an unbiased estimate of the gradient of the
      entropy; its value means nothing unless samples are reparametrized.
    """
    seed = rng.next_seed() if seed is None else seed
    reparametrized = assume_reparametrization or dist.reparameterization_type == tfp.distributions.FULLY_REPARAMETERIZED
    samples = dist.sample(sample_shape=(num_samples,), seed=seed)
    log_prob = dist.log_prob(samples if reparametrized else tf.stop_gradient(samples))
    if check_numerics:
        log_prob = tf.debugging.check_numerics(log_prob, f"log-probability of a sample of {dist.name}")
    entropy = -tf.reduce_mean(log_prob, 0)
    if reparametrized:
        return entropy, entropy
    # d/dw E[-log p] = -E[log p * d log p / dw], since E[d log p / dw] = 0.
    return entropy, -0.5 * tf.reduce_mean(tf.square(log_prob), 0)


def _spec_outer_rank(dist: Any, spec: Any) -> int:
    base = getattr(dist, "input_distribution", dist)
    return base.batch_shape.rank + base.event_shape.rank - len(spec.shape)


def entropy_with_fallback(
    distributions: Nest, action_spec: Nest, seed: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """`compute_entropy` for distributions of actions of `action_spec`: the time and batch axes are those beyond it."""
    dists, _ = _flatten_pair(distributions, ())
    return compute_entropy(distributions, _spec_outer_rank(dists[0], tf.nest.flatten(action_spec)[0]), seed)


def _ranges(spec: Any) -> np.ndarray:
    """The width of the range of each component of a bounded spec; ValueError where it has no bounds."""
    if not is_bounded(spec.minimum, spec.maximum):
        raise ValueError(
            f"An entropy of actions without bounds, {np.min(spec.minimum):g} to {np.max(spec.maximum):g}, has no default: set "
            "target_entropy."
        )
    span = np.asarray(spec.maximum, np.float64) - np.asarray(spec.minimum, np.float64)
    return np.broadcast_to(span, spec.shape.as_list())


def _log_of(span: np.ndarray) -> np.ndarray:
    """The logarithms of ranges, 0 for what can take one value only."""
    return np.log(np.where(span > 0.0, span, 1.0))


def calc_default_target_entropy(spec: Any, min_prob: float = 0.01) -> float:
    """The entropy of a policy that is nearly sure, nats: the sum over the components of an action.

    A continuous component is uniform over the share `min_prob` of its range. A discrete one takes its best value with
    probability 1 - min_prob, and the others alike. What can take one value only adds nothing.

    Args:
      spec: bounded spec of an action, one leaf.
      min_prob: see above, in (0, 1).
    """
    span = _ranges(spec)
    if not spec.dtype.is_integer:
        return float(np.sum(np.where(span > 0.0, _log_of(span) + math.log(min_prob), 0.0)))
    others = np.maximum(span, 1.0)
    entropy = min_prob * (np.log(others) - math.log(min_prob)) - (1.0 - min_prob) * math.log(1.0 - min_prob)
    return float(np.sum(np.where(span > 0.0, entropy, 0.0)))


def calc_default_max_entropy(spec: Any, fraction: float = 0.8) -> float:
    """An upper bound of the entropy that leaves room below the uniform policy's, nats.

    Args:
      spec: bounded spec of an action, one leaf.
      fraction: of the entropy of the uniform policy; a negative one is divided by it instead.
    """
    span = _ranges(spec)
    uniform = float(np.sum(_log_of(span + 1.0 if spec.dtype.is_integer else span)))
    return min(fraction * uniform, uniform / fraction)


def _sample(dist: Any) -> tf.Tensor:
    return _distributions.sample(dist, rng.next_seed()) if nest_utils.is_distribution(dist) else dist


def _mode(dist: Any) -> tf.Tensor:
    return _distributions.mode(dist) if nest_utils.is_distribution(dist) else dist


def sample_action_distribution(distributions: Nest) -> Nest:
    """Samples every distribution of a nest, each with a seed of its own from `rng`; actions [..., action shape]."""
    return tf.nest.map_structure(_sample, distributions)


def sample_with_log_probability(distributions: Nest, outer_rank: int) -> tuple[Nest, tf.Tensor]:
    """Samples every distribution of a nest, with the log-probability of what was drawn.

    Args:
      distributions: nest of distributions; differentiable samples where they allow it (normal, squashed normal).
      outer_rank: number of time and batch axes.

    Returns:
      nest of actions [outer axes, action shape], and float32 [outer axes], the sum over the nest and the action's axes.
    """
    dists, _ = _flatten_pair(distributions, ())
    drawn = [_distributions.sample_with_log_prob(d, rng.next_seed()) for d in dists]
    log_prob = _add_up([_sum_action_axes(log_prob, outer_rank) for _, log_prob in drawn])
    return tf.nest.pack_sequence_as(distributions, [action for action, _ in drawn]), log_prob


def log_probabilities(distribution: Any) -> tf.Tensor:
    """The log-probabilities of every value of a categorical distribution, float32 [batch shape, number of values].

    Raises:
      ValueError: it is of another kind.
    """
    if not isinstance(distribution, tfp.distributions.Categorical):
        raise ValueError(
            f"A distribution over discrete actions must be a Categorical, got {type(distribution).__name__}: give the "
            "actor a CategoricalProjectionNetwork."
        )
    return _distributions.log_probs(distribution)


def mode_action_distribution(distributions: Nest) -> Nest:
    """The most probable action of every distribution of a nest."""
    return tf.nest.map_structure(_mode, distributions)


def epsilon_greedy_sample(distributions: Nest, eps: float = 0.1) -> Nest:
    """With probability `eps` a sample, otherwise the mode; one coin a row, common to the whole nest.

    Args:
      distributions: nest of distributions, batch shape [B, ...].
      eps: 0 gives always the mode, 1 always a sample.

    Returns:
      Nest of actions [B, ...].
    """
    if eps >= 1.0:
        return sample_action_distribution(distributions)
    greedy = mode_action_distribution(distributions)
    if eps <= 0.0 or not tf.nest.flatten(greedy):
        return greedy
    rows = nest_utils.get_nest_batch_size(greedy)
    explore = tf.random.stateless_uniform([rows], rng.next_seed()) < eps

    def pick(sample: tf.Tensor, mode: tf.Tensor) -> tf.Tensor:
        coins = tf.reshape(explore, [rows] + [1] * (mode.shape.rank - 1))
        return tf.where(coins, sample, mode)

    return tf.nest.map_structure(pick, sample_action_distribution(distributions), greedy)


def log_importance_ratio(log_prob: tf.Tensor, collect_log_prob: tf.Tensor, log_prob_clipping: float = 0.0) -> tf.Tensor:
    """log(pi(a) / mu(a)) from log-probabilities of one shape, bounded so that its exponential is finite.

    Args:
      log_prob: log pi(a), of the policy that learns.
      collect_log_prob: log mu(a), of the policy that acted; no gradient flows into it.
      log_prob_clipping: above 0, log-probabilities are clipped to [-log_prob_clipping, log_prob_clipping] first.
    """
    if log_prob_clipping > 0:
        log_prob = tf.clip_by_value(log_prob, -log_prob_clipping, log_prob_clipping)
        collect_log_prob = tf.clip_by_value(collect_log_prob, -log_prob_clipping, log_prob_clipping)
    return tf.minimum(log_prob - tf.stop_gradient(collect_log_prob), _MAX_LOG_RATIO)


def clip_importance_ratio(ratio: tf.Tensor, clipping_mode: str, importance_ratio_clipping: float) -> tf.Tensor:
    """Clips to [1 - c, 1 + c] in mode 'double_sided', to at most 1 + c in mode 'capping'.

    Raises:
      ValueError: another mode.
    """
    if clipping_mode == "double_sided":
        return tf.clip_by_value(ratio, 1.0 - importance_ratio_clipping, 1.0 + importance_ratio_clipping)
    if clipping_mode == "capping":
        return tf.minimum(ratio, 1.0 + importance_ratio_clipping)
    raise ValueError(f"clipping_mode is 'double_sided' or 'capping', got {clipping_mode!r}.")


@gin.configurable
def action_importance_ratio(
    action_distribution: Nest,
    collect_action_distribution: Nest,
    action: Nest,
    action_spec: Nest,
    clipping_mode: str,
    scope: str,
    importance_ratio_clipping: float = 0.0,
    log_prob_clipping: float = 0.0,
    check_numerics: bool = False,
    debug_summaries: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The importance ratio pi(a) / mu(a) of actions and its clipped form.

    Args:
      action_distribution: nest of distributions pi of the policy that learns.
      collect_action_distribution: nest of distributions mu of the policy that acted.
      action: nest of actions [outer axes, action shape].
      action_spec: nest of action specs, which tells the outer axes from the action's.
      clipping_mode: 'double_sided' clips to [1 - c, 1 + c], 'capping' to at most 1 + c.
      scope: name scope of operations and summaries.
      importance_ratio_clipping: c.
      log_prob_clipping: above 0, bounds the log-probabilities.
      check_numerics: fail on NaN or infinity.
      debug_summaries: write histograms to the default summary writer.

    Returns:
      (ratio, clipped ratio), float32, outer axes. The ratio is exactly 1 where the distributions are equal.

    Raises:
      ValueError: unknown clipping mode.
    """
    outer_rank = _leaf_outer_rank(action, action_spec)
    with tf.name_scope(scope):
        log_prob = compute_log_probability(action_distribution, action, outer_rank)
        collect_log_prob = compute_log_probability(collect_action_distribution, action, outer_rank)
        ratio = tf.exp(log_importance_ratio(log_prob, collect_log_prob, log_prob_clipping))
        if check_numerics:
            ratio = tf.debugging.check_numerics(ratio, "importance ratio")
        clipped = clip_importance_ratio(ratio, clipping_mode, importance_ratio_clipping)
        if debug_summaries and tf.summary.experimental.get_step() is not None:
            tf.summary.histogram("importance_ratio", ratio)
            tf.summary.histogram("importance_ratio_clipped", clipped)
    return ratio, clipped


def _leaf_outer_rank(action: Nest, action_spec: Nest) -> int:
    leaf, spec = tf.nest.flatten(action)[0], tf.nest.flatten(action_spec)[0]
    return len(leaf.shape) - len(spec.shape)
