"""SAC with DIAYN: without any reward, skills come about that can be told from where they lead."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

from alf.algorithms.agent import Agent
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.networks.critic_network import CriticNetwork
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import _normal, adam

SKILLS, EPISODE = 2, 8


class WalkEnv(gymnasium.Env):
    """A place on a line, moved by the action; the reward, always 1, says nothing."""

    observation_space = gymnasium.spaces.Box(-EPISODE, EPISODE, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._place, self._steps = 0.0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._place += float(action[0])
        self._steps += 1
        return np.array([self._place], np.float32), 1.0, False, self._steps == EPISODE, {}


def agent_of(env: Any) -> Agent:
    obs, act = specs_of(env)

    def sac(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> SacAlgorithm:
        joined = {"preprocessing_combiner": tf.keras.layers.Concatenate()}
        actor = ActorDistributionNetwork(
            observation_spec, action_spec, fc_layer_params=(32,), continuous_projection_net=_normal, **joined
        )
        critic = CriticNetwork(
            (observation_spec, action_spec),
            observation_preprocessing_combiner=tf.keras.layers.Concatenate(),
            joint_fc_layer_params=(32, 32),
        )
        rates = {f"{part}_optimizer": adam(5e-3) for part in ("actor", "critic", "alpha")}
        return SacAlgorithm(observation_spec, action_spec, actor, critic, critic_loss=OneStepTDLoss(0.9), **rates)

    return Agent(
        obs,
        act,
        rl_algorithm_cls=sac,
        intrinsic_curiosity_module=DIAYNAlgorithm(SKILLS, obs, hidden_size=16),
        goal_generator=RandomCategoricalGoalGenerator(obs, SKILLS),
        extrinsic_reward_coef=0.0,
        optimizer=adam(5e-3),
    )


@pytest.mark.slow
def test_skills_can_be_told_from_where_they_lead() -> None:
    """The discriminator guesses at first; at the end the two skills walk into the two directions."""
    tf.keras.utils.set_random_seed(0)
    env = create_environment(WalkEnv, num_parallel_environments=16, seed=0, vectorization="sync")
    agent = agent_of(env)
    agent.set_seed(0)
    driver = SyncOffPolicyDriver(env, agent, 8, "uniform", random_seed=0)
    losses = []
    try:
        for _ in range(4):
            driver.run()
        for _ in range(120):
            driver.run()
            agent.train(8, 64, 2, whole_replay_buffer_training=False)
            losses.append(float(agent.last_train_metrics["DIAYNAlgorithm/loss"]))
    finally:
        driver.stop()
    assert losses[0] > 0.9 * np.log(2)
    assert np.mean(losses[-10:]) < 0.5 * np.log(2)
    means = []
    for skill in np.eye(SKILLS, dtype=np.float32):
        place = tf.constant([[0.0]])
        distribution, _ = agent._rl_algorithm._actor_network(
            [place, tf.constant([skill])], step_type=tf.constant([1]), network_state=()
        )
        means.append(float(distribution.mode()[0, 0]))
    assert min(means) < -0.3
    assert max(means) > 0.3
