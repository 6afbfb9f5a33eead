"""What a policy would earn, from episodes that another one has played: estimators of off-policy evaluation.

All of them estimate the mean of sum_t gamma^t r_{t+1} over episodes of the same kind, time limits included. With ratio
rho_t of the two policies' probabilities of action t, and weight w_t = rho_0 ... rho_t (Precup, Sutton and Singh, 2000,
"Eligibility traces for off-policy policy evaluation"; Jiang and Li, 2016, "Doubly robust off-policy value evaluation"):

    importance_sampling                mean over episodes of w_{T-1} G
    weighted_importance_sampling       the same, divided by the mean of w_{T-1}: biased, and much less spread
    per_decision_importance_sampling   mean over episodes of sum_t gamma^t w_t r_{t+1}
    doubly_robust                      mean of d_0, with d_t = v_t + rho_t (r_{t+1} + gamma d_{t+1} - q_t) and d_T = 0

Values are control variates only: whatever they are, `doubly_robust` has no bias where the ratios are right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alf.data_structures import StepType

_DRAWS = 2000
_AT_ONCE = 100


class Episodes(NamedTuple):
    """What single episodes contribute, float64 [E].

    Fields: returns, as they were played; log_weight, the logarithm of the product of the ratios, since many steps make
    that 0 or infinity; per_decision and doubly_robust, their estimates; doubly_robust is None without values.
    """

    returns: np.ndarray
    log_weight: np.ndarray
    per_decision: np.ndarray
    doubly_robust: np.ndarray | None

    @property
    def weight(self) -> np.ndarray:
        """The products of the ratios."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_weight)

    @property
    def relative_weight(self) -> np.ndarray:
        """The weights as shares of the largest; zeros where all are 0."""
        largest = self.log_weight.max()
        return np.zeros_like(self.log_weight) if largest == -np.inf else np.exp(self.log_weight - largest)


class Estimate(NamedTuple):
    """An estimate, and the 2.5th and 97.5th percentile of it over episodes drawn with replacement."""

    mean: float
    low: float
    high: float


def contributions(
    step_type: np.ndarray,
    reward: np.ndarray,
    log_ratio: np.ndarray,
    gamma: float = 1.0,
    value: np.ndarray | None = None,
    q_value: np.ndarray | None = None,
) -> Episodes:
    """What each episode says.

    Args:
      step_type: int [N], of whole episodes one after the other.
      reward: [N]; `reward[i]` is what the action of the row before has earned.
      log_ratio: [N], the log-probability of the row's action under the policy that is judged, less that under the one
        that chose it; -inf where the former never takes it. Of LAST rows it means nothing.
      gamma: discount of a step.
      value: [N], what the judged policy is thought to earn from the row on.
      q_value: [N], the same after the row's action; by default `value`, which is right on average.
    """
    begins = np.flatnonzero(step_type == StepType.FIRST)
    ends = np.flatnonzero(step_type == StepType.LAST)
    reward, log_ratio = np.asarray(reward, np.float64), np.asarray(log_ratio, np.float64)
    baseline = None if value is None else np.asarray(value, np.float64)
    after = baseline if q_value is None else np.asarray(q_value, np.float64)
    returns, logs, per_decision, robust = (np.zeros(len(begins)) for _ in range(4))
    with np.errstate(over="ignore", invalid="ignore"):  # What is infinite by it is no estimate, and is told as such.
        for e, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            acted, came = slice(begin, end), reward[begin + 1 : end + 1]
            discounted = gamma ** np.arange(end - begin) * came
            so_far = np.cumsum(log_ratio[acted])
            returns[e], logs[e], per_decision[e] = discounted.sum(), so_far[-1], (np.exp(so_far) * discounted).sum()
            if baseline is not None and after is not None:
                robust[e] = _doubly_robust(came, np.exp(log_ratio[acted]), gamma, baseline[acted], after[acted])
        return Episodes(returns, logs, per_decision, None if baseline is None else robust)


def _doubly_robust(
    reward: np.ndarray, ratio: np.ndarray, gamma: float, value: np.ndarray, q_value: np.ndarray
) -> float:
    ahead = 0.0
    for r, rho, v, q in zip(reward[::-1], ratio[::-1], value[::-1], q_value[::-1], strict=True):
        ahead = v + rho * (r + gamma * ahead - q)
    return float(ahead)


def estimates(episodes: Episodes, seed: int = 0) -> dict[str, Estimate]:
    """Every estimate by its name, with `behavior`, the mean return as played, to compare with.

    Args:
      episodes: by `contributions`.
      seed: of the draws that the intervals come from.
    """
    with np.errstate(invalid="ignore"):
        weighted = episodes.weight * episodes.returns
    linear = {
        "behavior": episodes.returns,
        "importance_sampling": weighted,
        "per_decision_importance_sampling": episodes.per_decision,
    }
    if episodes.doubly_robust is not None:
        linear["doubly_robust"] = episodes.doubly_robust
    one = np.ones_like(episodes.weight)
    found = {name: _estimate(each, one, seed) for name, each in linear.items()}
    relative = episodes.relative_weight
    found["weighted_importance_sampling"] = _estimate(relative * episodes.returns, relative, seed)
    return found


def effective_episodes(weight: np.ndarray) -> float:
    """How many equally weighted episodes tell as much as these: (sum w)^2 / sum w^2 (Kong, 1992); 0 if all weights are 0."""
    largest = weight.max()
    if largest == 0.0:
        return 0.0
    shares = weight / largest
    return float(shares.sum() ** 2 / (shares**2).sum())


def _estimate(above: np.ndarray, below: np.ndarray, seed: int) -> Estimate:
    """The sum of `above` divided by that of `below`, which is NaN where all of `below` is 0."""
    rng, drawn = np.random.default_rng(seed), []
    with np.errstate(invalid="ignore", divide="ignore"):
        for _ in range(_DRAWS // _AT_ONCE):
            rows = rng.integers(len(above), size=(_AT_ONCE, len(above)))
            drawn.append(above[rows].sum(1) / below[rows].sum(1))
        ratios = np.concatenate(drawn)
        ratios = ratios[~np.isnan(ratios)]
        low, high = np.percentile(ratios, [2.5, 97.5]) if len(ratios) else (np.nan, np.nan)
        return Estimate(float(above.sum() / below.sum()), float(low), float(high))
