"""Playing a policy: the same between calls of TensorFlow and from inside the graph, to the very step that is asked for."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import PolicyStep, TimeStep
from alf.drivers import policy_driver
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.testing import CountingEnvironment
from alf.environments.utils import create_environment
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import make
from tests.drivers.counting import TERMINATE, CountingAlgorithm, Walker, make_envs

# Enough to be past the steps that are measured, and to need more than one call.
STEPS = 200


@pytest.fixture(params=["host", "graph"])
def stepping(request, monkeypatch):
    """How the environment is stepped once it has been measured, whatever the machine does meanwhile."""
    monkeypatch.setattr(policy_driver, "SLOW_STEP_SECS", {"host": -1.0, "graph": math.inf}[request.param])
    return request.param


def _driver(env: Any = None, **kwargs: Any) -> tuple[PolicyDriver, list[Any]]:
    env = env or make_envs(1, 2)[0]
    steps: list[Any] = []
    return PolicyDriver(
        env, CountingAlgorithm(env), [steps.append], mode=PolicyDriver.OFF_POLICY_TRAINING, random_seed=3, **kwargs
    ), steps


def _flat(steps: list[Any]) -> dict[str, np.ndarray]:
    names = ("step_type", "observation", "action", "next_step_type", "reward", "discount")
    return {name: np.stack([np.asarray(getattr(step, name)) for step in steps]) for name in names}


def _check(steps: list[Any]) -> None:
    """Walks each stream by the rules of the environment alone."""
    rows = _flat(steps)
    for b in range(2):
        walker = Walker(b)
        arrived = (0.0, 1.0)
        for t in range(len(steps)):
            seen = {name: rows[name][t, b] for name in ("observation", "step_type")}
            prev_action = 0 if walker.position == 0 else walker.prev_action
            walker.expect(
                {**seen, "env_id": b, "prev_action": prev_action, "reward": arrived[0], "discount": arrived[1]}
            )
            walker.act(int(rows["action"][t, b]))
            arrived = (rows["reward"][t, b], rows["discount"][t, b])


def test_both_ways_play_the_same(monkeypatch):
    played = {}
    for way, secs in (("host", -1.0), ("graph", math.inf)):
        monkeypatch.setattr(policy_driver, "SLOW_STEP_SECS", secs)
        driver, steps = _driver()
        time_step, state = driver.predict(2 * STEPS)
        assert len(steps) == STEPS
        _check(steps)
        # The state counts the steps of the episode that were acted at.
        np.testing.assert_array_equal(state, steps[-1].observation[:, 2] + 1)
        played[way] = {**_flat(steps), "state": state.numpy(), "prev_action": time_step.prev_action.numpy()}
    for name, value in played["host"].items():
        np.testing.assert_array_equal(value, played["graph"][name], err_msg=name)
    assert len(np.unique(played["graph"]["action"])) == 5, "actions are sampled anew at each step"


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_both_ways_play_the_same_to_the_last_bit(name, monkeypatch):
    """Rewards and actions that are no whole numbers, by real networks, which TensorFlow may rewrite outside of loops."""
    played = {}
    for way, secs in (("host", -1.0), ("graph", math.inf)):
        monkeypatch.setattr(policy_driver, "SLOW_STEP_SECS", secs)
        tf.keras.utils.set_random_seed(3)
        env = create_environment("Pendulum-v1" if name == "sac" else "CartPole-v1", num_parallel_environments=2, seed=5)
        steps: list[Any] = []
        driver = PolicyDriver(env, make(name, *specs_of(env)), [steps.append], epsilon_greedy=0.2, random_seed=3)
        driver.predict(2 * STEPS)
        played[way] = _flat(steps)
    for field, value in played["host"].items():
        np.testing.assert_array_equal(value, played["graph"][field], err_msg=field)


def test_in_one_go_or_step_by_step(stepping):
    driver, at_once = _driver()
    driver.predict(2 * STEPS)
    driver, one_by_one = _driver()
    position: tuple[Any, Any] = (None, None)
    for _ in range(STEPS):
        position = driver.predict(1, *position)
    for name, value in _flat(at_once).items():
        np.testing.assert_array_equal(value, _flat(one_by_one)[name], err_msg=name)


@pytest.mark.parametrize("last", [0, 1, 9, 64, 72, 73, 150])
def test_it_ends_after_the_step_that_ends_it(last, stepping):
    driver, steps = _driver()
    driver.predict_until(lambda: len(steps) >= last)
    assert len(steps) == last
    driver.predict_until(lambda: False, 3)
    assert len(steps) == last + 3


def test_whole_episodes(stepping):
    driver, steps = _driver()
    ended = 0
    for _ in range(2):
        before = len(steps)
        driver.run_episodes(STEPS // 4)
        ends = np.cumsum([np.count_nonzero((s.next_step_type == 2) & (s.step_type != 2)) for s in steps[before:]])
        assert ends[-2] < STEPS // 4 <= ends[-1]
        ended += ends[-1]
    assert int(driver.get_metrics()[0].result()) == ended


def test_what_is_played_after_a_restart_is_that_of_a_new_driver(stepping):
    driver, steps = _driver()
    driver.predict(10)
    steps.clear()
    driver.restart(make_envs(1, 2)[0], 3)
    driver.predict(2 * STEPS)
    new, expected = _driver()
    new.predict(2 * STEPS)
    for name, value in _flat(steps).items():
        np.testing.assert_array_equal(value, _flat(expected)[name], err_msg=name)


class Asked(CountingAlgorithm):
    """Its actions tell what it was asked for: 1 to act, or eight times the chance of a sampled action to play."""

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        step = super().rollout(time_step, state, mode)
        return step._replace(action=tf.ones_like(step.action))

    def predict(self, inputs: Any, state: Any = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        step = super().rollout(inputs, state, PolicyDriver.ON_POLICY_TRAINING)
        return step._replace(action=tf.fill(tf.shape(step.action), tf.constant(int(8 * epsilon_greedy), tf.int64)))


@pytest.mark.parametrize(
    ("mode", "action"),
    [(PolicyDriver.PREDICT, 4), (PolicyDriver.ON_POLICY_TRAINING, 1), (PolicyDriver.OFF_POLICY_TRAINING, 1)],
)
def test_it_plays_or_acts_as_it_is_told(mode, action):
    env = make_envs(1, 2)[0]
    steps: list[Any] = []
    PolicyDriver(env, Asked(env), [steps.append], epsilon_greedy=0.5, mode=mode).predict(8)
    np.testing.assert_array_equal(_flat(steps)["action"], np.full((4, 2), action))


def test_nothing_is_observed_in_any_mode_and_training_says_what_collects():
    env = make_envs(1, 2)[0]
    algorithm = CountingAlgorithm(env)
    algorithm.set_exp_replayer("one_time", 2)
    for mode in (PolicyDriver.PREDICT, PolicyDriver.ON_POLICY_TRAINING, PolicyDriver.OFF_POLICY_TRAINING):
        PolicyDriver(env, algorithm, mode=mode).predict(8)
    assert not algorithm.batches
    with pytest.raises(
        ValueError, match=r"nothing to replay: run a driver that collects first, such as SyncOffPolicyDriver"
    ):
        algorithm.train()


class Failing(CountingEnvironment):
    """Raises at its 40th step."""

    taken = 0

    def _step(self, action: Any) -> TimeStep:
        self.taken += 1
        if self.taken == 40:
            raise ArithmeticError("the environment broke")
        return super()._step(action)


def test_an_error_keeps_its_traceback(stepping):
    driver, steps = _driver(Failing(2, 0, (3, 5), TERMINATE))
    with pytest.raises(ArithmeticError, match="the environment broke") as raised:
        driver.predict(2 * STEPS)
    assert raised.traceback[-1].name == "_step"
    assert len(steps) == 39

    def broken(step: Any) -> None:
        raise LookupError("the observer broke")

    driver, _ = _driver(metrics=[broken])
    with pytest.raises(LookupError, match="the observer broke"):
        driver.predict(2)


class OneBuffer(CountingEnvironment):
    """Hands out one array again and again."""

    buffer: np.ndarray | None = None

    def _into(self, time_step: TimeStep) -> TimeStep:
        if self.buffer is None:
            self.buffer = np.zeros_like(time_step.observation)
        self.buffer[...] = time_step.observation
        return time_step._replace(observation=self.buffer)

    def _reset(self) -> TimeStep:
        return self._into(super()._reset())

    def _step(self, action: Any) -> TimeStep:
        return self._into(super()._step(action))


def test_an_environment_may_write_to_what_it_gave(stepping):
    driver, steps = _driver(OneBuffer(2, 0, (3, 5, 1, 4), TERMINATE))
    driver.predict(2 * STEPS)
    _check(steps)


def test_the_environment_is_not_kept(stepping):
    env = make_envs(1, 2)[0]
    driver, _ = _driver(env)
    driver.predict(2 * STEPS)
    gone = weakref.ref(env)
    del driver, env
    gc.collect()
    assert gone() is None


def test_weights_are_those_that_it_acts_by() -> None:
    driver, _ = _driver()
    live = driver.weights()
    driver.load([w + np.float32(1) for w in live])
    assert live
    for mine, before in zip(driver.weights(), live, strict=True):
        np.testing.assert_array_equal(mine, before + 1)
