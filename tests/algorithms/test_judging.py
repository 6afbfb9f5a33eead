"""What a policy makes of recorded steps: chances and values against numpy, of each kind of algorithm; and of recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms import judging
from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.bc_algorithm import BcAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.judging import judge
from alf.algorithms.predictions import get_predictions
from alf.drivers.recording import record_episodes
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.environments.testing import CountingEnvironment
from alf.replay.dataset import Steps, read_dataset, write_dataset
from alf.utils import rng
from tests.algorithms.networks import feed_forward, recurrent, specs_of
from tests.algorithms.off_policy import adam, make
from tests.algorithms.recurrent_off_policy import make as make_recurrent
from tests.algorithms.test_action_masks import algorithm_of
from tests.algorithms.test_tf_agents_algorithm import wrapped

OBS = tensor_spec.TensorSpec([2], tf.float32)
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
STEP_TYPE = np.array([0, 1, 1, 2, 0, 2, 0, 1, 2], np.int32)
COUNT = len(STEP_TYPE)
ACTED = STEP_TYPE != 2


def steps_of(action: Any, observation: Any = None) -> Steps:
    rs = np.random.RandomState(0)
    if observation is None:
        observation = rs.normal(size=(COUNT, 2)).astype(np.float32)
    reward, discount = rs.normal(size=COUNT).astype(np.float32), np.ones(COUNT, np.float32)
    return Steps(STEP_TYPE, reward, discount, observation, action)


def choices(high: int = 3, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.RandomState(1).randint(0, high, (COUNT, *shape))


def mixed(sampled: np.ndarray, likely: np.ndarray, action: np.ndarray, epsilon: float) -> list[float]:
    """The chance of each action [N] where one is sampled with the chance epsilon, else the likely one taken."""
    return [epsilon * p[a] + (1.0 - epsilon) * (a == b) for p, a, b in zip(sampled, action, likely, strict=True)]


def expect(judged: Any, chance: list[float], value: Any, q_value: Any = None) -> None:
    np.testing.assert_allclose(np.exp(judged.log_probability)[ACTED], np.array(chance)[ACTED], rtol=1e-4)
    np.testing.assert_allclose(judged.value[ACTED], np.array(value)[ACTED], rtol=1e-4, atol=1e-5)
    if q_value is None:
        assert judged.q_value is None
    else:
        np.testing.assert_allclose(judged.q_value[ACTED], np.array(q_value)[ACTED], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_an_actor_critic(epsilon: float) -> None:
    algorithm = ActorCriticAlgorithm(OBS, CHOICE, *feed_forward(OBS, CHOICE), optimizer=adam(1e-3))
    steps = steps_of(choices())
    p = get_predictions(algorithm, steps.observation, "action_probabilities").numpy()
    value = get_predictions(algorithm, steps.observation, "value").numpy()
    expect(judge(algorithm, steps, epsilon), mixed(p, p.argmax(1), steps.action, epsilon), value)


def test_more_steps_than_go_through_the_networks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, steps = make("dqn", OBS, CHOICE), steps_of(choices())
    whole: Any = judge(algorithm, steps, 0.3)
    monkeypatch.setattr(judging, "_AT_ONCE", 4)
    parts: Any = judge(algorithm, steps, 0.3)
    for expected, found in zip(whole, parts, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_values_of_all_actions(name: str, epsilon: float) -> None:
    algorithm = make(name, OBS, CHOICE)
    steps = steps_of(choices())
    q = get_predictions(algorithm, steps.observation, "q_values").numpy()
    p, taken = np.full((COUNT, 3), 1 / 3), steps.action
    value = [(1 - epsilon) * max(row) + epsilon * np.mean(row) for row in q]
    expect(judge(algorithm, steps, epsilon), mixed(p, q.argmax(1), taken, epsilon), value, q[np.arange(COUNT), taken])


def test_an_agent_of_tf_agents_is_judged_where_it_samples_nothing() -> None:
    """What it samples is its collect policy's, whose chances it does not tell."""
    algorithm, steps = wrapped("dqn", OBS, CHOICE), steps_of(choices())
    q = get_predictions(algorithm, steps.observation, "q_values").numpy()
    chance = [float(b == a) for a, b in zip(steps.action, q.argmax(1), strict=True)]
    expect(judge(algorithm, steps), chance, q.max(1), q[np.arange(COUNT), steps.action])
    assert judge(algorithm, steps, 0.3) is None


