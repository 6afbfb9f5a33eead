"""What the algorithms of agents that come and go remember: statistics of decision steps only, and a state of each agent."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.agent import Agent
from alf.algorithms.agent_rows import experience_of
from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.normalization import ObservationNormalizer, RewardNormalizer
from alf.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, PolicyStep
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.agents_env import AgentsEnv
from alf.environments.counting_agents import CountingAgents
from alf.utils import common
from tests.algorithms import networks

FIRST, MID, LAST, IDLE = 0, 1, 2, 3


def _make_agents():
    return AgentsEnv(CountingAgents(max_agents=3, idle=0.4), slots={"agent": 3})


def _environment(rows):
    return create_environment(_make_agents, num_parallel_environments=rows, seed=4)


def _behaviors(env, make):
    specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    return Behaviors(*specs, {"agent": Behavior(make)})


def _make_normalizing(observation_spec, action_spec, debug_summaries=False):
    def make_ppo(observation_spec, action_spec, debug_summaries):
        nets = networks.feed_forward(observation_spec, action_spec, (8,))
        return PPOAlgorithm(observation_spec, action_spec, *nets, loss=PPOLoss(action_spec, gamma=0.9))

    return Agent(
        observation_spec,
        action_spec,
        make_ppo,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        observation_normalizer=ObservationNormalizer(observation_spec),
        reward_normalizer=RewardNormalizer(gamma=0.9),
    )


def test_normalisers_count_the_decision_steps_of_agents_and_nothing_else():
    tf.keras.utils.set_random_seed(1)
    env = _environment(2)
    algorithm = _behaviors(env, _make_normalizing)
    agent = algorithm.by_name["agent"]
    got = []
    agent.add_experience_observer(got.append)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=4, random_seed=1)
    try:
        for _ in range(30):
            driver.run()
            algorithm.train(num_updates=1)
    finally:
        driver.stop()
    assert any(len(set(exp.env_id.numpy()[0, 0])) < exp.env_id.shape[2] for exp in got), "several segments of a stream"
    returns: dict[int, float] = {}
    seen, rows = [], []
    for exp in (tf.nest.map_structure(lambda x: x.numpy(), e) for e in got):
        assert (exp.step_type <= LAST).all()
        rows.append(exp.observation.reshape(-1, 3))
        for column in range(exp.step_type.shape[2]):
            for t in range(exp.step_type.shape[1]):
                i = int(exp.env_id[0, t, column])
                if exp.step_type[0, t, column] == FIRST:
                    returns[i] = 0.0
                else:
                    returns[i] = 0.9 * returns.get(i, 0.0) + float(exp.reward[0, t, column])
                    seen.append(returns[i])
    observed = np.concatenate(rows).astype(np.float64)
    count, mean, variance = agent._observation_normalizer._normalizer.moments()
    assert float(count) == len(observed)
    np.testing.assert_allclose(mean, observed.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, observed.var(0), rtol=1e-4)
    count, _, variance = agent._reward_normalizer._normalizer.moments()
    assert float(count) == len(seen)
    assert float(variance) == pytest.approx(np.var(seen), rel=1e-4)


class Remembering(OnPolicyAlgorithm):
    """Its action is how often its agent has decided, which it has to remember."""

    def __init__(self, observation_spec, action_spec, debug_summaries=False):
        super().__init__(observation_spec, action_spec, train_state_spec=tf.TensorSpec([], tf.int64))

    def rollout(self, time_step, state, mode):
        return PolicyStep(state % 5, state + 1, ())

    def outputs(self, time_step, state):
        return {"value": state}


def test_what_networks_say_of_an_agent_that_begins_is_of_an_agent_that_remembers_nothing():
    env = _environment(2)
    algorithm = _behaviors(env, Remembering)
    env.close()
    time_step = common.zeros_from_spec(algorithm.time_step_spec, 2)
    # The environment's episode is in its midst: it alone tells of no beginning.
    time_step = time_step._replace(step_type=tf.constant([MID, MID]))
    time_step.observation["agent"]["step_type"] = tf.constant([[MID, FIRST, MID], [FIRST, MID, MID]])
    state = {"agent": tf.constant([[4, 5, 6], [7, 8, 9]], tf.int64)}
    assert algorithm.outputs(time_step, state)["agent/value"].numpy().tolist() == [[4, 0, 6], [0, 8, 9]]


def test_in_play_each_agent_remembers_its_own_steps():
    env = _environment(3)
    algorithm = _behaviors(env, Remembering)
    seen: list[tuple[int, int, int]] = []

    def look(trajectory):
        part = tf.nest.map_structure(np.asarray, trajectory.observation["agent"])
        action = np.asarray(trajectory.action["agent"])
        for at in np.argwhere(part["step_type"] < LAST):
            serial, times, _ = part["observation"][tuple(at)]
            seen.append((int(serial), int(times), int(action[tuple(at)])))

    driver = PolicyDriver(env, algorithm, observers=[look], epsilon_greedy=0.0, random_seed=1)
    driver.run_episodes(6)
    env.close()
    assert max(times for _, times, _ in seen) > 3
    assert all(action == times % 5 for _, times, action in seen)


@pytest.mark.parametrize("with_state", [False, True])
def test_the_rows_of_agents_have_the_version_of_their_environment_and_the_state_of_their_own(with_state):
    def step(*outer):
        each = np.arange(np.prod([*outer, 3]), dtype=np.float32).reshape(*outer, 3)
        seen = {"step_type": np.ones_like(each, np.int32), "reward": each, "discount": each, "observation": each}
        of_env = np.zeros(outer, np.float32)
        return ActionTimeStep(of_env.astype(np.int32), of_env, of_env, {"fox": seen}, {"fox": each}, of_env)

    first, after = step(1, 1, 2), step(1, 2)
    exp = Experience(
        *first._replace(env_id=np.array([[[4, 9]]], np.int32)),
        action=first.prev_action,
        rollout_info=first.prev_action,
        state=first.prev_action,
        policy_version=np.array([[[7, 8]]]),
        bootstrap=Bootstrap(
            after._replace(env_id=np.array([[4, 9]], np.int32)), {"fox": 10.0 + after.prev_action["fox"]}
        ),
    )
    rows = experience_of(tf.nest.map_structure(tf.constant, exp), "fox", 3, with_state)
    assert rows.env_id.numpy().tolist() == [[[12, 13, 14, 27, 28, 29]]]
    assert rows.policy_version.numpy().tolist() == [[[7, 7, 7, 8, 8, 8]]]
    assert rows.bootstrap.state.numpy().tolist() == [[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]]
    if with_state:
        assert rows.state.numpy().tolist() == [[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]]
    else:
        assert rows.state == ()
