"""What recurrent critics remember of collecting is what was done, whoever has chosen it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.critic_algorithm import advance
from alf.algorithms.ensemble_algorithm import EnsembleAlgorithm
from alf.algorithms.stored_steps import fill_memory
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.grouped_rows import GroupedRows
from alf.replay.dataset import Steps, write_dataset
from tests.algorithms import networks
from tests.algorithms.off_policy import adam
from tests.algorithms.recurrent_off_policy import make

ROWS, STEPS = 2, 6


def _inside(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
    return make("sac", observation_spec, action_spec)


def _algorithm(shell: str, obs: Any, act: Any) -> tuple[Any, Any]:
    """The algorithm, and the one with the critics inside of it."""
    if shell == "agent":
        agent = Agent(obs, act, _inside, optimizer=adam(1e-3))
        return agent, agent._rl_algorithm
    if shell == "trac":
        trac = TracAlgorithm(obs, act, _inside)
        return trac, trac._ac_algorithm
    if shell == "ensemble":
        ensemble = EnsembleAlgorithm(obs, act, [_inside])
        return ensemble, ensemble.members[0]
    if shell == "behaviors":
        behaviors = Behaviors(obs, act, {"agent": Behavior(algorithm_ctor=_inside)})
        return behaviors, behaviors.by_name["agent"]
    alone = _inside(obs, act)
    return alone, alone


def _critics_state(shell: str, state: Any) -> Any:
    state = state.rl if shell == "agent" else state.members[0] if shell == "ensemble" else state
    return state.critics


def _check(inside: Any, exp: Any, states: Any) -> None:
    """Of experience [T, B, ...] of one episode with the critics' states before each step."""
    for t in range(exp.step_type.shape[0] - 1):
        row = tf.nest.map_structure(lambda x, t=t: x[t], (exp.observation, exp.action, exp.step_type, states))
        after = advance(inside._critic_networks, row[:2], *row[2:])
        stored = tf.nest.map_structure(lambda x, t=t: x[t + 1], states)
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after, stored)


@pytest.mark.parametrize(
    ("shell", "who"),
    [(shell, "random") for shell in ("alone", "agent", "trac", "ensemble", "behaviors")]
    + [("alone", "policy"), ("alone", "teacher")],
)
def test_critics_remember_the_actions_that_were_played(shell: str, who: str) -> None:
    env = create_environment("Pendulum-v1", num_parallel_environments=ROWS, seed=1)
    env = GroupedRows(env, 2) if shell == "behaviors" else env
    obs, act = networks.specs_of(env)
    algorithm, inside = _algorithm(shell, obs, act)
    algorithm.use_rollout_state = True
    seen: list[Any] = []
    (inside if shell == "behaviors" else algorithm).add_experience_observer(seen.append)
    teacher = (lambda time_step, action: np.full_like(action, 1.5)) if who == "teacher" else None
    driver = SyncOffPolicyDriver(env, algorithm, STEPS, "uniform", random_seed=2, teacher=teacher)
    try:
        driver.gather(at_random=who == "random")
    finally:
        driver.stop()
    exp = tf.nest.map_structure(lambda x: x[0], seen[0]._replace(bootstrap=()))
    _check(inside, exp, _critics_state(shell, exp.state))


def test_critics_remember_the_actions_of_a_dataset(tmp_path: Any) -> None:
    env = create_environment("Pendulum-v1", num_parallel_environments=1, seed=1)
    obs, act = networks.specs_of(env)
    env.close()
    algorithm = make("sac", obs, act)
    algorithm.use_rollout_state = True
    algorithm.set_exp_replayer("uniform", 1)
    draw = np.random.default_rng(0)
    numbers = [draw.uniform(-1, 1, (STEPS, n)).astype(np.float32) for n in (3, 1)]
    step_type = np.array([0, *[1] * (STEPS - 2), 2], np.int32)
    path = str(tmp_path / "steps.npz")
    write_dataset(path, Steps(step_type, np.zeros(STEPS), np.ones(STEPS), *numbers))
    fill_memory(algorithm, path)
    replayer: Any = algorithm.exp_replayer
    exp = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), replayer.replay_all())
    _check(algorithm, exp, exp.state.critics)
