"""Hindsight replay: goals of the same episode's future, rewards that follow, and a task that needs it."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.specs import array_spec, tensor_spec
from tf_agents.trajectories import time_step as ts

from alf.algorithms.agent import Agent
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.data_structures import PolicyStep, StepType
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.replay.hindsight_replay import HindsightReplay, goal_distance_reward
from alf.utils.common import cast_transformer
from tests.algorithms.networks import feed_forward, specs_of
from tests.algorithms.off_policy import adam
from tests.replay.streams import SPEC, At, Ring, segments, where

PERIOD = 5  # time steps of an episode
ACTION = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
FAR = -1.0  # the goal of every recorded step


def with_goals(nest: Any) -> Any:
    """Each step achieves what it observes: its stream and number."""
    observed = nest.observation
    return {"observation": observed, "achieved_goal": observed, "desired_goal": tf.fill(observed.shape, FAR)}


def reward_of(achieved: tf.Tensor, desired: tf.Tensor) -> tf.Tensor:
    """Not the same with the two swapped."""
    return -tf.reduce_sum(tf.abs(achieved - 2.0 * desired), -1)


def filled(capacity: int, **kwargs: Any) -> tuple[HindsightReplay, Ring]:
    """Two streams of 40 steps, of which the second loses a segment in the middle of an episode."""
    gin.bind_parameter("ReplayBuffer.max_length", capacity)
    goal = tf.TensorSpec([2], tf.float32)
    spec = SPEC._replace(observation={"observation": goal, "achieved_goal": goal, "desired_goal": goal})
    replayer, ring = HindsightReplay(spec, 2, reward_of, **kwargs), Ring(2, capacity)
    for begin in range(0, 40, 4):
        streams = np.array([[0]]) if begin == 12 else np.array([[0, 1]])
        first = np.full(streams.shape, begin)
        exp = segments(streams, first, 4)
        time_step = exp.bootstrap.time_step
        bootstrap = exp.bootstrap._replace(time_step=time_step._replace(observation=with_goals(time_step)))
        replayer.observe(exp._replace(observation=with_goals(exp), bootstrap=bootstrap))
        ring.add(streams, first, 4)
    return replayer, ring


def future(ring: Ring, at: At, horizon: float) -> list[int]:
    """The later steps of the episode that are held without a gap, and near enough, by walking on."""
    found, number = [], at.number
    while number % PERIOD != PERIOD - 1 and len(found) < horizon and At(at.stream, number + 1) in ring.held[at.stream]:
        number += 1
        found.append(number)
    return found


def test_a_reward_function_of_another_task_is_warned_of_once(logged: list[str]) -> None:
    goal = tf.TensorSpec([2], tf.float32)
    spec = SPEC._replace(observation={"observation": goal, "achieved_goal": goal, "desired_goal": goal})

    def warnings(reward_fn: Any) -> list[str]:
        logged.clear()
        replayer = HindsightReplay(spec, 1, reward_fn)
        replayer.set_reward_shaping(lambda reward: 2.0 * reward)
        for begin in range(0, 40, 4):
            exp = segments(np.array([[0]]), np.array([[begin]]), 4)
            observation = with_goals(exp)
            shaped = 2.0 * reward_of(observation["achieved_goal"], observation["desired_goal"])
            time_step = exp.bootstrap.time_step
            bootstrap = exp.bootstrap._replace(time_step=time_step._replace(observation=with_goals(time_step)))
            replayer.observe(exp._replace(observation=observation, reward=shaped, bootstrap=bootstrap))
        return list(logged)

    assert not warnings(reward_of)
    (warning,) = warnings(goal_distance_reward)
    # Three steps of each segment are the results of actions: with the fourth it is ten.
    assert (
        "HindsightReplay.reward_fn gives -2 for the goal [-1. -1.] at [ 0. 12.], and the environment gave -32"
        in warning
    )


def test_steps_that_stand_for_a_crash_tell_nothing_of_the_reward_function(logged: list[str]) -> None:
    """All rows of an environment that crashed end so: cut off, without a reward."""
    goal = tf.TensorSpec([2], tf.float32)
    spec = SPEC._replace(observation={"observation": goal, "achieved_goal": goal, "desired_goal": goal})
    for cut_off in (True, False):
        logged.clear()
        replayer = HindsightReplay(spec, 1, reward_of)
        replayer.set_reward_shaping(lambda reward: 2.0 * reward - 1.0)
        for begin in range(0, 60, 4):
            exp = segments(np.array([[0]]), np.array([[begin]]), 4)
            observation = with_goals(exp)
            shaped = 2.0 * reward_of(observation["achieved_goal"], observation["desired_goal"]) - 1.0
            last = tf.fill(exp.step_type.shape, True) & tf.constant([False, True, False, False])[:, None]
            time_step = exp.bootstrap.time_step
            exp = exp._replace(
                observation=observation,
                step_type=tf.where(last, int(StepType.LAST), exp.step_type),
                discount=tf.where(last, 1.0 if cut_off else 0.0, exp.discount),
                reward=tf.where(last, -1.0, shaped),
                bootstrap=exp.bootstrap._replace(time_step=time_step._replace(observation=with_goals(time_step))),
            )
            replayer.observe(exp)
        assert bool(logged) != cut_off


@pytest.mark.parametrize("length", [2, 3, 7])
@pytest.mark.parametrize(("capacity", "horizon"), [(100, 50), (23, 50), (100, 2.0)], ids=["all held", "lately", "near"])
def test_goals_are_of_the_future_of_the_same_episode(length: int, capacity: int, horizon: float) -> None:
    replayer, ring = filled(capacity, share=0.7, horizon=horizon)
    sample = replayer.sample(replayer.view(length), 4000, length, tf.constant([3, 4]))
    exp = tf.nest.map_structure(lambda x: x.numpy(), sample.experience)
    places = exp.observation["observation"].astype(int)
    goals, offsets = exp.observation["desired_goal"], dict[tuple[int, int], list[int]]()
    for i in range(4000):
        start = At(*places[i, 0])
        possible = future(ring, start, horizon)
        changed = bool((goals[i, 0] != FAR).any())
        assert possible or not changed
        if possible:
            offsets.setdefault(start, []).append(int(goals[i, 0, 1]) - start.number if changed else 0)
        for row in range(length):
            same_episode = places[i, row, 1] // PERIOD == start.number // PERIOD
            recorded = 1000 * start.stream + places[i, row, 1]
            if changed and same_episode:
                assert goals[i, row].tolist() == goals[i, 0].tolist()
                assert goals[i, row, 0] == start.stream
                assert int(goals[i, row, 1]) in possible
                assert exp.reward[i, row] == -np.abs(places[i, row] - 2.0 * goals[i, row]).sum()
            else:
                assert (goals[i, row] == FAR).all()
                assert exp.reward[i, row] == recorded
    drawn = np.concatenate([np.array(o) for o in offsets.values()])
    assert (drawn > 0).mean() == pytest.approx(0.7, abs=0.03)
    # Each of the possible goals as often as another.
    for possible_count in {1, 2, 4}:
        some = [
            o for start, found in offsets.items() if len(future(ring, start, horizon)) == possible_count for o in found
        ]
        some = [o for o in some if o]
        if some:
            shares = np.bincount(some, minlength=possible_count + 1)[1:] / len(some)
            np.testing.assert_allclose(shares, 1.0 / possible_count, atol=0.08)


def test_balanced_draws_every_stream_equally_often() -> None:
    replayer, _ = filled(100, balanced=True)
    sample = replayer.sample(replayer.view(7), 10_000, 7, tf.constant([3, 4]))
    # Of 34 sequences in one stream, and of 24 in the other.
    assert abs(np.count_nonzero(sample.stream.numpy() == 0) - 5000) < 4 * np.sqrt(10_000 / 4)


def test_what_is_held_is_not_changed() -> None:
    replayer, _ = filled(100, share=1.0)
    replayer.sample(replayer.view(2), 100, 2, tf.constant([3, 4]))
    stream, first = tf.constant([0, 0], tf.int64), tf.constant([0, 20], tf.int64)
    held = replayer.buffer.sequences(stream, first, 20)
    assert (held.observation["desired_goal"].numpy() == FAR).all()
    where(held._replace(observation=held.observation["observation"]))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"needs observations with the fields .* there are none"):
        HindsightReplay(SPEC, 2)
    goal = tf.TensorSpec([2], tf.float32)
    with pytest.raises(ValueError, match=r"there are \['achieved_goal'\]"):
        HindsightReplay(SPEC._replace(observation={"achieved_goal": goal}), 2)
    spec = SPEC._replace(observation={"achieved_goal": goal, "desired_goal": goal})
    for wrong in (
        {"share": 1.5},
        {"horizon": 0},
        {"share": "0.5"},
        {"share": None},
        {"horizon": 2.5},
        {"horizon": "9"},
    ):
        with pytest.raises(ValueError, match=r"share in \[0, 1\] and a whole number horizon >= 1; got .*(0\.8|50)"):
            HindsightReplay(spec, 2, **wrong)
    with pytest.raises(ValueError, match=r"needs a function reward_fn of the goals achieved and desired; got None"):
        HindsightReplay(spec, 2, reward_fn=None)


def test_reward_of_sparse_goal_tasks() -> None:
    achieved = tf.constant([[0.0, 0.0], [0.0, 0.0]])
    desired = tf.constant([[0.03, 0.039], [0.03, 0.041]])
    assert goal_distance_reward(achieved, desired).numpy().tolist() == [0.0, -1.0]
    # As near as the threshold is reached.
    achieved = tf.constant([[0.5, 0.0], [0.50001, 0.0]])
    assert goal_distance_reward(achieved, tf.zeros([2, 2]), 0.5).numpy().tolist() == [0.0, -1.0]


class BitFlip(BatchedEnvironment):
    """The task of section 3.1 of the paper: an action flips a bit; -1 a step until all bits are as they should be."""

    def __init__(self, batch_size: int, bits: int, seed: int) -> None:
        super().__init__()
        self._rows, self._bits = batch_size, bits
        self._rng = np.random.default_rng(seed)
        self._clock = 0
        self.solved: list[bool] = []

    @property
    def batch_size(self) -> int:
        return self._rows

    def observation_spec(self) -> Any:
        return {k: array_spec.ArraySpec((self._bits,), np.float32, k) for k in ("achieved_goal", "desired_goal")}

    def action_spec(self) -> Any:
        return array_spec.BoundedArraySpec((), np.int64, 0, self._bits - 1, "action")

    def _reset(self) -> ts.TimeStep:
        self._clock = 0
        self._state, self._goal = self._rng.integers(2, size=(2, self._rows, self._bits)).astype(np.float32)
        self._reached = (self._state == self._goal).all(1)
        return self._time_step(ts.StepType.FIRST)

    def _step(self, action: Any) -> ts.TimeStep:
        if self._clock == self._bits:
            return self._reset()
        self._clock += 1
        self._state = self._state.copy()
        self._state[np.arange(self._rows), action] = 1.0 - self._state[np.arange(self._rows), action]
        self._reached |= (self._state == self._goal).all(1)
        if self._clock < self._bits:
            return self._time_step(ts.StepType.MID)
        self.solved += self._reached.tolist()
        return self._time_step(ts.StepType.LAST)

    def _time_step(self, step_type: Any) -> ts.TimeStep:
        reached = (self._state == self._goal).all(1)
        reward = np.zeros(self._rows) if step_type == ts.StepType.FIRST else reached - 1.0
        return ts.TimeStep(
            step_type=np.full(self._rows, step_type, np.int32),
            reward=reward.astype(np.float32),
            discount=np.ones(self._rows, np.float32),
            observation={"achieved_goal": self._state.copy(), "desired_goal": self._goal.copy()},
        )


def test_new_rewards_are_shaped_as_the_others() -> None:
    gin.bind_parameter("ReplayBuffer.max_length", 100)
    env = BitFlip(16, 3, 0)
    obs, act = specs_of(env)
    layers = {"preprocessing_layers": {name: tf.keras.layers.Flatten() for name in obs}}
    network = q_network.QNetwork(obs, act, **layers, preprocessing_combiner=tf.keras.layers.Concatenate())
    algorithm = DqnAlgorithm(obs, act, network, OneStepTDLoss(0.9), reward_shaping_fn=lambda r: 0.25 * r)
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="hindsight", random_seed=1)
    try:
        driver.run()
        replayer: Any = algorithm.exp_replayer
        drawn = replayer.sample(replayer.view(2), 200, 2, tf.constant([1, 2])).experience
        # The first row's reward is of the action before it, and of any goal.
        assert set(drawn.reward.numpy().ravel()) == {-0.25, 0.0}
    finally:
        driver.stop()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float64"])
def test_goals_may_be_of_any_dtype(dtype: str) -> None:
    achieved = tf.constant([[[1, 0, 3]], [[1, 0, 2]]], dtype)
    desired = tf.constant([[[1, 0, 3]], [[1, 1, 3]]], dtype)
    assert goal_distance_reward(achieved, desired).numpy().tolist() == [[0.0], [-1.0]]
    gin.bind_parameter("ReplayBuffer.max_length", 10)
    goal = tf.TensorSpec([3], dtype)
    HindsightReplay(SPEC._replace(observation={"achieved_goal": goal, "desired_goal": goal}), 2)


@pytest.mark.parametrize(
    ("shape", "reward_fn", "sentence"),
    [
        (
            [],
            goal_distance_reward,
            r"gives shape \(16,\) for goals \(16, 1\), and one reward for each is shape \[16, 1\]",
        ),
        ([2], lambda a, d: tf.norm(a - d, axis=-1, keepdims=True), r"gives shape \(16, 1, 1\) for goals \(16, 1, 2\)"),
        ([2], lambda a, d: tf.bitwise.invert(a), r"fails on goals of float32 \(2,\) and float32 \(2,\): \w+Error: "),
    ],
)
def test_a_reward_function_that_does_not_fit_the_goals_is_told_at_once(
    shape: list[int], reward_fn: Any, sentence: str
) -> None:
    gin.bind_parameter("ReplayBuffer.max_length", 10)
    goal = tf.TensorSpec(shape, tf.float32)
    with pytest.raises(ValueError, match=rf"HindsightReplay.reward_fn {sentence}"):
        HindsightReplay(SPEC._replace(observation={"achieved_goal": goal, "desired_goal": goal}), 2, reward_fn)


@pytest.mark.parametrize("field", ["reward", "desired_goal"])
def test_what_is_altered_before_storing_must_not_be_what_is_judged_anew(field: str) -> None:
    gin.bind_parameter("ReplayBuffer.max_length", 10)
    goal = tf.TensorSpec([2], tf.float32)
    spec = SPEC._replace(observation={"observation": goal, "achieved_goal": goal, "desired_goal": goal})

    def altered(exp: Any) -> Any:
        if field == "reward":
            return exp._replace(reward=0.1 * exp.reward)
        return exp._replace(observation={**exp.observation, field: 1.0 - exp.observation[field]})

    def observed(exp: Any) -> Any:
        return exp._replace(observation={**exp.observation, "observation": 0.5 * exp.observation["observation"]})

    gin.bind_parameter("ReplayBuffer.before_storing", altered)
    with pytest.raises(ValueError, match=rf"before_storing changes '{field}': leave it alone there"):
        HindsightReplay(spec, 2)
    gin.bind_parameter("ReplayBuffer.before_storing", observed)
    HindsightReplay(spec, 2)


def scaled(field: str) -> Any:
    return lambda observation: {**observation, field: 10.0 * observation[field]}


def bounded(observation: Any) -> Any:
    return tf.nest.map_structure(lambda o: tf.clip_by_value(o, -5.0, 5.0), observation)


@pytest.mark.parametrize(
    ("transformer", "changed"),
    [
        (scaled("achieved_goal"), "achieved_goal"),
        (scaled("desired_goal"), "desired_goal"),
        ([cast_transformer, bounded], "achieved_goal"),
        (lambda o: {**o, "achieved_goal": o["achieved_goal"][:, :1]}, "achieved_goal"),
        (lambda o: {**o, "achieved_goal": o["desired_goal"], "desired_goal": o["achieved_goal"]}, "achieved_goal"),
        (lambda o: tf.nest.map_structure(lambda x: tf.cast(x, tf.int32), o), "achieved_goal"),
        (cast_transformer, None),
        (None, None),
        (scaled("observation"), None),
    ],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_goals_are_recorded_as_the_environment_gives_them(transformer: Any, changed: str | None, dtype: Any) -> None:
    """Rewards follow from them, as the environment's do."""
    obs = {k: tf.TensorSpec([2], dtype) for k in ("observation", "achieved_goal", "desired_goal")}
    algorithm = Standing(obs, ACTION, observation_transformer=transformer)
    if changed is None:
        algorithm.set_exp_replayer("hindsight", 1)
        assert isinstance(algorithm.exp_replayer, HindsightReplay)
        return
    with pytest.raises(ValueError, match=f"the observation_transformer changes '{changed}'"):
        algorithm.set_exp_replayer("hindsight", 1)
    assert algorithm.exp_replayer is None


