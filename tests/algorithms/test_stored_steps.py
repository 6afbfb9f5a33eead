"""A memory that begins with a dataset: against the columns of the file, and plain loops over them."""

from __future__ import annotations

import pathlib
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.q_network import QNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.stored_steps import fill_memory
from alf.data_structures import StepType
from alf.replay.dataset import DatasetError, Steps, write_dataset
from alf.utils import dist_utils
from tests.algorithms.networks import feed_forward, recurrent
from tests.algorithms.off_policy import adam, make

OBS = tensor_spec.TensorSpec([2], tf.float32)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
LENGTHS = [3, 7, 2, 300, 5]
N = sum(LENGTHS)


def episodes() -> Steps:
    """Episodes whose observations are (number of the episode, step in it)."""
    rs = np.random.RandomState(0)
    where = np.array([(e, t) for e, length in enumerate(LENGTHS) for t in range(length)], np.float32)
    last = where[:, 1] == np.array(LENGTHS)[where[:, 0].astype(int)] - 1
    step_type = np.where(where[:, 1] == 0, 0, np.where(last, 2, 1)).astype(np.int32)
    reward = np.where(step_type == 0, 0.0, rs.normal(size=N)).astype(np.float32)
    discount = np.where(last & (where[:, 0] % 2 == 0), 0.0, 1.0).astype(np.float32)
    return Steps(step_type, reward, discount, where, rs.randint(0, 3, N))


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    file = str(tmp_path / "d.npz")
    write_dataset(file, episodes())
    return file


def dqn(streams: int = 2, capacity: int = 400, replayer: str = "uniform", **kwargs: Any) -> Any:
    gin.bind_parameter("ReplayBuffer.max_length", capacity)
    algorithm = make("dqn", OBS, CHOICE, **kwargs)
    algorithm.set_exp_replayer(replayer, streams)
    return algorithm


def pairs(algorithm: Any, count: int = 6000) -> Any:
    """Random sequences of two steps, numpy [count, 2, ...]."""
    memory = algorithm.exp_replayer
    drawn = memory.sample(memory.view(2), count, 2, tf.constant([1, 2])).experience
    return tf.nest.map_structure(np.asarray, drawn)


