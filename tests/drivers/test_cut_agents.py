"""Agents that the end of their environment's episode cuts, by a crash or a limit: learned from as truncated, or dropped."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.agent_rows import cut_rows, rows_of
from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.data_structures import ActionTimeStep, Experience
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.agents import DISCOUNT, IDLE, OBSERVATION, REWARD, STEP_TYPE
from alf.environments.agents_env import AgentsEnv
from alf.environments.counting_agents import CountingAgents
from alf.environments.random_limits import RandomTimeLimit
from tests.drivers.test_agents_in_drivers import (
    FIRST,
    LAST,
    RecordingAlgorithm,
    T,
    _count_decisions,
    _environments,
    _run,
    _streams,
)

MID = 1
# When the counting environment truncates all agents.
END = 20


def _algorithm(env, **settings):
    specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    return Behaviors(*specs, {"*": Behavior(RecordingAlgorithm, **settings)})


def _learned(streams):
    return sum(len(steps) for steps in streams.values())


def _driver(kind, envs, algorithm):
    if kind == "sync":
        return SyncOffPolicyDriver(envs[0], algorithm, unroll_length=T, random_seed=1)
    return AsyncOffPolicyDriver(envs, algorithm, num_actor_queues=0, unroll_length=T, random_seed=1, mode=kind)


@pytest.mark.parametrize("kind", ["sync", "lockstep"])
def test_what_is_cut_can_be_dropped(kind):
    envs = _environments(1, 3, crash=0.02)
    algorithm = _algorithm(envs[0], cut_episodes="drop")
    decisions = _count_decisions(algorithm)
    _run(_driver(kind, envs, algorithm), algorithm, 60)
    assert envs[0].restarts > 2
    streams = _streams(algorithm)
    held = sum(part.processor.held_steps for part in algorithm._parts)
    dropped = algorithm.dropped_steps
    assert min(dropped.values()) > 0
    assert _learned(streams) + held + sum(dropped.values()) == sum(decisions.values())
    ends = breaks = 0
    for steps in streams.values():
        for i, (a, b) in enumerate(itertools.pairwise(steps)):
            # Nobody is shown the end of the environment's episode, nor truncated by a crash, which repeats a step.
            assert a["step_type"] != LAST or a["now"] < END
            if b["step_type"] != FIRST:
                assert b["serial"] == a["serial"]
                assert b["prev_action"] == a["action"]
                assert b["state"] == a["state"] + 1
                assert b["seen"] == a["seen"] + 1 or (b["step_type"] == LAST and b["reward"] > 0)
                continue
            assert (b["prev_action"], b["state"], b["seen"]) == (0, 0.0, 0)
            ends += a["step_type"] == LAST
            if a["step_type"] != LAST:
                # What was in whole segments before the cut stays; a segment itself never goes over one.
                assert i % T == T - 1
                breaks += 1
    assert ends > 50
    assert breaks > 5
    # Nobody learns what is held where streams begin anew.
    _driver(kind, _environments(1, 3), algorithm).stop()
    assert held > 0
    assert sum(algorithm.dropped_steps.values()) == held + sum(dropped.values())


def test_by_default_it_is_truncated():
    envs = _environments(1, 3)
    algorithm = _algorithm(envs[0])
    _run(_driver("sync", envs, algorithm), algorithm, 30)
    at_the_end = [s for steps in _streams(algorithm).values() for s in steps if s["now"] == END]
    assert len(at_the_end) > 10
    assert {(s["step_type"], s["discount"]) for s in at_the_end} == {(LAST, 1.0)}
    assert set(algorithm.dropped_steps.values()) == {0}


def _make_limited():
    agents = CountingAgents(steps=50, birth=0.0, death=0.0, idle=0.0)
    # Such a limit ends the episode of the environment, and tells no agent.
    return RandomTimeLimit(AgentsEnv(agents, slots={"agent": 3}), 7, 7)


def test_a_limit_that_no_agent_is_told_of_truncates_all():
    env = create_environment(_make_limited, num_parallel_environments=2, seed=1)
    algorithm = _algorithm(env)
    _run(_driver("sync", [env], algorithm), algorithm, 20)
    for steps in _streams(algorithm).values():
        assert len(steps) > 30
        for step in steps:
            ended = step["now"] == 7
            assert (step["step_type"] == LAST, step["discount"]) == (ended, 1.0)
        assert all((b["step_type"] == FIRST) == (a["step_type"] == LAST) for a, b in itertools.pairwise(steps))


def test_rows_of_agents_end_with_their_environment():
    """Where slots are never idle nothing but this tells learning and acting of the end."""
    seen = {
        STEP_TYPE: tf.constant([[FIRST, MID, LAST], [FIRST, MID, IDLE]]),
        REWARD: tf.zeros([2, 3]),
        DISCOUNT: tf.constant([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]),
        OBSERVATION: tf.zeros([2, 3, 4]),
    }
    time_step = ActionTimeStep(
        tf.constant([MID, LAST]),
        tf.zeros([2]),
        tf.ones([2]),
        {"fox": seen},
        {"fox": tf.ones([2, 3])},
        tf.constant([0, 1]),
    )
    rows = rows_of(time_step, "fox", 3)
    assert rows.step_type.numpy().tolist() == [FIRST, MID, LAST, LAST, LAST, IDLE]
    assert rows.discount.numpy().tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert rows.prev_action.numpy().tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rows.env_id.numpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_who_ends_by_itself_when_its_environment_does_is_not_cut():
    """As where the last of a team ends the episode: what it has learned at its end is not to be dropped."""
    seen = {
        STEP_TYPE: np.array([[[FIRST, MID, LAST, LAST, IDLE], [FIRST, MID, LAST, LAST, IDLE]]]),
        DISCOUNT: np.array([[[1.0, 1.0, 0.0, 1.0, 1.0]] * 2], np.float32),
    }
    exp = Experience(step_type=np.array([[MID, LAST]]), observation={"fox": seen})
    exp = tf.nest.map_structure(lambda x: x[np.newaxis], exp)
    assert cut_rows(exp, "fox").tolist() == [[[False] * 5 + [True, True, False, True, False]]]


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match=r"Behavior\.cut_episodes='discard' must be 'truncate' or 'drop'"):
        Behavior(RecordingAlgorithm, cut_episodes="discard")
