"""A lost life ends what the learner looks ahead to, and nothing else."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from tf_agents.trajectories import trajectory

from alf.environments import BatchedEnvironment, create_environment, suite_gym
from alf.environments.batch_wrappers import BatchWrapper, EpisodicLife, NonEpisodicAgent
from alf.environments.grouped_rows import GroupedRows
from alf.metrics.metrics import standard_metrics
from alf.utils import value_ops
from alf.utils.common import reward_clipping
from tests.environments.toy_environments import LivesEnv, ToyEnv

_ROWS = 3
_STEPS = 60


class Step(NamedTuple):
    """A time step of one row."""

    step_type: int
    reward: float
    discount: float
    observation: list[float]


def _expected(row: int, lives_count: bool, max_steps: int = 1000) -> list[Step]:
    """A row's stream by a plain loop over the game."""
    env, steps, done, lives = LivesEnv(row, max_steps), [], True, 0
    for _ in range(_STEPS):
        if done:
            observation, info = env.reset()
            done, lives = False, info["lives"]
            steps.append(Step(0, 0.0, 1.0, observation.tolist()))
            continue
        observation, reward, terminated, truncated, info = env.step(0)
        done = terminated or truncated
        lost = info["lives"] < lives
        lives = info["lives"]
        ends = terminated or (lost and lives_count and not truncated)
        steps.append(Step(2 if done else 1, reward, 0.0 if ends else 1.0, observation.tolist()))
    return steps


def _rows(numbers: list[int], max_steps: int = 1000) -> Any:
    left = list(numbers)
    return lambda: LivesEnv(left.pop(0), max_steps)


def _make(rows: int, vectorization: str, *, count: bool = True, max_steps: int = 1000) -> BatchedEnvironment:
    load = functools.partial(suite_gym.load, env_wrappers=(EpisodicLife,) if count else ())
    made = functools.partial(LivesEnv, 0, max_steps) if vectorization == "async" else _rows([*range(rows)], max_steps)
    return create_environment(made, load, num_parallel_environments=rows, seed=0, vectorization=vectorization)


def _play(env: BatchedEnvironment) -> list[Any]:
    steps = [env.reset()]
    steps += [env.step(np.zeros(env.batch_size, np.int64)) for _ in range(_STEPS - 1)]
    env.close()
    return steps


def _row(steps: list[Any], row: int) -> list[Step]:
    return [
        Step(int(s.step_type[row]), float(s.reward[row]), float(s.discount[row]), s.observation[row].tolist())
        for s in steps
    ]


@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize(("vectorization", "rows"), [("single", 1), ("sync", _ROWS), ("async", 2)])
def test_against_a_plain_loop(vectorization: str, rows: int, count: bool) -> None:
    steps = _play(_make(rows, vectorization, count=count))
    for row in range(rows):
        assert _row(steps, row) == _expected(0 if vectorization == "async" else row, count)


def test_nothing_but_the_discount_differs() -> None:
    counted, plain = _play(_make(_ROWS, "sync")), _play(_make(_ROWS, "sync", count=False))
    lost = 0
    for a, b in zip(counted, plain, strict=True):
        assert np.array_equal(a.step_type, b.step_type)
        assert np.array_equal(a.reward, b.reward)
        assert np.array_equal(a.observation, b.observation)
        lost += int((a.discount != b.discount).sum())
        assert (a.discount[a.discount != b.discount] == 0).all()
    assert lost > 2 * _ROWS


def test_a_life_lost_at_the_time_limit_stays_a_truncation() -> None:
    steps = _play(_make(1, "single", max_steps=5))
    assert _row(steps, 0) == _expected(0, True, max_steps=5)
    lasts = [s for s in _row(steps, 0) if s.step_type == 2]
    assert {s.discount for s in lasts} == {1.0}


def test_the_game_goes_on_after_a_lost_life_and_a_forced_reset_begins_a_new_one() -> None:
    env = _make(2, "sync")
    before = env.reset()
    for _ in range(40):
        step = env.step(np.zeros(2, np.int64))
        lost = (step.discount == 0) & (step.step_type == 1)
        if lost.any():
            break
        before = step
    row = int(np.flatnonzero(lost)[0])
    after = env.step(np.zeros(2, np.int64))
    game, time = before.observation[row, 1:]
    assert after.step_type[row] == 1
    assert after.observation[row].tolist() == [row, game, time + 2]
    fresh = env.reset()
    assert fresh.step_type.tolist() == [0, 0]
    assert fresh.observation[:, 1].tolist() == (after.observation[:, 1] + 1).tolist()
    assert (fresh.observation[:, 2] == 0).all()
    # The lives of the game before are forgotten: its next step is no loss.
    assert env.step(np.zeros(2, np.int64)).discount.tolist() == [1, 1]
    env.close()


