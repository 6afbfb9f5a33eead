"""Environments inside drivers: ownership, nested observations, failures, arrays that are used again."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.bin.episodes import run_episodes
from alf.data_structures import PolicyStep
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.collector import driver_seeds
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.recording import record_episodes
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.batch_wrappers import BatchWrapper
from alf.environments.crash_isolation import RestartingEnvironment
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter
from alf.utils import rng
from tests.algorithms.networks import ppo, specs_of
from tests.drivers.counting import CountingAlgorithm, check_batches, make_envs


def _run(driver: AsyncOffPolicyDriver, batches: int) -> None:
    driver.start()
    try:
        for _ in range(batches):
            driver.run_async()
            driver.algorithm.train()
    finally:
        driver.stop()


@pytest.mark.parametrize("actors", [0, 1])
def test_only_its_own_thread_touches_an_environment(actors: int) -> None:
    touched: dict[int, set[str]] = {}

    class Watched(CountingEnvironment):
        def _touch(self) -> None:
            touched.setdefault(id(self), set()).add(threading.current_thread().name)

        def _reset(self) -> ts.TimeStep:
            self._touch()
            return super()._reset()

        def _step(self, action: Any) -> ts.TimeStep:
            self._touch()
            return super()._step(action)

        def close(self) -> None:
            self._touch()

    envs = [Watched(2, 2 * i) for i in range(2)]
    driver = AsyncOffPolicyDriver(envs, CountingAlgorithm(envs[0]), actors, 4, 1, stepping="host", random_seed=1)
    _run(driver, 5)
    assert {names.pop() for names in touched.values() if len(names) == 1} == {"alf-env-0", "alf-env-1"}


def test_a_crash_ends_open_episodes_as_truncated_is_counted_and_the_run_goes_on() -> None:
    counter = StepCounter()

    def factory(seed: Any = None) -> FaultyEnvironment:
        return FaultyEnvironment(CountingEnvironment(2, episode_lengths=[7]), raise_at=[11, 25], counter=counter)

    env = RestartingEnvironment(factory)
    other = CountingEnvironment(2, 2, episode_lengths=[7])
    algorithm = CountingAlgorithm(env)
    driver = AsyncOffPolicyDriver([env, other], algorithm, 0, 6, 2, mode="sync", random_seed=1)
    _run(driver, 10)
    assert driver.stats()["restarts"] == 2
    for stream in (0, 1):
        rows = [
            (int(b.step_type[q, t, stream]), float(b.discount[q, t, stream]))
            for b in algorithm.batches
            for q in range(2)
            if int(b.env_id[q, 0, 0]) == 0
            for t in range(6)
        ]
        previous = 2
        for step_type, _ in rows:
            assert (step_type == 0) == (previous == 2), rows
            previous = step_type
        assert sum(1 for s, d in rows if s == 2 and d > 0) >= 2, "the cut episodes are truncated, not terminated"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_restarts_count_on_where_a_driver_takes_the_place_of_another(kind: str) -> None:
    def driver_of(*raise_at: int) -> Any:
        counter = StepCounter()
        env = RestartingEnvironment(
            lambda seed=None: FaultyEnvironment(CountingEnvironment(2), raise_at=raise_at, counter=counter)
        )
        if kind == "sync":
            return SyncOffPolicyDriver(env, CountingAlgorithm(env), 6, random_seed=1)
        return AsyncOffPolicyDriver([env], CountingAlgorithm(env), 0, 6, 1, mode="sync", random_seed=1)

    def collect(driver: Any) -> None:
        if kind == "async":
            return _run(driver, 3)
        for _ in range(3):
            driver.run()
        driver.stop()

    first, second = driver_of(5, 11), driver_of(7)
    collect(first)
    second.adopt(first)
    collect(second)
    assert second.stats()["restarts"] == 3


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy at an address that TensorFlow takes over instead of copying: a multiple of 64."""
    memory = np.zeros(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Reused(CountingEnvironment):
    """Hands out the same arrays at every step, or a few in turn, as careless environments do."""

    turns = 1

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size)
        self._arrays: list[list[np.ndarray]] = []

    def _time_step(self, action: np.ndarray) -> ts.TimeStep:
        step = super()._time_step(action)
        # Handed out from the first reset on.
        arrays = self._arrays.pop() if len(self._arrays) == self.turns else [_aligned(x) for x in step]
        self._arrays.insert(0, arrays)
        for array, value in zip(arrays, step, strict=True):
            array[...] = value
        return ts.TimeStep(*arrays)


