"""Given actions are played and recorded; what else is recorded is the policy's."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.data_structures import Experience, StepType
from alf.drivers.arguments import check_workers
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.drivers.teaching import Teacher
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from tests.algorithms.networks import feed_forward, specs_of
from tests.algorithms.off_policy import adam

ROWS, LENGTH = 6, 9


def right(time_step: Any, action: np.ndarray) -> np.ndarray:
    """What earns in PolicyUnittestEnv."""
    return np.round(time_step.observation)


def algorithm_for(env: Any) -> ActorCriticAlgorithm:
    actor, value = feed_forward(*specs_of(env))
    loss = ActorCriticLoss(specs_of(env)[1], use_vtrace=True)
    return ActorCriticAlgorithm(*specs_of(env), actor, value, loss=loss, optimizer=adam(1e-2))


@pytest.fixture
def drivers() -> Iterator[list[SyncOffPolicyDriver]]:
    made: list[SyncOffPolicyDriver] = []
    yield made
    for driver in made:
        driver.stop()


def taught(teacher: Any, drivers: list[SyncOffPolicyDriver], stepping: str = "graph") -> tuple[Any, list[Experience]]:
    env = PolicyUnittestEnv(ROWS, 5, seed=0)
    algorithm = algorithm_for(env)
    seen: list[Experience] = []
    algorithm.add_experience_observer(seen.append)
    driver = SyncOffPolicyDriver(env, algorithm, LENGTH, random_seed=0, stepping=stepping, teacher=teacher)
    drivers.append(driver)
    return driver, seen


@pytest.mark.parametrize("stepping", ["graph", "host"])
def test_given_actions_are_played_and_recorded(stepping: str, drivers: list[SyncOffPolicyDriver]) -> None:
    driver, seen = taught(right, drivers, stepping)
    driver.run()
    exp = tf.nest.map_structure(lambda x: x[0].numpy(), seen[0]._replace(bootstrap=(), state=()))
    np.testing.assert_array_equal(exp.action, exp.observation.astype(np.int64))
    # Played: every action earns; and each step knows the action before it, but for the first of an episode.
    first = exp.step_type == StepType.FIRST
    np.testing.assert_array_equal(exp.reward, np.where(first, 0.0, 1.0))
    np.testing.assert_array_equal(exp.prev_action[1:][~first[1:]], exp.action[:-1][~first[1:]])
    # Recorded with it: the distribution of the policy, which is learned from as if it had chosen so.
    logits = exp.rollout_info.action_distribution["logits"]
    expected = driver._algorithm._actor_network(exp.observation.reshape(-1, 1), step_type=(), network_state=())[
        0
    ].logits
    np.testing.assert_allclose(logits.reshape(-1, 2), expected.numpy().reshape(-1, 2), atol=1e-5)
    driver._algorithm.train()
    assert float(driver._algorithm.last_train_metrics["importance_ratio"]) == pytest.approx(1.0, abs=1e-5)


def test_a_teacher_may_step_in_for_some_rows_only(drivers: list[SyncOffPolicyDriver]) -> None:
    own: list[np.ndarray] = []

    def some(time_step: Any, action: np.ndarray) -> np.ndarray:
        own.append(action.copy())
        action = action.copy()
        action[:2] = right(time_step, action)[:2]
        return action

    driver, seen = taught(some, drivers)
    driver.run()
    exp, chosen = seen[0], np.stack(own[-LENGTH:])
    np.testing.assert_array_equal(exp.action[0, :, 2:], chosen[:, 2:])
    np.testing.assert_array_equal(exp.action[0, :, :2], exp.observation[0, :, :2].numpy().astype(np.int64))
    assert (chosen[:, :2] != exp.action[0, :, :2].numpy()).any()


def test_a_policys_own_action_may_be_given_back_wherever_it_was_sampled(drivers: list[SyncOffPolicyDriver]) -> None:
    """A normal distribution has no bounds: what it gives is clipped only on its way to the environment."""
    env = PolicyUnittestEnv(ROWS, 5, action_type=ActionType.Continuous, seed=0)
    seen: list[Experience] = []
    algorithm = algorithm_for(env)
    algorithm.add_experience_observer(seen.append)
    driver = SyncOffPolicyDriver(env, algorithm, LENGTH, random_seed=0, teacher=lambda _, action: action)
    drivers.append(driver)
    driver.run()
    action = seen[0].action.numpy()
    assert (action < 0.0).any()
    assert (action > 1.0).any()


@pytest.mark.parametrize("stepping", ["graph", "host"])
def test_a_teacher_may_write_into_what_it_gets(stepping: str, drivers: list[SyncOffPolicyDriver]) -> None:
    def careless(time_step: Any, action: np.ndarray) -> np.ndarray:
        given = right(time_step, action)
        for leaf in (time_step.observation, time_step.reward, action):
            leaf[...] = 77
        return given

    driver, seen = taught(careless, drivers, stepping)
    driver.run()
    assert set(np.unique(seen[0].observation)) <= {0.0, 1.0}
    np.testing.assert_array_equal(seen[0].action, seen[0].observation.numpy().astype(np.int64))
    assert set(np.unique(seen[0].reward)) <= {0.0, 1.0}


def test_random_acting_asks_no_teacher(drivers: list[SyncOffPolicyDriver]) -> None:
    def never(time_step: Any, action: np.ndarray) -> np.ndarray:
        raise AssertionError("asked")

    driver, seen = taught(never, drivers)
    driver.gather(at_random=True)
    assert len(seen) == 1


class OutOfAnswersError(Exception):
    pass


def test_what_a_teacher_does_wrong_is_told(drivers: list[SyncOffPolicyDriver]) -> None:
    driver, _ = taught(lambda _, action: action[:2], drivers)
    with pytest.raises(ValueError, match=r"actions of shape \(2, 1\), not \(6, 1\)"):
        driver.run()
    driver, _ = taught(lambda _, action: action + 2, drivers)
    with pytest.raises(ValueError, match=r"which is not within \[0, 1\]"):
        driver.run()

    driver, _ = taught(lambda _, action: action * 0.0 + 0.9, drivers)
    with pytest.raises(ValueError, match=r"A teacher gave 0\.9, and actions are whole numbers"):
        driver.run()
    driver, _ = taught(lambda _, action: {"left": action}, drivers)
    with pytest.raises(ValueError, match=r"actions of shape \(\), not \(6, 1\)"):
        driver.run()
    action = {"left": np.zeros(2, np.int64)}
    teacher = Teacher(
        lambda _, action: {"right": action["left"]}, {"left": tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)}
    )
    with pytest.raises(ValueError, match=r"A teacher gave \{'right': .*: give a nest of arrays like .*\{'left'"):
        teacher._given(np.int32(0), None, action)

    def fails(time_step: Any, action: np.ndarray) -> np.ndarray:
        raise OutOfAnswersError("no idea") from ValueError("nobody there")

    driver, _ = taught(fails, drivers)
    with pytest.raises(OutOfAnswersError, match="no idea") as caught:
        driver.run()
    assert "nobody there" in str(caught.value.__cause__)


def test_a_teacher_may_give_a_list(drivers: list[SyncOffPolicyDriver]) -> None:
    driver, seen = taught(lambda time_step, action: right(time_step, action).tolist(), drivers)
    driver.run()
    np.testing.assert_array_equal(seen[0].action, seen[0].observation.numpy().astype(np.int64))


def test_whoever_may_take_as_long_as_people_do_is_asked_outside_of_the_graph(
    drivers: list[SyncOffPolicyDriver],
) -> None:
    """Inside of it an interrupt would be heard when the segment is over."""

    def interrupts(time_step: Any, action: np.ndarray) -> np.ndarray:
        asked.append(1)
        if len(asked) == LENGTH + 3:
            signal.raise_signal(signal.SIGINT)
        return right(time_step, action)

    asked: list[int] = []
    driver, _ = taught(interrupts, drivers, "auto")
    driver.run()
    # A process in the background of a shell ignores it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.run()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(asked) <= LENGTH + 4


# ---- several environments at once ----


def taught_beside(
    teacher: Any, actors: int, stepping: str, **kwargs: Any
) -> tuple[AsyncOffPolicyDriver, list[Experience]]:
    envs = [PolicyUnittestEnv(ROWS, 5, seed=i) for i in range(2)]
    algorithm = algorithm_for(envs[0])
    seen: list[Experience] = []
    algorithm.add_experience_observer(seen.append)
    driver = AsyncOffPolicyDriver(
        envs, algorithm, actors, LENGTH, 2, random_seed=0, stepping=stepping, teacher=teacher, **kwargs
    )
    return driver, seen


@pytest.mark.parametrize(("actors", "stepping"), [(0, "graph"), (0, "host"), (1, "graph"), (2, "host")])
def test_a_teacher_is_asked_for_every_environment(actors: int, stepping: str) -> None:
    busy, rows, beside = threading.Lock(), set(), []

    def teach(time_step: Any, action: np.ndarray) -> np.ndarray:
        beside.append(not busy.acquire(blocking=False))
        rows.add(tuple(time_step.env_id.tolist()))
        answer = right(time_step, action)
        busy.release()
        return answer

    driver, seen = taught_beside(teach, actors, stepping)
    driver.start()
    try:
        for _ in range(3):
            driver.run_async()
            driver._algorithm.train()
    finally:
        driver.stop()
    assert not any(beside), "one after the other"
    assert rows <= {tuple(range(i, i + ROWS)) for i in (0, ROWS)}
    for batch in seen:
        exp = tf.nest.map_structure(lambda x: x.numpy(), batch._replace(bootstrap=(), state=()))
        np.testing.assert_array_equal(exp.action, exp.observation.astype(np.int64))
        first = exp.step_type == StepType.FIRST
        np.testing.assert_array_equal(exp.reward, np.where(first, 0.0, 1.0))
        logits = exp.rollout_info.action_distribution["logits"]
        assert np.abs(logits).max() < 20.0, "the policy's own, not that of what was played"


@pytest.mark.parametrize("mode", ["sync", "lockstep"])
def test_random_segments_ask_no_teacher(mode: str) -> None:
    def never(time_step: Any, action: np.ndarray) -> np.ndarray:
        raise AssertionError("asked")

    driver, seen = taught_beside(never, 0, "graph", mode=mode)
    driver.act_at_random(True)
    driver.start()
    try:
        driver.run_async()
    finally:
        driver.stop()
    assert len(seen) == 1


@pytest.mark.parametrize(("actors", "stepping"), [(0, "graph"), (0, "host"), (1, "graph")])
def test_a_teacher_that_fails_ends_the_driver_with_its_own_error(actors: int, stepping: str) -> None:
    def fails(time_step: Any, action: np.ndarray) -> np.ndarray:
        raise OutOfAnswersError("no idea")

    driver, _ = taught_beside(fails, actors, stepping)
    driver.start()
    try:
        with pytest.raises(OutOfAnswersError, match="no idea"):
            driver.run_async()
    finally:
        driver.stop()


def test_a_teacher_that_does_not_answer_is_named() -> None:
    over = threading.Event()

    def sleeps(time_step: Any, action: np.ndarray) -> np.ndarray:
        over.wait(60)
        return right(time_step, action)

    driver, _ = taught_beside(sleeps, 0, "auto", stall_timeout_secs=1.0)
    driver.start()
    try:
        with pytest.raises(TimeoutError, match=r"teacher of environment [01] "):
            driver.run_async()
    finally:
        over.set()
        driver.stop()


def test_workers_have_no_teacher() -> None:
    with pytest.raises(ValueError, match="A teacher is asked in this process, and workers act in theirs"):
        check_workers("async", 2, 2, taught=True)
