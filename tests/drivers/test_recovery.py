"""Interrupts, half-made drivers, and what is left in memory."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.rl_algorithm import ROLLOUT
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.testing import CountingEnvironment, FaultyEnvironment
from alf.utils import tracing
from tests.algorithms.networks import ppo, specs_of
from tests.drivers.counting import CountingAlgorithm, check_batches, make_envs


@pytest.mark.parametrize("mode", ["async", "sync", "lockstep"])
def test_an_interrupt_while_the_learner_waits_loses_nothing(mode: str) -> None:
    """Ctrl-C in run_async, in the middle of a batch; the next call goes on where that one was."""
    envs = [FaultyEnvironment(e, sleep_per_step=0.01) for e in make_envs(3, 2)]
    algorithm = CountingAlgorithm(envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 4, 3, mode=mode, random_seed=1)
    driver.start()
    take, calls = driver._queues.learn_queue.dequeue, [0]

    def interrupted(timeout: float) -> Any:
        # A wait that ends without a segment counts for nothing: how many there are depends on the machine.
        segment = None if calls[0] % 5 == 4 else take(timeout)
        calls[0] += 1
        if segment is None:
            raise KeyboardInterrupt
        return segment

    driver._queues.learn_queue.dequeue = interrupted  # type: ignore[method-assign]
    try:
        for _ in range(12):
            try:
                driver.run_async()
            except KeyboardInterrupt:
                continue
            algorithm.train()
    finally:
        driver.stop()
    assert len(algorithm.batches) >= 7
    check_batches(algorithm.batches, True)


def _with_interrupt(function: Any, after: int) -> Any:
    """`function`; its call number `after` gets a Ctrl-C when it has done its work."""
    calls = [0]

    def call(*args: Any) -> Any:
        result = function(*args)
        # Calls that time out count for nothing: how many there are depends on the machine.
        calls[0] += 1
        if calls[0] == after:
            signal.raise_signal(signal.SIGINT)
        return result

    return call


@pytest.mark.parametrize("mode", ["async", "sync", "lockstep"])
@pytest.mark.parametrize("moment", ["asked", "taken", "logged", "counted", "stacked", "observed"])
def test_an_interrupt_between_two_waits_loses_and_doubles_nothing(mode: str, moment: str) -> None:
    """A real signal, at the worst moments: once each in the third batch, of three segments."""
    envs, heard = make_envs(3, 2), []
    algorithm = CountingAlgorithm(envs[0])
    observers = [lambda exp, thread: heard.append(thread)]
    driver = AsyncOffPolicyDriver(
        envs, algorithm, 0, 4, 3, mode=mode, random_seed=1, observers=observers, stall_timeout_secs=10.0
    )
    driver.start()
    owner, name, after = {
        "asked": (driver._collection, "request_batch", 3),
        "taken": (driver._queues.learn_queue, "dequeue", 8),
        "logged": (driver._queues.log_queue, "enqueue", 8),
        "counted": (driver._lag, "add", 8),
        "stacked": (driver, "_stacked", 3),
        "observed": (algorithm, "observe", 3),
    }[moment]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    setattr(owner, name, _with_interrupt(getattr(owner, name), after))
    interrupts = 0
    try:
        while len(algorithm.batches) < 8:
            try:
                driver.run_async()
            except KeyboardInterrupt:
                interrupts += 1
            if len(algorithm.batches) > int(algorithm.iterations):
                algorithm.train()
    finally:
        signal.signal(signal.SIGINT, before)
        driver.stop()
    assert interrupts == 1
    check_batches(algorithm.batches, True)
    assert len(heard) == driver.lag_histogram().sum() / 4 == 8 * 3
    assert driver.stats()["env_steps"] == 8 * 3 * 4 * 2
    if mode != "async":
        assert driver.stats()["lag_max"] == (mode == "lockstep")


def test_an_interrupted_unroll_starts_the_stream_anew() -> None:
    class Interrupting(CountingEnvironment):
        at = 7

        def _step(self, action: Any) -> Any:
            self.at -= 1
            if self.at == 0:
                raise KeyboardInterrupt
            return super()._step(action)

    env = Interrupting(1, episode_lengths=[20])
    algorithm = CountingAlgorithm(env)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=5, stepping="host", random_seed=1)
    with pytest.raises(KeyboardInterrupt):
        driver.run(15)
    driver.run(10)
    driver.stop()
    assert [int(s) for s in algorithm.batches[-1].step_type[0, :, 0]] == [0, 1, 1, 1, 1]


def test_an_error_of_acting_is_not_taken_for_an_earlier_one_of_the_environment() -> None:
    class Failing(CountingEnvironment):
        steps = 0

        def _step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == 3:
                raise ValueError("the environment's")
            return super()._step(action)

    class Acting(CountingAlgorithm):
        def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
            if mode == ROLLOUT:
                observation = tf.debugging.check_numerics(time_step.observation / (9.0 - env.spoil), "the policy's")
                time_step = time_step._replace(observation=observation)
            return super().rollout(time_step, state, mode)

    env = Failing(1, episode_lengths=[20])
    env.spoil = tf.Variable(0.0, trainable=False)
    algorithm = Acting(env)
    algorithm.spoil = env.spoil
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=4, stepping="graph", random_seed=1)
    with pytest.raises(ValueError, match="the environment's"):
        driver.run()
    driver.run()
    env.spoil.assign(9.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the policy's"):
        driver.run()
    driver.stop()


def test_a_stopped_driver_publishes_no_more() -> None:
    envs = make_envs(1, 1)
    algorithm = CountingAlgorithm(envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 2, 1, random_seed=1)
    driver.start()
    driver.run_async()
    algorithm.train(clear_replay_buffer=False)
    assert driver.stats()["policy_version"] == 1
    driver.stop()
    algorithm.train()
    assert driver.stats()["policy_version"] == 1


class Uncareful(CountingAlgorithm):
    """Reads a variable in a way that passes by the given weights."""

    how = "gather"

    def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
        if not hasattr(self, "_table"):
            self._table = tf.Variable(tf.zeros([4]), trainable=False)
        policy_step = super().rollout(time_step, state, mode)
        if self.how == "gather":
            extra = tf.gather(self._table, tf.zeros_like(time_step.step_type))
        elif self.how == "inner function":
            extra = tf.function(lambda: self._weight + tf.zeros_like(time_step.reward), autograph=False)()
        else:
            extra = self._weight.assign_add(0.0) + tf.zeros_like(time_step.reward)
        return policy_step._replace(info=policy_step.info._replace(weight=policy_step.info.weight + 0.0 * extra))


@pytest.mark.parametrize("how", ["gather", "assign", "inner function"])
@pytest.mark.parametrize("actors", [0, 1])
def test_acting_on_live_variables_is_refused(how: str, actors: int) -> None:
    envs = make_envs(2, 1)
    algorithm = Uncareful(envs[0])
    algorithm.how = how
    driver = AsyncOffPolicyDriver(envs, algorithm, actors, 4, 1, random_seed=1)
    with pytest.raises(ValueError, match="uses the variables"):
        driver.start()
    driver.stop()


def test_a_stopped_driver_and_its_environments_are_freed() -> None:
    refs = []
    for _ in range(2):
        envs = make_envs(2, 1)
        driver = AsyncOffPolicyDriver(envs, CountingAlgorithm(envs[0]), 0, 2, 1, stepping="graph", random_seed=1)
        driver.start()
        driver.run_async()
        driver.stop()
        refs += [weakref.ref(driver), *[weakref.ref(e) for e in envs]]
        sync = SyncOffPolicyDriver(make_envs(1, 1)[0], CountingAlgorithm(envs[0]), 2, stepping="graph")
        sync.run()
        sync.stop()
        refs.append(weakref.ref(sync))
        del driver, envs, sync
    gc.collect()
    assert [r() for r in refs] == [None] * len(refs)


def test_a_start_that_fails_leaves_a_driver_that_stops_and_closes() -> None:
    closed = []

    class Closing(CountingEnvironment):
        def close(self) -> None:
            closed.append(self)

    class Failing(CountingAlgorithm):
        def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
            if mode == 2 and time_step.reward.shape[0] == 3:
                raise ValueError("cannot be traced")
            return super().rollout(time_step, state, mode)

    envs = [Closing(3), Closing(3, 3)]
    driver = AsyncOffPolicyDriver(envs, Failing(envs[0]), 0, 4, 1)
    assert driver.stats()["policy_version"] == 0
    with pytest.raises(ValueError, match="cannot be traced"):
        driver.start()
    driver.stop()
    driver.stop()
    assert len(closed) == 2
    assert driver.stats()["policy_version"] == 0


def test_environments_made_by_a_factory_are_closed_when_one_does_not_fit() -> None:
    closed, made = [], []

    class Closing(CountingEnvironment):
        def close(self) -> None:
            closed.append(self)

    def env_f() -> Closing:
        made.append(Closing(1 + len(made) // 2))
        return made[-1]

    with pytest.raises(ValueError, match="Environment 2 has batch size 2"):
        AsyncOffPolicyDriver(algorithm=CountingAlgorithm(Closing(1)), num_actor_queues=0, env_f=env_f, num_envs=4)
    assert closed == made
    assert len(made) == 3


def test_a_hang_beside_a_busy_environment_is_noticed() -> None:
    envs = [CountingEnvironment(2), FaultyEnvironment(CountingEnvironment(2, 2), hang_at=[5], hang_secs=12.0)]
    algorithm = CountingAlgorithm(envs[0])
    driver = AsyncOffPolicyDriver(
        envs, algorithm, 0, 4, 1, random_seed=1, stall_timeout_secs=3.0, stop_timeout_secs=0.5
    )
    driver.start()
    deadline = time.monotonic() + 30
    with pytest.raises(TimeoutError, match="environment 1 has not returned"):
        while time.monotonic() < deadline:
            driver.run_async()
            algorithm.batches.clear()
    driver.stop()
    for thread in driver._threads:
        thread.join(20)


@pytest.mark.parametrize("actors", [0, 1])
def test_a_learner_waits_for_a_machine_that_comes_back(actors: int) -> None:
    """With actor threads that need both environments nobody goes on meanwhile, and no clock runs."""

    class Away(FaultyEnvironment):
        until = 0.0

        @property
        def waited_until(self) -> float:
            return time.monotonic() if self.until < 0 else self.until

        def _step(self, action: Any) -> Any:
            first, self.until = self.until == 0.0, self.until or -1.0
            if first:
                time.sleep(4.0)
                self.until = time.monotonic()
            return super()._step(action)

    envs = [CountingEnvironment(2), Away(CountingEnvironment(2, 2))]
    algorithm = CountingAlgorithm(envs[0])
    sizes = (1, 4, 2) if actors else (0, 4, 2)
    driver = AsyncOffPolicyDriver(
        envs, algorithm, *sizes, actor_queue_cap=1 + actors, random_seed=1, stall_timeout_secs=2.5, stepping="host"
    )
    driver.start()
    try:
        for _ in range(3):
            driver.run_async()
            algorithm.batches.clear()
    finally:
        driver.stop()


def test_an_error_of_an_observer_that_drains_after_stop_is_told() -> None:
    seen = []

    def observer(trajectory: Any, thread: int) -> None:
        time.sleep(0.1)
        seen.append(thread)
        if len(seen) == 3:
            raise ValueError("late")

    driver = AsyncOffPolicyDriver(
        make_envs(2, 1), CountingAlgorithm(make_envs(1, 1)[0]), 0, 2, 1, observers=[observer], random_seed=1
    )
    driver.start()
    for _ in range(4):
        driver.run_async()
    with pytest.raises(ValueError, match="late"):
        driver.stop()
    assert len(seen) == 4, "what came after the error was dropped"


def test_stop_may_be_called_from_within_stop() -> None:
    driver = AsyncOffPolicyDriver(make_envs(1, 1), CountingAlgorithm(make_envs(1, 1)[0]), 0, 2, 1, random_seed=1)
    driver.start()
    join = driver._join

    def reentrant() -> None:
        driver._join = join  # type: ignore[method-assign]
        driver.stop()

    driver._join = reentrant  # type: ignore[method-assign]
    stopper = threading.Thread(target=driver.stop)
    stopper.start()
    stopper.join(10)
    assert not stopper.is_alive()


def test_a_run_of_several_segments_is_one_batch_for_the_learner() -> None:
    env = make_envs(1, 2)[0]
    algorithm = ppo(env)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=4, random_seed=1)
    driver.run(max_num_steps=24)
    assert algorithm.train() == 24
    driver.stop()


def test_runs_of_many_segments_are_not_traced_for_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []
    concrete = tracing.Concrete

    def counted(function: Any, *args: Any) -> Any:
        traced.append(len(tf.nest.flatten(args)))
        return concrete(function, *args)

    monkeypatch.setattr(tracing, "Concrete", counted)
    env = make_envs(1, 1)[0]
    driver = SyncOffPolicyDriver(env, CountingAlgorithm(env), exp_replayer="uniform", unroll_length=1, random_seed=1)
    driver.run()
    before = len(traced)
    for steps in (20, 30):
        driver.run(max_num_steps=steps)
    driver.stop()
    assert before > 0
    # Of the graphs made since, as of the memory's, none takes in more than one segment's tensors.
    assert max(traced[before:], default=0) <= max(traced[:before])


def test_clipping_of_a_part_with_its_own_optimizer_holds_inside_an_agent() -> None:
    from alf.algorithms.agent import Agent

    env = make_envs(1, 2)[0]

    def rl(**kwargs: Any) -> Any:
        algorithm = ppo(env, lr=1.0)
        algorithm._optimizers = [tf.keras.optimizers.legacy.SGD(1.0)]
        algorithm._gradient_clipping = 1e-6
        return algorithm

    agent = Agent(*specs_of(env), rl_algorithm_cls=rl)
    before = [v.numpy() for v in agent.trainable_variables]
    driver = SyncOffPolicyDriver(env, agent, unroll_length=4, random_seed=1)
    driver.run()
    agent.train()
    driver.stop()
    moved = np.sqrt(
        sum(float(np.sum((v.numpy() - b) ** 2)) for v, b in zip(agent.trainable_variables, before, strict=False))
    )
    assert 0 < moved < 2e-6


def test_networks_in_a_dict_are_trained_too() -> None:
    env = make_envs(1, 2)[0]
    algorithm = ppo(env)
    algorithm.more = {"a": [tf.keras.layers.Dense(2)]}
    algorithm.more["a"][0].build([1, 3])
    owned = {v.ref() for _, variables in algorithm.optimized_variables() for v in variables}
    assert {v.ref() for v in algorithm.more["a"][0].trainable_variables} <= owned