class Standing(OffPolicyAlgorithm):
    """Does nothing."""

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        return PolicyStep(tf.zeros_like(time_step.prev_action), (), ())


BITS = 8


def solved_after_training(share: float, iterations: int) -> float:
    """The share of episodes in which a greedy policy gets to the goal; training ends early once it is high."""
    tf.keras.utils.set_random_seed(2)
    gin.bind_parameter("ReplayBuffer.max_length", 2000)
    gin.bind_parameter("HindsightReplay.share", share)
    env, judged = BitFlip(16, BITS, 0), BitFlip(64, BITS, 9)
    obs, act = specs_of(env)
    network = q_network.QNetwork(
        obs,
        act,
        preprocessing_layers={name: tf.keras.layers.Flatten() for name in obs},
        preprocessing_combiner=tf.keras.layers.Concatenate(),
        fc_layer_params=(256,),
    )
    polyak = {"target_update_tau": 0.05, "target_update_period": 1}
    algorithm = DqnAlgorithm(obs, act, network, OneStepTDLoss(0.9), epsilon_greedy=0.2, optimizer=adam(3e-3), **polyak)
    driver = SyncOffPolicyDriver(env, algorithm, BITS + 1, exp_replayer="hindsight", random_seed=1)
    judge = PolicyDriver(judged, algorithm, epsilon_greedy=0.0, random_seed=2)
    try:
        driver.run(2 * 16 * (BITS + 1))
        for i in range(iterations):
            driver.run()
            algorithm.train(
                num_updates=40, mini_batch_length=2, mini_batch_size=128, whole_replay_buffer_training=False
            )
            if i % 10 == 9:
                judged.solved.clear()
                judge.run_episodes(128)
                if np.mean(judged.solved) > 0.9:
                    break
    finally:
        driver.stop()
    return float(np.mean(judged.solved))


@pytest.mark.slow
def test_hindsight_solves_what_plain_replay_does_not() -> None:
    assert solved_after_training(0.8, 80) > 0.9
    assert solved_after_training(0.0, 20) < 0.4


@pytest.mark.parametrize("shell", [lambda obs, act, make: make(obs, act), Agent], ids=["alone", "agent"])
def test_ppo_is_refused_since_it_recorded_values_of_other_goals(shell: Any) -> None:
    goal = tf.TensorSpec([2], tf.float32)
    obs = {"observation": goal, "achieved_goal": goal, "desired_goal": goal}

    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> PPOAlgorithm:
        layers = {name: tf.keras.layers.Dense(4) for name in observation_spec}
        combined = {"preprocessing_layers": layers, "preprocessing_combiner": tf.keras.layers.Concatenate()}
        both = feed_forward(observation_spec, action_spec, **combined)
        return PPOAlgorithm(observation_spec, action_spec, *both, loss=PPOLoss(action_spec))

    algorithm = shell(obs, ACTION, make)
    with pytest.raises(
        ValueError, match=r"^PPOAlgorithm learns from values that it recorded .*'hindsight' puts in other "
    ):
        algorithm.set_exp_replayer("hindsight", 2)