class ReusedBehindReset(Reused):
    """Hands out arrays of a reset once, and the same ones at every step."""

    def _reset(self) -> ts.TimeStep:
        first = super()._reset()
        self._arrays = []
        return first


class ReusedInTurn(Reused):
    """Writes each step into the arrays that it did not hand out last."""

    turns = 2


@pytest.mark.parametrize("kind", [Reused, ReusedBehindReset, ReusedInTurn])
def test_what_is_played_does_not_change_where_arrays_are_used_again(kind: Any) -> None:
    plain, careless = (env(2) for env in (CountingEnvironment, kind))
    algorithm = CountingAlgorithm(plain, recurrent=False)
    expected, played = (run_episodes(env, algorithm, 6, 0.0, 0, max_steps_per_episode=100) for env in (plain, careless))
    assert (played.lengths, played.returns) == (expected.lengths, expected.returns)
    recorded = [record_episodes(algorithm, env(2), 6, random_seed=0) for env in (CountingEnvironment, kind)]
    tf.nest.map_structure(np.testing.assert_array_equal, *recorded)


def test_what_is_played_in_another_environment_does_not_change_where_that_uses_arrays_again() -> None:
    def play(kind: type[CountingEnvironment]) -> list[np.ndarray]:
        seen: list[np.ndarray] = []
        plain = CountingEnvironment(2)
        algorithm = CountingAlgorithm(plain, recurrent=False)
        driver = PolicyDriver(plain, algorithm, [lambda step: seen.append(step.observation)], random_seed=1)
        driver.predict(20)
        driver.restart(kind(2), 2)
        driver.predict(20)
        return seen

    np.testing.assert_array_equal(play(ReusedBehindReset), play(CountingEnvironment))


@pytest.mark.parametrize("stepping", ["graph", "host"])
@pytest.mark.parametrize("rows", [2, 8000])  # Arrays above 64 KiB cross into TensorFlow by themselves, without a copy.
@pytest.mark.parametrize("kind", [CountingEnvironment, Reused, ReusedInTurn])
def test_segments_do_not_change_when_later_ones_are_made(kind: Any, rows: int, stepping: str) -> None:
    env = kind(rows)
    algorithm = CountingAlgorithm(env)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=5, random_seed=1, stepping=stepping)
    driver.run(5 * rows)
    before = tf.nest.map_structure(lambda x: x.numpy().copy(), algorithm.batches[0])
    driver.run(25 * rows)
    driver.stop()
    tf.nest.map_structure(np.testing.assert_array_equal, before, algorithm.batches[0])
    check_batches([_of_two_rows(batch) for batch in algorithm.batches], True)


@pytest.mark.parametrize("at", [2, 5, 16])
@pytest.mark.parametrize("fault", ["raises", "nan"])
@pytest.mark.parametrize("kind", [Reused, ReusedBehindReset, ReusedInTurn])
def test_episodes_that_a_failure_cuts_end_in_what_was_seen_last(kind: Any, fault: str, at: int) -> None:
    def play(plain: type[CountingEnvironment]) -> list[ts.TimeStep]:
        taken = StepCounter()

        class Failing(plain):  # type: ignore[misc, valid-type]
            """Fails once, when it has written its step."""

            def _step(self, action: Any) -> ts.TimeStep:
                step = super()._step(action)
                taken.value += 1
                if taken.value == at:
                    if fault == "raises":
                        raise RuntimeError("It fails.")
                    step.observation[0] = np.nan
                return step

        env = RestartingEnvironment(lambda seed=None: Failing(2), nonfinite="truncate")
        steps = [env.reset()] + [env.step(np.full(2, t % 5)) for t in range(22)]
        assert env.cuts == 1
        return steps

    tf.nest.map_structure(np.testing.assert_array_equal, play(CountingEnvironment), play(kind))