def test_each_recorded_episode_gets_a_goal_of_its_own(tmp_path: pathlib.Path) -> None:
    """As episodes that are played do: drawn anew, all equally likely, and kept to the end."""
    count = 60
    numbers = np.arange(2 * count, dtype=np.float32)
    step_type = np.tile([0, 2], count).astype(np.int32)
    rows = np.stack([numbers, numbers], 1)
    write_dataset(
        str(tmp_path / "d.npz"), Steps(step_type, numbers, np.ones_like(numbers), rows, np.zeros(2 * count, np.int64))
    )

    def inner(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        q = QNetwork(
            observation_spec,
            action_spec,
            preprocessing_combiner=tf.keras.layers.Concatenate(),
            fc_layer_params=(4,),
        )
        return DqnAlgorithm(observation_spec, action_spec, q_network=q)

    gin.bind_parameter("ReplayBuffer.max_length", 200)
    goals = RandomCategoricalGoalGenerator(OBS, 3)
    algorithm = Agent(OBS, CHOICE, rl_algorithm_cls=inner, goal_generator=goals, optimizer=adam(1e-3))
    algorithm.set_exp_replayer("uniform", 2)
    fill_memory(algorithm, str(tmp_path / "d.npz"))
    exp = algorithm.exp_replayer.replay_all()
    followed = exp.rollout_info.goal_generator.goal.numpy().argmax(-1)
    first = np.asarray(exp.step_type) == StepType.FIRST
    assert (followed[first] == followed[~first]).all()
    assert (np.bincount(followed[first], minlength=3) > count / 6).all()


@pytest.mark.parametrize("replayer", ["uniform", "prioritized"])
@pytest.mark.parametrize("until_ends", [False, True])
def test_the_memory_holds_what_the_file_does(replayer: str, until_ends: bool, path: str) -> None:
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", until_ends)
    algorithm, steps = dqn(replayer=replayer), episodes()
    assert fill_memory(algorithm, path) == N
    memory = algorithm.exp_replayer
    assert memory.total_steps == N
    assert memory.num_episodes == len(LENGTHS)
    row = {tuple(where): i for i, where in enumerate(steps.observation.tolist())}
    exp, seen = pairs(algorithm), set()
    for i in range(len(exp.reward)):
        first, second = (row[tuple(exp.observation[i, t].tolist())] for t in (0, 1))
        seen.add((first, second))
        # The next row of the same episode, or the beginning of another one.
        ends = steps.step_type[first] == StepType.LAST
        assert steps.step_type[second] == StepType.FIRST if ends else second == first + 1
        assert exp.env_id[i, 0] == exp.env_id[i, 1]
        for t, at in enumerate((first, second)):
            for name in ("step_type", "reward", "discount"):
                assert getattr(exp, name)[i, t] == getattr(steps, name)[at]
            # What a LAST row has there means nothing: it gets what the row before has done.
            assert exp.action[i, t] == steps.action[at - int(steps.step_type[at] == StepType.LAST)]
            before = 0 if steps.step_type[at] == StepType.FIRST else steps.action[at - 1]
            assert exp.prev_action[i, t] == before
    # All transitions inside of episodes, and the joints of two streams.
    assert len(seen) == N - 2
    # Episodes are dealt out to where there is least: 3 | 7, 2, then 300 | 5 where 5 are.
    assert memory.buffer.index.count.tolist() == [3 + 2 + 300, 7 + 5]


def test_what_is_collected_afterwards_does_not_join(path: str) -> None:
    algorithm = dqn(1)
    fill_memory(algorithm, path)
    memory = algorithm.exp_replayer
    before = memory.num_sequences(2)
    exp = pairs(algorithm, 1)
    first = tf.nest.map_structure(lambda x: tf.constant(x[:, 0]), exp)
    memory.observe(first._replace(step_type=tf.constant([0]), env_id=tf.constant([0])))
    assert memory.num_sequences(2) == before
    assert int(algorithm._env_steps) == 0


def test_observations_and_rewards_are_transformed(path: str) -> None:
    # In their order.
    transformers = [lambda o: o + 0.5, lambda o: 2.0 * o]
    algorithm = dqn(reward_shaping_fn=lambda r: 10.0 * r, observation_transformer=transformers)
    fill_memory(algorithm, path)
    steps = episodes()
    row = {tuple(where): i for i, where in enumerate((2.0 * (steps.observation + 0.5)).tolist())}
    exp = pairs(algorithm, 50)
    for i in range(50):
        at = row[tuple(exp.observation[i, 0].tolist())]
        assert exp.reward[i, 0] == pytest.approx(10.0 * steps.reward[at], rel=1e-5)


@pytest.mark.parametrize("kind", ["feed_forward", "recurrent"])
def test_what_acting_records_is_of_the_present_policy(kind: str, tmp_path: pathlib.Path) -> None:
    steps = tf.nest.map_structure(lambda x: x[:12], episodes())
    path = str(tmp_path / "short.npz")
    write_dataset(path, steps)
    gin.bind_parameter("ReplayBuffer.max_length", 20)
    actor, value = feed_forward(OBS, CHOICE) if kind == "feed_forward" else recurrent(OBS, CHOICE, 4)
    algorithm = ActorCriticAlgorithm(OBS, CHOICE, actor, value, optimizer=adam(1e-3))
    algorithm.use_rollout_state = True
    algorithm.set_exp_replayer("uniform", 1)
    fill_memory(algorithm, path)
    exp = algorithm.exp_replayer.replay_all()
    np.testing.assert_array_equal(exp.observation[0], steps.observation)
    state: Any = tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape]), actor.state_spec)
    for t in range(12):
        if steps.step_type[t] == StepType.FIRST:
            state = tf.nest.map_structure(tf.zeros_like, state)
        if kind == "recurrent":
            for got, wanted in zip(tf.nest.flatten(exp.state.actor), tf.nest.flatten(state), strict=True):
                np.testing.assert_allclose(got[0, t], wanted[0], atol=1e-6)
        distribution, state = actor(
            tf.constant(steps.observation[t : t + 1]), step_type=tf.constant([1]), network_state=state
        )
        logits = tf.nest.flatten(exp.rollout_info.action_distribution)[0][0, t]
        expected = dist_utils.compute_log_probability(distribution, tf.constant([steps.action[t]]), 1)
        assert float(tf.nn.log_softmax(logits)[steps.action[t]]) == pytest.approx(float(expected[0]), abs=1e-5)


def test_training_learns_what_is_in_the_file(path: str) -> None:
    """Q-learning with gamma 0 on a reward of 1 for the action 2, else 0, without a step in an environment."""
    steps = episodes()
    reward = np.concatenate([[0.0], steps.action[:-1] == 2]).astype(np.float32)
    write_dataset(path, steps._replace(reward=reward, observation=np.zeros_like(steps.observation)))
    tf.keras.utils.set_random_seed(1)
    algorithm = dqn(gamma=0.0, lr=0.05)
    algorithm.set_seed(1)
    fill_memory(algorithm, path)
    for _ in range(5):
        algorithm.train(20, 64, 2, whole_replay_buffer_training=False)
    values = algorithm._q_network(tf.zeros([1, 2]))[0].numpy()[0]
    np.testing.assert_allclose(values, [0.0, 0.0, 1.0], atol=0.1)


def test_what_does_not_fit_is_told_in_a_sentence(path: str) -> None:
    with pytest.raises(DatasetError, match=r"The dataset .*none.npz cannot be read: .*No such file"):
        fill_memory(dqn(), path.replace("d.npz", "none.npz"))
    gin.bind_parameter("ReplayBuffer.max_length", 400)
    other = make("dqn", tensor_spec.TensorSpec([3], tf.float32), CHOICE)
    other.set_exp_replayer("uniform", 2)
    with pytest.raises(DatasetError, match=r"'observation/0': 'float32\[2\]'.* has .*'observation/0': 'float32\[3\]'"):
        fill_memory(other, path)
    assert other.exp_replayer.total_steps == 0
    with pytest.raises(
        ValueError, match=r"The 317 steps of .*, in 2 streams, need .*max_length of at least 305; it is 304"
    ):
        fill_memory(dqn(capacity=304), path)
    fill_memory(dqn(capacity=305), path)
    with pytest.raises(ValueError, match=r"DqnAlgorithm has a OnetimeExperienceReplayer: set .*exp_replayer='uniform'"):
        fill_memory(dqn(replayer="one_time"), path)
    with pytest.raises(ValueError, match="has no replayer yet"):
        fill_memory(make("dqn", OBS, CHOICE), path)
