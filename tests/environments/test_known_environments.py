"""The environments made for tests say what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from alf.environments import BatchedEnvironment
from alf.environments.suite_unittest import (
    ActionType,
    PolicyUnittestEnv,
    RNNPolicyUnittestEnv,
    UnittestEnv,
    ValueUnittestEnv,
)
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter

_KINDS = (ValueUnittestEnv, PolicyUnittestEnv, RNNPolicyUnittestEnv)


def _clock(env: BatchedEnvironment, action: np.ndarray, steps: int) -> list[tuple[int, float]]:
    played = [env.reset()] + [env.step(action) for _ in range(steps - 1)]
    for step in played:
        assert len(set(step.step_type.tolist())) == len(set(step.discount.tolist())) == 1
    return [(int(step.step_type[0]), float(step.discount[0])) for step in played]


@pytest.mark.parametrize("action_type", list(ActionType))
@pytest.mark.parametrize("kind", _KINDS)
def test_clock_and_specs(kind: type[UnittestEnv], action_type: ActionType) -> None:
    env = kind(3, 5, action_type=action_type, obs_dim=2)
    spec = env.action_spec()
    assert (spec.shape, spec.minimum, spec.maximum) == ((1,), 0, 1)
    assert spec.dtype == (np.int64 if action_type is ActionType.Discrete else np.float32)
    first = env.reset()
    assert first.observation.shape == (3, 2)
    assert first.observation.dtype == first.reward.dtype == first.discount.dtype == np.float32
    episode = [(0, 1.0), (1, 1.0), (1, 1.0), (1, 1.0), (2, 0.0)]
    assert _clock(env, np.zeros((3, 1), spec.dtype), 12) == episode * 2 + episode[:2]


def test_value_env_rewards_every_step() -> None:
    env = ValueUnittestEnv(2, 3)
    for step in [env.reset()] + [env.step(np.zeros((2, 1), np.int64)) for _ in range(7)]:
        assert step.reward.tolist() == [1, 1]
        assert (step.observation == 1).all()


@pytest.mark.parametrize("action_type", list(ActionType))
def test_policy_env_rewards_repeating_the_observation(action_type: ActionType) -> None:
    env = PolicyUnittestEnv(16, 6, action_type=action_type, seed=3)
    before, bits = env.reset(), []
    assert (before.reward == 0).all()
    for t in range(30):
        action = before.observation if t % 2 else 1 - before.observation
        step = env.step(action.astype(env.action_spec().dtype))
        expected = 0.0 if step.step_type[0] == 0 else float(t % 2)
        assert step.reward.tolist() == [expected] * 16
        bits.append(step.observation)
        before = step
    assert set(np.unique(bits)) == {0.0, 1.0}
    assert 0.4 < np.mean(bits) < 0.6
    half = PolicyUnittestEnv(2, 6, action_type=ActionType.Continuous)
    half.reset()
    assert half.step(np.full((2, 1), 0.5, np.float32)).reward.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("gap", [0, 2, 3])
def test_memory_env_rewards_recall_after_the_gap(gap: int) -> None:
    env = RNNPolicyUnittestEnv(8, 6, gap=gap, obs_dim=2, seed=3)
    for _ in range(3):
        first = env.reset()
        assert set(np.unique(first.observation)) == {-1.0, 1.0}
        assert (first.observation[:, 0] == first.observation[:, 1]).all()
        assert (first.reward == 0).all()
        right = (first.observation[:, :1] > 0).astype(np.int64)
        for clock in range(1, 6):
            step = env.step(right if clock % 2 else 1 - right)
            assert step.reward.tolist() == [float(clock > gap and clock % 2)] * 8
            assert (step.observation == 0).all()


def test_seeds_of_test_envs() -> None:
    def stream(seed: int | None) -> list[float]:
        env = PolicyUnittestEnv(4, 5, seed=seed)
        return [step.observation.tolist() for step in [env.reset(), *(env.step(np.zeros(4)) for _ in range(20))]]

    assert stream(1) == stream(1) != stream(2)
    assert stream(None) != stream(None)


@pytest.mark.parametrize("sizes", [(2, 1, 1), (0, 3, 1), (2, 3, 0)])
def test_bad_sizes(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="batch_size >= 1"):
        ValueUnittestEnv(*sizes)
    with pytest.raises(ValueError, match="gap must be in"):
        RNNPolicyUnittestEnv(2, 4, gap=3)
    with pytest.raises(ValueError, match="CountingEnvironment needs"):
        CountingEnvironment(2, episode_lengths=[0])


def test_counting_env_against_a_plain_loop() -> None:
    lengths, terminate = (2, 1, 3), (True, False)
    env = CountingEnvironment(4, 10, lengths, terminate, num_actions=3, dtype=np.int64)
    rng = np.random.default_rng(0)
    where = [(10 + row, 0, 0) for row in range(4)]
    step = env.reset()
    for _ in range(40):
        assert step.observation.tolist() == [list(position) for position in where]
        action = rng.integers(3, size=4)
        step = env.step(action)
        for row, (stream, episode, position) in enumerate(where):
            length = lengths[(stream + episode) % 3]
            if position == length:
                where[row] = (stream, episode + 1, 0)
                assert (step.step_type[row], step.reward[row], step.discount[row]) == (0, 0, 1)
                continue
            where[row] = (stream, episode, position + 1)
            ended = position + 1 == length
            assert step.step_type[row] == (2 if ended else 1)
            assert step.discount[row] == float(not (ended and terminate[(stream + episode) % 2]))
            assert step.reward[row] == position + 1 + action[row] / 64
    with pytest.raises(ValueError, match="takes 4 actions"):
        env.step(np.full(4, 3))


def test_faults_happen_once_over_rebuilds() -> None:
    counter = StepCounter()
    happened = []
    for _ in range(3):
        env = FaultyEnvironment(CountingEnvironment(2), raise_at=[2, 4], nan_at=[5], counter=counter)
        env.reset()
        try:
            while True:
                if np.isnan(env.step(np.zeros(2, np.int64)).reward).any():
                    happened.append("nan")
                    break
        except RuntimeError:
            happened.append("raised")
    assert happened == ["raised", "raised", "nan"]
    assert counter.value == 6