def _of_two_rows(exp: Any) -> Any:
    bootstrap = tf.nest.map_structure(lambda x: x[:, :2], exp.bootstrap)
    return tf.nest.map_structure(lambda x: x[:, :, :2], exp._replace(bootstrap=()))._replace(bootstrap=bootstrap)


class NestedEnvironment(CountingEnvironment):
    """Dict and tuple observations of several dtypes, and a dict of two actions."""

    def observation_spec(self) -> Any:
        return {
            "where": array_spec.ArraySpec((3,), np.float32),
            "more": (array_spec.ArraySpec((2, 2), np.uint8), array_spec.ArraySpec((), np.int32)),
        }

    def action_spec(self) -> Any:
        return {
            "move": array_spec.BoundedArraySpec((), np.int64, 0, 4),
            "turn": array_spec.BoundedArraySpec((2,), np.float32, -1, 1),
        }

    def _step(self, action: Any) -> ts.TimeStep:
        assert action["turn"].shape == (self.batch_size, 2)
        return super()._step(action["move"])

    def _time_step(self, action: np.ndarray) -> ts.TimeStep:
        step = super()._time_step(action)
        pixels = np.broadcast_to(step.observation[:, 2].astype(np.uint8)[:, None, None], (self.batch_size, 2, 2))
        nested = {"where": step.observation, "more": (pixels.copy(), step.observation[:, 1].astype(np.int32))}
        return step._replace(observation=nested)


class RandomAlgorithm(OffPolicyAlgorithm):
    """Acts at random in `NestedEnvironment`."""

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        batch = tf.shape(time_step.reward)[0]
        move = tf.random.stateless_uniform([batch], rng.next_seed(), 0, 5, tf.int64)
        turn = tf.random.stateless_uniform([batch, 2], rng.next_seed(), -1.0, 1.0)
        turn.set_shape([time_step.reward.shape[0], 2])
        move.set_shape([time_step.reward.shape[0]])
        return PolicyStep({"move": move, "turn": turn}, (), ())


@pytest.mark.parametrize("stepping", ["graph", "host"])
@pytest.mark.parametrize("actors", [0, 1])
def test_observations_and_actions_may_be_nested(stepping: str, actors: int) -> None:
    envs = [NestedEnvironment(2, 2 * i) for i in range(2)]
    algorithm = RandomAlgorithm(*specs_of(envs[0]), observation_transformer=None)
    batches: list[Any] = []
    algorithm.add_experience_observer(batches.append)
    driver = AsyncOffPolicyDriver(envs, algorithm, actors, 4, 2, max(1, 2 * actors), stepping=stepping, random_seed=1)
    driver.start()
    try:
        assert [driver.run_async() for _ in range(4)] == [16] * 4
    finally:
        driver.stop()
    observation = batches[-1].observation
    assert observation["more"][0].dtype == tf.uint8
    assert observation["more"][0].shape == [2, 4, 2, 2, 2]
    np.testing.assert_array_equal(observation["more"][0][..., 0, 0], tf.cast(observation["where"][..., 2], tf.uint8))
    assert batches[-1].prev_action["turn"].shape == [2, 4, 2, 2]


@pytest.mark.parametrize("stepping", ["graph", "host"])
@pytest.mark.parametrize("actors", [0, 1])
def test_no_random_number_is_drawn_twice(stepping: str, actors: int) -> None:
    """Steps, rows, segments, environments: each sample is its own. Of 960 pairs of float32 none is there twice by chance."""
    envs = [NestedEnvironment(2, 2 * i) for i in range(2)]
    algorithm = RandomAlgorithm(*specs_of(envs[0]), observation_transformer=None)
    drawn: list[np.ndarray] = []
    algorithm.add_experience_observer(lambda exp: drawn.append(exp.action["turn"].numpy().reshape(-1, 2)))
    driver = AsyncOffPolicyDriver(envs, algorithm, 2 * actors, 5, 2, mode="sync", stepping=stepping, random_seed=1)
    driver.start()
    try:
        for _ in range(24):
            driver.run_async()
    finally:
        driver.stop()
    samples = np.concatenate(drawn)
    assert len(samples) == 24 * 2 * 5 * 2
    assert len(np.unique(samples, axis=0)) == len(samples)


