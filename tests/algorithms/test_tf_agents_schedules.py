"""Schedules of how agents of TF-Agents explore."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf_agents.agents import CategoricalDqnAgent, DdpgAgent, DqnAgent
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.agents.ddpg.critic_network import CriticNetwork
from tf_agents.networks.categorical_q_network import CategoricalQNetwork
from tf_agents.networks.q_network import QNetwork

from alf.algorithms.exploration import LinearSchedule
from alf.algorithms.tf_agents_algorithm import TFAgentsAlgorithm
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import adam
from tests.algorithms.test_tf_agents_algorithm import CHOICE, OBS, environment


def _agent(name: str, obs: Any, act: Any, schedule: LinearSchedule) -> TFAgentsAlgorithm:
    def ctor(**kw: Any) -> Any:
        obs, act = kw["time_step_spec"].observation, kw["action_spec"]
        if name == "ddpg":
            networks = {
                "actor_network": ActorNetwork(obs, act, fc_layer_params=(8,)),
                "critic_network": CriticNetwork((obs, act), joint_fc_layer_params=(8,)),
            }
            return DdpgAgent(
                actor_optimizer=adam(1e-2), critic_optimizer=adam(1e-2), ou_stddev=schedule, **networks, **kw
            )
        if name == "c51":
            q = CategoricalQNetwork(obs, act, fc_layer_params=(8,))
            how = {"epsilon_greedy": None, "boltzmann_temperature": schedule}
            return CategoricalDqnAgent(categorical_q_network=q, optimizer=adam(1e-2), **how, **kw)
        q = QNetwork(obs, act, fc_layer_params=(8,))
        return DqnAgent(q_network=q, optimizer=adam(1e-2), epsilon_greedy=schedule, **kw)

    return TFAgentsAlgorithm(obs, act, ctor)


@pytest.mark.parametrize("unit", ["env_steps", "updates"])
@pytest.mark.parametrize(
    ("name", "control"), [("dqn", "epsilon_greedy"), ("c51", "boltzmann_temperature"), ("ddpg", "ou_stddev")]
)
def test_schedules_of_an_agent_go_on(name: str, control: str, unit: str) -> None:
    env = environment(name, 4, 0)
    last = 0.5 if name == "c51" else 0.0
    algorithm = _agent(name, *specs_of(env), LinearSchedule(1.0, last, 40, unit))
    driver = SyncOffPolicyDriver(env, algorithm, 5, exp_replayer="uniform", random_seed=0)
    seen = []
    try:
        algorithm.exploration_stands = True
        driver.run()
        algorithm.exploration_stands = False
        for _ in range(3):
            algorithm.train(8, 8, 2, whole_replay_buffer_training=False)
            seen.append(float(algorithm.last_train_metrics[control]))
            driver.run()
    finally:
        driver.stop()
    # 20 steps in each segment; of updates the mean over those of a call is reported, each after it has counted.
    shares = [0.0, 0.5, 1.0] if unit == "env_steps" else [(8 * i + 4.5) / 40 for i in range(3)]
    np.testing.assert_allclose(seen, [1 - share * (1 - last) for share in shares], atol=1e-5)


def test_a_schedule_that_two_agents_share_is_refused() -> None:
    schedule = LinearSchedule(1.0, 0.0, 40)
    _agent("dqn", OBS, CHOICE, schedule)
    with pytest.raises(ValueError, match="share the schedule"):
        _agent("dqn", OBS, CHOICE, schedule)