def test_the_smaller_of_two_critics_counts() -> None:
    algorithm = make("discrete_sac", OBS, CHOICE)
    steps = steps_of(choices())
    p = get_predictions(algorithm, steps.observation, "action_probabilities").numpy()
    q = np.minimum(*(get_predictions(algorithm, steps.observation, f"q_values/{i}").numpy() for i in (0, 1)))
    expect(
        judge(algorithm, steps, 1.0),
        mixed(p, p.argmax(1), steps.action, 1.0),
        (p * q).sum(1),
        q[range(COUNT), steps.action],
    )


@pytest.mark.parametrize("name", ["dqn", "discrete_sac", "ppo"])
def test_a_forbidden_action_has_no_chance(name: str) -> None:
    algorithm = algorithm_of(name)
    spec = algorithm.observation_spec
    mask = np.random.RandomState(2).rand(COUNT, *spec["mask"].shape) < 0.5
    mask[:, 1] = True
    seen = np.zeros([COUNT, *spec["observation"].shape], np.float32)
    steps = steps_of(
        np.ones(COUNT, np.int64), {"observation": seen, "mask": mask.astype(spec["mask"].dtype.as_numpy_dtype)}
    )
    for action in range(mask.shape[1]):
        judged: Any = judge(algorithm, steps._replace(action=np.full(COUNT, action)), 1.0)
        np.testing.assert_array_equal((np.exp(judged.log_probability) > 1e-9)[ACTED], mask[ACTED, action])
        if name == "dqn":
            np.testing.assert_allclose(np.exp(judged.log_probability)[ACTED], (mask[:, action] / mask.sum(1))[ACTED])


def test_an_action_of_several_choices_is_taken_as_a_whole() -> None:
    spec = (tensor_spec.BoundedTensorSpec([2], tf.int64, 0, 2), tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1))
    algorithm = ActorCriticAlgorithm(OBS, spec, *feed_forward(OBS, spec), optimizer=adam(1e-3))
    steps = steps_of((choices(shape=(2,)), choices(high=2)))
    pairs, single = (get_predictions(algorithm, steps.observation, f"action_probabilities/{i}").numpy() for i in (0, 1))
    chance = []
    for i in range(COUNT):
        (a, b), c = steps.action[0][i], steps.action[1][i]
        likely = a == pairs[i, 0].argmax() and b == pairs[i, 1].argmax() and c == single[i].argmax()
        chance.append(0.4 * pairs[i, 0, a] * pairs[i, 1, b] * single[i, c] + 0.6 * likely)
    value = get_predictions(algorithm, steps.observation, "value").numpy()
    expect(judge(algorithm, steps, 0.4), chance, value)


def test_what_is_remembered_is_of_the_same_episode() -> None:
    algorithm = ActorCriticAlgorithm(OBS, CHOICE, *recurrent(OBS, CHOICE), optimizer=adam(1e-3))
    steps = steps_of(choices())
    chance, value = [], []
    for end in range(COUNT):
        begin = max(i for i in range(end + 1) if STEP_TYPE[i] == 0)
        seen = tf.constant(steps.observation[begin : end + 1])[tf.newaxis]
        step_type = tf.constant(STEP_TYPE[begin : end + 1])[tf.newaxis]
        logits = algorithm._actor_network(seen, step_type=step_type, network_state=())[0].logits[0, -1]
        chance.append(float(tf.nn.softmax(logits)[steps.action[end]]))
        value.append(float(algorithm._value_network(seen, step_type=step_type, network_state=())[0][0, -1]))
    expect(judge(algorithm, steps, 1.0), chance, value)


@pytest.mark.parametrize("recorded", [False, True])
def test_critics_remember_whether_their_states_are_recorded_or_not(recorded: bool) -> None:
    tf.keras.utils.set_random_seed(0)
    algorithm = make_recurrent("discrete_sac", OBS, CHOICE)
    algorithm.use_rollout_state = recorded
    for critic in algorithm._critic_networks:
        for variable in critic.trainable_variables:
            variable.assign(3.0 * variable)
    steps = steps_of(choices())
    expected = []
    for end in range(COUNT):
        begin = max(i for i in range(end + 1) if STEP_TYPE[i] == 0)
        seen = tf.constant(steps.observation[begin : end + 1])[tf.newaxis]
        step_type = tf.constant(STEP_TYPE[begin : end + 1])[tf.newaxis]
        values = [c(seen, step_type=step_type, network_state=())[0][0, -1] for c in algorithm._critic_networks]
        expected.append(float(tf.minimum(*values)[steps.action[end]]))
    judged: Any = judge(algorithm, steps, 1.0)
    np.testing.assert_allclose(judged.q_value, expected, rtol=1e-4, atol=1e-5)
    assert algorithm.use_rollout_state is recorded


