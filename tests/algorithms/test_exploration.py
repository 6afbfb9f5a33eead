"""Explorations: distributions, rows of their own, schedules that stand still when nothing is collected."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.agent import Agent
from alf.algorithms.exploration import (
    ActionExploration,
    Boltzmann,
    EpsilonGreedy,
    GaussianNoise,
    LinearSchedule,
    OUNoise,
    ValueExploration,
    exploration_for,
)
from alf.algorithms.parameter_noise import ParameterNoise
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.utils import rng
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import CONTINUOUS, DISCRETE, make

ROWS = 20_000
BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, [-1.0, 0.0], [1.0, 10.0])


def test_epsilon_greedy_tosses_a_coin_for_each_row() -> None:
    values = tf.tile([[0.0, 5.0, 1.0, 2.0]], [ROWS, 1])
    with rng.scope(tf.constant([1, 2])):
        chosen = EpsilonGreedy(0.4)(values).numpy()
    shares = np.bincount(chosen, minlength=4) / ROWS
    np.testing.assert_allclose(shares, [0.1, 0.7, 0.1, 0.1], atol=0.015)
    assert (EpsilonGreedy(0.0)(values).numpy() == 1).all()


def test_boltzmann_draws_by_the_exponential_of_values() -> None:
    values = np.array([0.0, 1.0, 2.0])
    with rng.scope(tf.constant([1, 2])):
        chosen = Boltzmann(0.5)(tf.tile(tf.constant([values], tf.float32), [ROWS, 1])).numpy()
    weights = np.exp(values / 0.5)
    np.testing.assert_allclose(np.bincount(chosen, minlength=3) / ROWS, weights / weights.sum(), atol=0.015)


def test_gaussian_noise_is_relative_to_the_range_and_stays_in_bounds() -> None:
    middle = tf.tile([[0.0, 5.0]], [ROWS, 1])
    with rng.scope(tf.constant([1, 2])):
        action, state = GaussianNoise(0.1)(middle, (), BOX)
        edge, _ = GaussianNoise(0.1)(tf.tile([[1.0, 10.0]], [ROWS, 1]), (), BOX)
    assert state == ()
    np.testing.assert_allclose(np.std(action.numpy(), 0), [0.1, 0.5], rtol=0.03)
    assert edge.numpy().max(0).tolist() == [1.0, 10.0]


def test_ou_noise_is_a_process_of_its_own_in_every_row() -> None:
    exploration, state = OUNoise(0.2, 0.15), tf.zeros([ROWS, 2])
    middle, noise = tf.tile([[0.0, 5.0]], [ROWS, 1]), []
    for i in range(40):
        with rng.scope(tf.constant([i, 2])):
            action, state = exploration(middle, state, BOX)
        noise.append(state.numpy())
    assert np.abs(action.numpy()[:, 1] - 5.0 - noise[-1][:, 1]).max() < 1e-5
    # The stationary deviation of x' = a x + e is sd(e) / sqrt(1 - a^2), the correlation of neighbours a.
    np.testing.assert_allclose(np.std(noise[-1], 0), 0.2 / np.sqrt(1 - 0.85**2), rtol=0.03)
    for one, other in ((noise[-1][:, 0], noise[-2][:, 0]),):
        assert np.corrcoef(one, other)[0, 1] == pytest.approx(0.85, abs=0.02)
    # Rows do not share it: half of the rows say nothing about the other half.
    assert abs(np.corrcoef(noise[-1][: ROWS // 2, 0], noise[-1][ROWS // 2 :, 0])[0, 1]) < 0.05


@pytest.mark.parametrize("unit", ["env_steps", "updates"])
def test_a_schedule_follows_its_clock_only_and_is_checkpointed(unit: str, tmp_path: pathlib.Path) -> None:
    schedule = LinearSchedule(1.0, 0.2, 100, unit)
    other = "updates" if unit == "env_steps" else "env_steps"
    values = []
    for _ in range(6):
        values.append(float(schedule()))
        schedule.advance(unit, 25)
        schedule.advance(other, 1000)
    np.testing.assert_allclose(values, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)
    early = LinearSchedule(1.0, 0.2, 100, unit)
    early.advance(unit, 50)
    path = tf.train.Checkpoint(s=early).write(str(tmp_path / "ckpt"))
    again = LinearSchedule(1.0, 0.2, 100, unit)
    tf.train.Checkpoint(s=again).read(path).assert_consumed()
    assert float(again()) == pytest.approx(0.6)


@pytest.mark.parametrize("final", [1e-8, 1e-4, 0.3, 0.0])
def test_a_schedule_begins_and_ends_where_it_is_to(final: float) -> None:
    schedule = LinearSchedule(1.0, final, 10)
    assert schedule().numpy() == np.float32(1.0)
    schedule.advance("env_steps", 10)
    assert schedule().numpy() == np.float32(final)


def test_a_schedule_of_another_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="'episodes'"):
        LinearSchedule(1.0, 0.0, 10, "episodes")


def test_the_exploration_of_a_kind_of_action() -> None:
    discrete = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
    both = {"discrete": EpsilonGreedy(), "continuous": OUNoise()}
    assert exploration_for(discrete, both, ValueExploration, "a") is both["discrete"]
    assert exploration_for(BOX, both, ActionExploration, "a") is both["continuous"]
    with pytest.raises(ValueError, match=r"continuous actions, only for \['discrete'\]"):
        exploration_for(BOX, {"discrete": EpsilonGreedy()}, ActionExploration, "a")


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3"])
def test_an_empty_mapping_is_no_default(name: str) -> None:
    env = PolicyUnittestEnv(2, 5, action_type=ActionType.Discrete if name == "dqn" else ActionType.Continuous)
    with pytest.raises(ValueError, match=r"no exploration for (discrete|continuous) actions, only for none"):
        make(name, *specs_of(env), exploration={})


def test_a_schedule_has_one_owner() -> None:
    """Two that each let it go on would use it up in half the time."""
    schedule = LinearSchedule(1.0, 0.0, 100)
    EpsilonGreedy(schedule)
    with pytest.raises(ValueError, match=r"ParameterNoise and EpsilonGreedy share the schedule 'schedule'.* its own"):
        ParameterNoise(schedule)


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sarsa"])
def test_algorithms_take_the_exploration_of_their_kind_and_no_other(name: str) -> None:
    kind = ActionType.Discrete if name == "dqn" else ActionType.Continuous
    env = PolicyUnittestEnv(2, 5, action_type=kind)
    both = {"discrete": Boltzmann(), "continuous": GaussianNoise()}
    algorithm = make(name, *specs_of(env), exploration=both)
    assert algorithm._exploration is both["discrete" if name == "dqn" else "continuous"]
    with pytest.raises(ValueError, match=r"explores (by values|around) .* not by (GaussianNoise|Boltzmann)\."):
        make(name, *specs_of(env), exploration=GaussianNoise() if name == "dqn" else Boltzmann())


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sarsa"])
def test_what_is_not_made_is_told_with_how_it_is(name: str) -> None:
    env = PolicyUnittestEnv(2, 5, action_type=ActionType.Discrete if name == "dqn" else ActionType.Continuous)
    own = Boltzmann if name == "dqn" else GaussianNoise
    ways: list[Any] = [own, {"discrete": own, "continuous": own}]
    for way in ways:
        with pytest.raises(ValueError, match=rf"exploration is {own.__name__} .* write @{own.__name__}\(\) with paren"):
            make(name, *specs_of(env), exploration=way)
    for way in (0.1, {"discrete": 0.1, "continuous": 0.1}):
        with pytest.raises(ValueError, match=r"exploration=0\.1 is no exploration: make one, in gin"):
            make(name, *specs_of(env), exploration=way)
    with pytest.raises(ValueError, match=r"parameter_noise is ParameterNoise .* write @ParameterNoise\(\) with paren"):
        make(name, *specs_of(env), parameter_noise=ParameterNoise)
    with pytest.raises(ValueError, match=r"parameter_noise=0\.1 is no ParameterNoise: make one, in gin @Param"):
        make(name, *specs_of(env), parameter_noise=0.1)


@pytest.mark.parametrize("value", [1, 0])
def test_whole_numbers_are_strengths_too(value: int) -> None:
    """Reported among floats, whatever was written."""
    assert tf.convert_to_tensor(EpsilonGreedy(value).strength()).dtype == tf.float32
    assert tf.convert_to_tensor(OUNoise(value).strength()).dtype == tf.float32
    assert tf.convert_to_tensor(GaussianNoise(LinearSchedule(1, 0, 5)).strength()).dtype == tf.float32


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: EpsilonGreedy(1.5), "EpsilonGreedy: epsilon must be at least 0 and at most 1.* got 1.5"),
        (lambda: EpsilonGreedy(LinearSchedule(2.0, 0.1, 5)), "epsilon must .* got 2.0"),
        (lambda: Boltzmann(0.0), "temperature must be above 0.* got 0.0"),
        (lambda: Boltzmann(LinearSchedule(1.0, 0.0, 5)), "also at the end of a schedule; got 0.0"),
        (
            lambda: EpsilonGreedy(LinearSchedule),
            r"EpsilonGreedy: epsilon is LinearSchedule .* @LinearSchedule\(\) with",
        ),
        (lambda: GaussianNoise(LinearSchedule), r"noise_stddev is LinearSchedule .* write @LinearSchedule\(\) with"),
        (lambda: EpsilonGreedy("0.1"), "EpsilonGreedy: epsilon='0.1' must be a number or a schedule"),
        (lambda: GaussianNoise(None), "GaussianNoise: noise_stddev=None must be a number or a schedule"),
        (lambda: GaussianNoise(-0.1), "noise_stddev must be at least 0.* got -0.1"),
        (lambda: OUNoise(float("nan")), "ou_stddev must .* got nan"),
        (lambda: OUNoise(damping=-0.5), "OUNoise: damping must be at least 0 and at most 1; got -0.5"),
        (lambda: OUNoise(damping=float("nan")), "damping must .* got nan"),
    ],
)
def test_strengths_that_mean_nothing_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


def _dqn(schedule: LinearSchedule, seed: int = 0) -> tuple[PolicyUnittestEnv, object]:
    env = PolicyUnittestEnv(4, 5, seed=seed)
    return env, make("dqn", *specs_of(env), epsilon_greedy=schedule)


def test_epsilon_falls_while_collecting_and_stands_still_in_evaluation() -> None:
    schedule = LinearSchedule(1.0, 0.0, 64)
    env, algorithm = _dqn(schedule)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=0)
    try:
        driver.run()
        assert float(schedule()) == pytest.approx(0.5)
        evaluation = PolicyDriver(PolicyUnittestEnv(2, 5, seed=9), algorithm)
        evaluation.run_episodes(4)
        assert float(schedule()) == pytest.approx(0.5)
        algorithm.train(mini_batch_length=1)
        assert float(algorithm.last_train_metrics["epsilon"]) == pytest.approx(0.5)
        driver.run()
        assert float(schedule()) == 0.0
    finally:
        driver.stop()


def test_updates_move_a_schedule_of_updates() -> None:
    schedule = LinearSchedule(1.0, 0.0, 10, "updates")
    env, algorithm = _dqn(schedule)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=0)
    try:
        driver.run()
        algorithm.train(num_updates=3)
    finally:
        driver.stop()
    assert float(schedule()) == pytest.approx(0.7)


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_acting_reads_the_acting_network_only(name: str) -> None:
    env = PolicyUnittestEnv(2, 5, action_type=ActionType.Continuous if name in CONTINUOUS else ActionType.Discrete)
    algorithm = make(name, *specs_of(env))
    network = algorithm._q_network if name in ("dqn", "c51") else algorithm._actor_network
    assert {v.ref() for v in algorithm.acting_variables()} == {v.ref() for v in network.variables}


def test_a_schedule_is_published_with_the_weights() -> None:
    schedule = LinearSchedule(1.0, 0.0, 64)
    _, algorithm = _dqn(schedule)
    assert schedule._clock.ref() in {v.ref() for v in algorithm.acting_variables()}


def test_schedules_inside_of_a_shell_stand_still_with_it() -> None:
    _, algorithm = _dqn(LinearSchedule(1.0, 0.0, 64))
    shell = Agent(algorithm.observation_spec, algorithm.action_spec, lambda **_: algorithm)
    for stands in (True, False):
        shell.exploration_stands = stands
        assert algorithm.exploration_stands is stands