def test_seeds_of_a_driver_are_others_after_a_resume() -> None:
    algorithm = CountingAlgorithm(make_envs(1, 2)[0])
    states = []
    for iterations in (0, 3, 3):
        algorithm.iterations.assign(iterations)
        states.append(driver_seeds(5, algorithm).generate_state(4).tolist())
    assert states[0] != states[1] == states[2]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_without_a_seed_training_draws_one_unless_it_has(kind: str) -> None:
    def seed_of(random_seed: int | None, own: int | None = None) -> int:
        env = make_envs(1, 2)[0]
        algorithm = CountingAlgorithm(env)
        if own is not None:
            algorithm.set_seed(own)
        if kind == "sync":
            SyncOffPolicyDriver(env, algorithm, 4, random_seed=random_seed).stop()
        else:
            AsyncOffPolicyDriver([env], algorithm, 0, 4, 1, random_seed=random_seed).stop()
        return int(algorithm._seed)

    assert len({seed_of(None) for _ in range(3)}) == 3
    assert seed_of(None, own=17) == 17
    assert seed_of(None, own=0) == seed_of(0), "0 is a seed too"
    assert len({seed_of(None, own=0), seed_of(None), 0}) == 3
    assert seed_of(5) == seed_of(5, own=17) == 5


def test_errors_name_the_stream_by_its_number_among_all() -> None:
    class Poisoned(CountingEnvironment):
        def _step(self, action: Any) -> ts.TimeStep:
            step = super()._step(action)
            step.reward[1] = np.nan
            return step

    envs = [RestartingEnvironment(lambda seed, i=i: (Poisoned if i else CountingEnvironment)(2, 2 * i)) for i in (0, 1)]
    driver = AsyncOffPolicyDriver(envs, CountingAlgorithm(envs[0]), 0, 4, 2, random_seed=1)
    with pytest.raises(FloatingPointError, match=r"Stream 3 \(row 1 of 2\)"):
        _run(driver, 20)


def test_gradient_and_variable_summaries_can_be_switched_on() -> None:
    env = make_envs(1, 2)[0]
    algorithm = ppo(env)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=4, random_seed=1)
    algorithm.set_summary_settings(summarize_grads_and_vars=True)
    driver.run(8)
    algorithm.train()
    driver.stop()
    names = set(algorithm.last_train_metrics)
    for variable in algorithm.trainable_variables:
        assert {f"grad_norm/{variable.name}", f"var_norm/{variable.name}"} <= names
    assert {"loss", "grad_norm", "policy_gradient_loss", "approx_kl"} <= names


class _OtherActions(BatchWrapper):
    def action_spec(self) -> Any:
        spec = self._env.action_spec()
        return array_spec.BoundedArraySpec(spec.shape, spec.dtype, spec.minimum, spec.maximum + 3, spec.name)


def test_an_environment_of_other_actions_than_the_algorithm_is_refused() -> None:
    env, other = make_envs(1, 2)[0], _OtherActions(make_envs(1, 2)[0])
    most = int(env.action_spec().maximum)
    told = rf"has action spec int64\[\] within 0 to {most + 3} and the algorithm was built for int64\[\] within 0 to {most}:"
    with pytest.raises(ValueError, match=f"^The environment {told}"):
        SyncOffPolicyDriver(other, CountingAlgorithm(env))
    with pytest.raises(ValueError, match=f"^Environment 1 {told}"):
        AsyncOffPolicyDriver([env, other], CountingAlgorithm(env))