def test_judging_takes_no_number_of_the_stream_that_is_open() -> None:
    algorithm, steps, seeds = make_recurrent("discrete_sac", OBS, CHOICE), steps_of(choices()), []
    for judges in (False, True):
        with rng.scope(tf.constant([1, 2])):
            if judges:
                judge(algorithm, steps, 0.5)
            seeds.append(rng.next_seed().numpy().tolist())
    assert seeds[0] == seeds[1]


def test_a_cloned_policy_remembers_too() -> None:
    steps = steps_of(choices())
    cloned = BcAlgorithm(OBS, CHOICE, recurrent(OBS, CHOICE)[0], dataset=steps, sequence_length=3, optimizer=adam(1e-3))
    judged: Any = judge(cloned, steps, 1.0)
    assert judged.value is None
    third = tf.constant(steps.observation[:3])[tf.newaxis]
    logits = cloned._actor_network(third, step_type=tf.constant(STEP_TYPE[:3])[tf.newaxis], network_state=())[0].logits
    expected = tf.nn.log_softmax(logits)[0, 2, steps.action[2]]
    np.testing.assert_allclose(judged.log_probability[2], expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["sac", "ddpg"])
def test_of_actions_without_chances_nothing_is_said(name: str) -> None:
    box = tensor_spec.BoundedTensorSpec([1], tf.float32, -1.0, 1.0)
    assert judge(make(name, OBS, box), steps_of(np.zeros([COUNT, 1], np.float32))) is None


def test_of_goals_that_are_not_recorded_nothing_is_said() -> None:
    def agent(goals: Any = None) -> Agent:
        seen = OBS if goals is None else [OBS, goals.action_spec]
        join = {} if goals is None else {"preprocessing_combiner": tf.keras.layers.Concatenate()}
        actor, value = feed_forward(seen, CHOICE, **join)
        algorithm = ActorCriticAlgorithm(seen, CHOICE, actor, value)
        return Agent(OBS, CHOICE, lambda **_: algorithm, goal_generator=goals, optimizer=adam(1e-3))

    assert judge(agent(), steps_of(choices())) is not None
    assert judge(agent(RandomCategoricalGoalGenerator(OBS, 2)), steps_of(choices())) is None


# ---- recordings ----


@pytest.mark.parametrize("name", ["dqn", "ac"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_recorded_chances_are_those_that_actions_were_drawn_with(name: str, epsilon: float) -> None:
    tf.random.set_seed(0)
    env = PolicyUnittestEnv(8, 11, action_type=ActionType.Discrete, seed=0)
    obs, act = specs_of(env)
    algorithm: Any = make("dqn", obs, act)
    if name == "ac":
        algorithm = ActorCriticAlgorithm(obs, act, *feed_forward(obs, act), optimizer=adam(1e-3))
    steps = record_episodes(algorithm, env, 400, epsilon_greedy=epsilon, random_seed=3)
    acted = steps.step_type != 2
    chances = np.exp(steps.log_probability[acted])
    # One over the chance of what was drawn has the number of actions as its mean.
    assert np.mean(1.0 / chances) == pytest.approx(2.0, abs=5 * np.std(1.0 / chances) / np.sqrt(acted.sum()))
    assert len(np.unique(steps.action)) == 2


def test_most_likely_actions_are_certain(tmp_path: Any) -> None:
    env = CountingEnvironment(2, num_actions=3)
    obs, act = specs_of(env)
    steps = record_episodes(make("dqn", obs, act), env, 4, random_seed=0)
    np.testing.assert_array_equal(steps.log_probability, np.zeros(len(steps.step_type)))
    path = str(tmp_path / "d.npz")
    write_dataset(path, steps)
    np.testing.assert_array_equal(read_dataset(path, obs, act).log_probability, steps.log_probability)
