"""A failing part ends the run within seconds, with its own exception, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.rl_algorithm import ROLLOUT
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.testing import CountingEnvironment, FaultyEnvironment
from tests.awake import awake_secs
from tests.drivers.counting import CountingAlgorithm

LIMIT_SECS = 5.0


class Boom(Exception):
    """What the tests raise."""


class FailingAlgorithm(CountingAlgorithm):
    """Raises at run time, inside the traced code, once the weight has reached `after`."""

    def __init__(self, env: Any, rollout_after: float | None = None, train_after: int | None = None) -> None:
        self.rollout_after, self.train_after = rollout_after, train_after
        super().__init__(env)

    def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
        policy_step = super().rollout(time_step, state, mode)
        if self.rollout_after is None or mode != ROLLOUT:
            return policy_step
        after = self.rollout_after

        def check(weight: Any) -> Any:
            if weight >= after:
                raise Boom("rollout")
            return weight

        weight = tf.numpy_function(check, [policy_step.info.weight[0]], tf.float32)
        weight.set_shape([])
        action = tf.nest.map_structure(lambda a: a + tf.cast(0.0 * weight, a.dtype), policy_step.action)
        return policy_step._replace(action=action)

    def train_from(self, *args: Any, **kwargs: Any) -> int:
        if self.train_after is not None and int(self.iterations) >= self.train_after:
            raise Boom("train")
        return super().train_from(*args, **kwargs)


def _failing_driver(what: str, actors: int, at: int) -> tuple[AsyncOffPolicyDriver, CountingAlgorithm]:
    """A driver in which something goes wrong in step `at` of an environment, or about then."""
    observers, metrics, faults = [], [], {}
    algorithm_faults: dict[str, Any] = {}
    calls = iter(range(10**9))

    def listener(trajectory: Any, thread: int) -> None:
        if next(calls) >= at // 20:
            raise Boom(what)

    if what == "environment raises":
        faults = {"raise_at": range(at, 10**6), "error": Boom(what)}
    elif what == "observer raises":
        observers = [listener]
    elif what == "metric raises":
        metrics = [listener]
    elif what == "rollout raises":
        algorithm_faults = {"rollout_after": at // 40}
    elif what == "train raises":
        algorithm_faults = {"train_after": at // 40}
    envs: list[Any] = [CountingEnvironment(2, 2 * i) for i in range(3)]
    envs[1] = FaultyEnvironment(envs[1], **faults)
    algorithm = FailingAlgorithm(envs[0], **algorithm_faults)
    cap = 1 if not actors else 3 // actors
    driver = AsyncOffPolicyDriver(
        envs, algorithm, actors, 4, 2, cap, observers=observers, metrics=metrics, random_seed=1
    )
    return driver, algorithm


FAULTS = ["environment raises", "observer raises", "metric raises", "rollout raises", "train raises"]


def _names(error: BaseException | None) -> str:
    """An error with all its causes, as text: what TensorFlow wraps keeps the original as text."""
    return "" if error is None else f"{type(error).__name__} {error} " + _names(error.__cause__)


@pytest.mark.parametrize("actors", [0, 1])
@pytest.mark.parametrize("what", FAULTS)
def test_first_error_ends_the_run_with_itself(what: str, actors: int) -> None:
    """In full run, wherever the threads happen to be; chosen moments are in test_fault_matrix.py."""
    driver, algorithm = _failing_driver(what, actors, at=200)
    driver.start()
    begin = awake_secs()
    try:
        with pytest.raises(Exception) as caught:
            for _ in range(2000):
                driver.run_async()
                algorithm.train()
        assert "Boom" in _names(caught.value), _names(caught.value)
        assert "closed" not in str(caught.value).lower()
        if what != "rollout raises":  # TensorFlow turns what Python raises inside a graph into an error of its own
            assert isinstance(caught.value, Boom)
            assert caught.traceback[-1].name in ("_step", "listener", "train_from"), (
                "the traceback is not that of the fault"
            )
        stop = awake_secs()
    finally:
        driver.stop()
    assert awake_secs() - stop < LIMIT_SECS
    assert awake_secs() - begin < 60


def test_stop_raises_an_error_that_run_async_had_no_chance_to_raise_and_only_once() -> None:
    driver, _ = _failing_driver("environment raises", 0, at=2)
    driver.start()
    deadline = time.monotonic() + 10
    while not driver._coord.should_stop() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(Boom):
        driver.stop()
    driver.stop()


def _driver(envs: list[Any] | None = None, **kwargs: Any) -> AsyncOffPolicyDriver:
    envs = envs or [CountingEnvironment(2, 2 * i) for i in range(2)]
    return AsyncOffPolicyDriver(envs, CountingAlgorithm(envs[0]), 0, 4, 2, random_seed=1, **kwargs)


class TestStop:
    """stop() from every state: bounded, idempotent, environments closed once."""

    def test_before_start(self) -> None:
        driver = _driver()
        driver.stop()
        driver.stop()
        with pytest.raises(RuntimeError, match="only once"):
            driver.start()

    def test_before_the_first_batch(self) -> None:
        driver = _driver()
        driver.start()
        driver.stop()

    def test_while_queues_are_full(self) -> None:
        driver = _driver()
        driver.start()
        deadline = time.monotonic() + 10
        while driver.stats()["learn_queue_fill"] < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        driver.stop()

    def test_while_queues_are_empty(self) -> None:
        envs = [FaultyEnvironment(CountingEnvironment(2, 2 * i), sleep_per_step=0.05) for i in range(2)]
        driver = _driver(envs)
        driver.start()
        driver.run_async()
        driver.stop()

    def test_twice_and_from_two_threads_while_the_learner_waits(self) -> None:
        envs = [FaultyEnvironment(CountingEnvironment(2, 2 * i), sleep_per_step=0.2) for i in range(2)]
        driver = _driver(envs)
        driver.start()
        stoppers = [threading.Timer(0.3, driver.stop) for _ in range(2)]
        for stopper in stoppers:
            stopper.start()
        with pytest.raises(RuntimeError, match="was stopped"):
            driver.run_async()
        for stopper in stoppers:
            stopper.join(LIMIT_SECS)
            assert not stopper.is_alive()

    def test_after_an_error(self) -> None:
        driver, _ = _failing_driver("environment raises", 1, at=2)
        driver.start()
        with pytest.raises(Boom):
            for _ in range(100):
                driver.run_async()
        driver.stop()
        driver.stop()

    def test_start_twice_and_run_after_stop_say_so(self) -> None:
        driver = _driver()
        driver.start()
        with pytest.raises(RuntimeError, match="only once"):
            driver.start()
        driver.stop()
        with pytest.raises(RuntimeError, match="stopped"):
            driver.run_async()
        with pytest.raises(RuntimeError, match="run_async"):
            driver.run()

    @pytest.mark.parametrize("started", [False, True])
    def test_each_environment_is_closed_exactly_once(self, started: bool) -> None:
        closed: list[int] = []

        class Closing(CountingEnvironment):
            def close(self) -> None:
                closed.append(id(self))

        built = []

        def env_f() -> Closing:
            built.append(Closing(2))
            return built[-1]

        driver = AsyncOffPolicyDriver(
            algorithm=CountingAlgorithm(CountingEnvironment(2)), num_actor_queues=0, env_f=env_f, num_envs=3
        )
        if started:
            driver.start()
            driver.run_async()
        driver.stop()
        assert sorted(closed) == sorted(id(e) for e in built)
        assert len(built) == 3


def test_a_driver_has_one_learner() -> None:
    envs = [FaultyEnvironment(CountingEnvironment(2, 2 * i), sleep_per_step=0.1) for i in range(2)]
    driver = _driver(envs)
    driver.start()
    try:
        other = threading.Thread(target=driver.run_async)
        other.start()
        time.sleep(0.1)
        with pytest.raises(RuntimeError, match="one learner"):
            driver.run_async()
        other.join(10)
    finally:
        driver.stop()


def test_environments_that_were_made_here_are_closed_where_the_driver_cannot_be() -> None:
    closed: list[Any] = []

    class Closing(CountingEnvironment):
        def close(self) -> None:
            closed.append(self)

    algorithm = CountingAlgorithm(Closing(2))
    with pytest.raises(ValueError, match="exp_replayer='unifrom' is not one of"):
        AsyncOffPolicyDriver(algorithm=algorithm, env_f=lambda: Closing(2), num_envs=2, exp_replayer="unifrom")
    assert len(closed) == 2
    with pytest.raises(ValueError, match="exp_replayer='unifrom' is not one of"):
        AsyncOffPolicyDriver([Closing(2)], algorithm, exp_replayer="unifrom")
    assert len(closed) == 2, "what was given is its owner's"


def test_what_an_interrupt_leaves_half_taken_is_logged_once_and_learned_from() -> None:
    env = CountingEnvironment(2)
    algorithm = CountingAlgorithm(env)
    seen: list[Any] = []
    driver = AsyncOffPolicyDriver(
        [env], algorithm, 0, 4, 1, mode="sync", random_seed=1, observers=[lambda t, thread: seen.append(t.observation)]
    )
    add = driver._lag.add

    def interrupted(*args: Any) -> Any:
        driver._lag.add = add  # type: ignore[method-assign]
        raise KeyboardInterrupt

    driver.start()
    try:
        driver.run_async()
        driver._lag.add = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            driver.run_async()
        for _ in range(2):
            driver.run_async()
    finally:
        driver.stop()
    assert len(algorithm.batches) == len(seen) == 3
    for batch, logged in zip(algorithm.batches, seen, strict=True):
        np.testing.assert_array_equal(batch.observation[0], logged)
    assert driver.get_metrics()[1].result() == sum(np.count_nonzero(b.step_type != 2) for b in algorithm.batches)
