"""Estimators of off-policy evaluation, against sums over all episodes of a small decision process, and known answers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from alf.data_structures import StepType
from alf.utils import off_policy_estimators as ope

HORIZON = 3
# Chance of action 1 in each state, of the policy that plays and of the one that is judged.
BEHAVIOR, TARGET = np.array([0.3, 0.6]), np.array([0.8, 0.1])
# Chance of state 1 after (state, action), and what the action earns.
NEXT = np.array([[0.2, 0.7], [0.5, 0.9]])
REWARD = np.array([[1.0, -2.0], [0.5, 3.0]])
GAMMA = 0.9


def chance(p: float, outcome: int) -> float:
    return p if outcome else 1.0 - p


def all_episodes() -> list[tuple[float, list[int], list[int]]]:
    """Every episode from state 0 with its chance under BEHAVIOR; an episode ends early where action 1 leads to state 0."""
    found = []

    def go(p: float, states: list[int], actions: list[int]) -> None:
        if len(actions) == HORIZON or (actions and actions[-1] == 1 and states[-1] == 0):
            found.append((p, states, actions))
            return
        state = states[-1]
        for action, after in itertools.product((0, 1), repeat=2):
            step = chance(BEHAVIOR[state], action) * chance(NEXT[state, action], after)
            go(p * step, [*states, after], [*actions, action])

    go(1.0, [0], [])
    return found


def true_value() -> float:
    """The expected return of TARGET, by recursion over what can happen."""

    def value(state: int, left: int) -> float:
        if not left:
            return 0.0
        total = 0.0
        for action, after in itertools.product((0, 1), repeat=2):
            p = chance(TARGET[state], action) * chance(NEXT[state, action], after)
            over = action == 1 and after == 0
            total += p * (REWARD[state, action] + (0.0 if over else GAMMA * value(after, left - 1)))
        return total

    return value(0, HORIZON)


def rows(episodes: list[tuple[float, list[int], list[int]]]) -> dict[str, np.ndarray]:
    """The columns of the episodes, one after the other."""
    step_type: list[int] = []
    reward: list[float] = []
    log_ratio: list[float] = []
    for _, states, actions in episodes:
        step_type += [int(StepType.FIRST), *[int(StepType.MID)] * (len(actions) - 1), int(StepType.LAST)]
        reward += [7.0, *(REWARD[s, a] for s, a in zip(states, actions, strict=False))]  # that of FIRST means nothing
        ratios = [chance(TARGET[s], a) / chance(BEHAVIOR[s], a) for s, a in zip(states, actions, strict=False)]
        log_ratio += [*np.log(ratios), 5.0]  # that of LAST means nothing
    return {"step_type": np.array(step_type), "reward": np.array(reward), "log_ratio": np.array(log_ratio)}


@pytest.mark.parametrize("baseline", ["none", "value", "both"])
def test_the_expectation_over_all_episodes_is_the_value(baseline: str) -> None:
    episodes = all_episodes()
    p = np.array([chance for chance, *_ in episodes])
    np.testing.assert_allclose(p.sum(), 1.0)
    columns = rows(episodes)
    # Any functions of the row, and of the row and its action, will do.
    states = np.concatenate([s for _, s, _ in episodes])
    actions = np.concatenate([[*a, 0] for _, _, a in episodes])
    q = np.random.RandomState(0).randn(2, 2)
    given: dict[str, Any] = {}
    if baseline == "value":
        given = {"value": q[states, 0]}
    elif baseline == "both":
        given = {"value": ((1 - TARGET) * q[:, 0] + TARGET * q[:, 1])[states], "q_value": q[states, actions]}
    found = ope.contributions(**columns, gamma=GAMMA, **given)
    np.testing.assert_allclose(p @ found.weight, 1.0)
    np.testing.assert_allclose(p @ (found.weight * found.returns), true_value())
    np.testing.assert_allclose(p @ found.per_decision, true_value())
    if baseline == "none":
        assert found.doubly_robust is None
    else:
        np.testing.assert_allclose(p @ found.doubly_robust, true_value())


def test_true_values_take_away_the_spread_that_actions_cause() -> None:
    # A single step whose outcome is known from the action: with the true Q each episode says the value.
    columns = {"step_type": np.array([0, 2, 0, 2]), "reward": np.array([0.0, 1.0, 0.0, 5.0])}
    log_ratio = np.log([0.25 / 0.5, 1.0, 0.75 / 0.5, 1.0])
    value, q_value = np.array([4.0, 0.0, 4.0, 0.0]), np.array([1.0, 0.0, 5.0, 0.0])
    found = ope.contributions(**columns, log_ratio=log_ratio, value=value, q_value=q_value)
    np.testing.assert_allclose(found.doubly_robust, [4.0, 4.0])
    np.testing.assert_allclose(found.per_decision, [0.5, 7.5])


def test_the_same_policy_gives_the_return_that_was_played() -> None:
    columns = rows(all_episodes())
    found = ope.contributions(**{**columns, "log_ratio": np.zeros(len(columns["reward"]))}, gamma=GAMMA)
    for name, estimate in ope.estimates(found).items():
        np.testing.assert_allclose(estimate.mean, found.returns.mean(), err_msg=name)
        assert estimate.low < estimate.mean < estimate.high, name
    assert ope.effective_episodes(found.weight) == pytest.approx(len(found.weight))


def test_weights_that_differ_are_normalised() -> None:
    found = ope.Episodes(np.array([1.0, 4.0, 9.0]), np.array([-np.inf, 0.0, np.log(3.0)]), np.zeros(3), None)
    estimates = ope.estimates(found)
    assert estimates["weighted_importance_sampling"].mean == pytest.approx((4 + 27) / 4)
    assert estimates["importance_sampling"].mean == pytest.approx((4 + 27) / 3)
    assert "doubly_robust" not in estimates
    assert ope.effective_episodes(found.weight) == pytest.approx(16 / 10)


def test_actions_that_are_never_taken_leave_nothing_to_weigh() -> None:
    step_type, reward = np.array([0, 1, 2]), np.array([0.0, 2.0, 3.0])
    found = ope.contributions(step_type, reward, np.array([0.0, -np.inf, 0.0]))
    assert (found.weight[0], found.per_decision[0]) == (0.0, 2.0)
    estimate = ope.estimates(found)["weighted_importance_sampling"]
    assert np.isnan([estimate.mean, estimate.low, estimate.high]).all()
    assert ope.effective_episodes(found.weight) == 0.0


@pytest.mark.parametrize("each", [-2.0, 2.0])
def test_many_steps_make_no_weight_vanish_or_overflow(each: float) -> None:
    """Of 1000 steps the product of the ratios is exp(-2000) or exp(2000), and only its shares count."""
    steps = 1000
    step_type = np.tile([0, *[1] * (steps - 1), 2], 3)
    log_ratio, reward = np.full((3, steps + 1), each), np.zeros((3, steps + 1))
    log_ratio[:, 0] += np.log([1.0, 2.0, 5.0])
    reward[:, -1] = [3.0, 4.0, 5.0]
    found = ope.contributions(step_type, reward.ravel(), log_ratio.ravel(), value=np.zeros(reward.size))
    estimates = ope.estimates(found)
    weighted = estimates["weighted_importance_sampling"]
    assert weighted.mean == pytest.approx((3 + 8 + 25) / 8)
    assert 3.0 <= weighted.low <= weighted.mean <= weighted.high <= 5.0
    assert ope.effective_episodes(found.relative_weight) == pytest.approx(64 / 30)
    assert np.isfinite(estimates["importance_sampling"].mean) == (each < 0.0)


def test_the_interval_covers_as_often_as_it_says() -> None:
    episodes = all_episodes()
    p = np.array([chance for chance, *_ in episodes])
    rng, covered = np.random.default_rng(0), 0
    for seed in range(100):
        drawn = [episodes[i] for i in rng.choice(len(episodes), 200, p=p)]
        estimate = ope.estimates(ope.contributions(**rows(drawn), gamma=GAMMA), seed)[
            "per_decision_importance_sampling"
        ]
        covered += estimate.low <= true_value() <= estimate.high
    assert covered >= 85