def test_metrics_are_of_whole_games_and_raw_rewards() -> None:
    """The learner's rewards are clipped and its ends are lives; the metrics show the game's own points."""
    steps = _play(_make(_ROWS, "sync"))
    metrics = standard_metrics(1, _ROWS)
    for now, following in itertools.pairwise(steps):
        for metric in metrics:
            metric(
                trajectory.Trajectory(
                    step_type=now.step_type,
                    observation=(),
                    action=(),
                    policy_info=(),
                    next_step_type=following.step_type,
                    reward=following.reward,
                    discount=following.discount,
                )
            )
    # Lives last 2, 3 and 4 steps in some order, and each step earns its number in the game.
    games = sum(step.step_type == 2 for row in range(_ROWS) for step in _expected(row, lives_count=False))
    decisions = sum(step.step_type != 0 for row in range(_ROWS) for step in _expected(row, lives_count=False))
    assert [int(m.result()) for m in metrics[:2]] == [games, decisions]
    assert games > 10
    assert float(metrics[2].result()) == sum(range(1, 10))
    assert float(metrics[3].result()) == 9
    assert np.max(reward_clipping(np.array([3.0, -7.0], np.float32))) == 1.0


def test_values_do_not_look_past_a_lost_life() -> None:
    """Returns by alf's recursion, with every value 100, against a plain loop that stops at lives."""
    steps = _expected(0, lives_count=True)[:20]
    rewards, discounts, types = (
        np.array([[getattr(s, n)] for s in steps]) for n in ("reward", "discount", "step_type")
    )
    values = np.full((20, 1), 100.0, np.float32)
    gamma = 0.9
    found = value_ops.discounted_return(
        rewards.astype(np.float32), values, types.astype(np.int32), (gamma * discounts).astype(np.float32)
    ).numpy()[:, 0]
    compared = 0
    for start in range(19):
        if steps[start].step_type == 2:
            continue
        total, scale = 0.0, 1.0
        for step in steps[start + 1 :]:
            total += scale * step.reward
            scale *= gamma
            if step.discount == 0:
                break
        else:
            total += scale * 100.0
        assert found[start] == pytest.approx(total, rel=1e-5)
        compared += 1
    assert compared > 10


def test_an_environment_without_lives_is_refused() -> None:
    load = functools.partial(suite_gym.load, env_wrappers=(EpisodicLife,))
    env = create_environment(ToyEnv, load, num_parallel_environments=2, max_restarts=0)
    with pytest.raises(ValueError, match=r"info\['lives'\]"):
        env.reset()
    env.close()


def test_a_non_episodic_agent_goes_on_behind_lost_lives_and_games() -> None:
    behind = functools.partial(NonEpisodicAgent, discount=0.5)
    steps = _row(_play(suite_gym.load(_rows([0]), env_wrappers=(EpisodicLife, behind))(1)), 0)
    expected = [s._replace(discount=0.5 if s.discount == 0 else 1.0) for s in _expected(0, lives_count=True)]
    assert steps == expected
    assert {s.step_type for s in steps if s.discount == 0.5} == {1, 2}


def test_lives_do_not_end_what_games_do_not() -> None:
    with pytest.raises(ValueError, match=r"put NonEpisodicAgent behind EpisodicLife in suite_gym.load.env_wrappers"):
        suite_gym.load(LivesEnv, env_wrappers=(NonEpisodicAgent, BatchWrapper, EpisodicLife))(1)


@pytest.mark.parametrize(("vectorization", "rows"), [("single", 1), ("sync", _ROWS), ("async", 2)])
def test_a_step_that_tells_no_lives_loses_none(vectorization: str, rows: int) -> None:
    """Rows tell their lives at every second step of theirs, and these are out of step."""

    class Quiet(LivesEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.start = self.game if seed is None else seed
            return super().reset(seed=seed)

        def step(self, action: Any) -> Any:
            *step, info = super().step(action)
            return *step, info if (self.time + self.start) % 2 else {}

    load = suite_gym.load(functools.partial(Quiet, max_steps=4), env_wrappers=(EpisodicLife,))
    env = load(rows, [*range(rows)], vectorization)
    told, known = Quiet(max_steps=4), []
    told.reset(seed=0)
    for _ in range(3):
        *_, info = told.step(0)
        known.append(info.get("lives", known[-1] if known else 3))
    env.reset()
    for before, lives in zip([3, *known], known, strict=False):
        step = env.step(np.zeros(rows, np.int64))
        assert env.lives is not None
        assert env.lives[0] == lives
        assert step.discount[0] == (lives == before)
    env.close()


def test_a_group_of_games_has_no_lives_of_its_own() -> None:
    def make(count: int) -> BatchedEnvironment:
        grouped = functools.partial(GroupedRows, count=count)
        load = suite_gym.load(_rows([0, 1]), env_wrappers=(grouped, EpisodicLife))
        return load(2, 0)

    env = make(1)
    env.reset()
    assert env.lives is not None
    assert env.lives.tolist() == [3, 3]
    with pytest.raises(ValueError, match=r"info\['lives'\]"):
        make(2).reset()
