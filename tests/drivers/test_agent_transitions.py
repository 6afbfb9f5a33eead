"""What each agent did at each step of a segment, with None where nothing is to be learned of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Bootstrap, Experience
from alf.drivers.agent_transitions import AgentTransition, agent_transitions
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.counting_agents import IDLE_REWARD, CountingAgents
from tests.drivers.test_agents_in_drivers import SLOTS, _algorithm, _environments

FIRST, MID, LAST, IDLE = 0, 1, 2, 3


def segment(env_types: list[int], slots: list[list[int]]) -> Experience:
    """One behavior, "fox", of K slots [T + 1] each; a slot's reward, observation and action tell slot and step."""
    steps, count = len(env_types) - 1, len(slots)
    types = np.array(slots, np.int32).T
    number = 10.0 * np.arange(count) + np.arange(steps + 1)[:, np.newaxis]
    seen = {
        "step_type": types,
        "reward": number.astype(np.float32),
        "discount": np.where(types == LAST, 0.0, 1.0).astype(np.float32),
        "observation": (100 + number[..., np.newaxis]).astype(np.float32),
    }
    of_env = np.array(env_types, np.int32)[:, np.newaxis]
    last = {"fox": {name: x[-1:] for name, x in seen.items()}}
    return Experience(
        step_type=of_env[:-1],
        observation={"fox": {name: x[:-1, np.newaxis] for name, x in seen.items()}},
        action={"fox": (200 + number[:-1, np.newaxis]).astype(np.int64)},
        bootstrap=Bootstrap(ActionTimeStep(step_type=of_env[-1], observation=last)),
    )


def told(transition: AgentTransition | None) -> Any:
    """(step type, next step type, reward, discount, steps), or None."""
    if transition is None:
        return None
    t = transition
    return t.step_type, t.next_step_type, float(t.reward), float(t.discount), t.steps


def test_known_answers() -> None:
    exp = segment(
        [FIRST, MID, MID, MID, MID],
        [
            [FIRST, MID, LAST, IDLE, FIRST],
            [IDLE, FIRST, IDLE, IDLE, MID],
            [FIRST, IDLE, IDLE, IDLE, IDLE],
            [MID, FIRST, MID, LAST, FIRST],
        ],
    )
    steps = agent_transitions(exp, 0)
    rows = {k: [told(step["fox", k]) for step in steps] for k in range(4)}
    assert all(set(step) == {("fox", k) for k in range(4)} for step in steps)
    assert rows[0] == [(FIRST, MID, 1.0, 1.0, 1), (MID, LAST, 2.0, 0.0, 1), None, None]
    # What comes of an action is seen after two steps without one, in the bootstrap.
    assert rows[1] == [None, (FIRST, MID, 14.0, 1.0, 3), None, None]
    assert rows[2] == [None] * 4, "it is not known yet what came of its action"
    assert rows[3] == [None, (FIRST, MID, 32.0, 1.0, 1), (MID, LAST, 33.0, 0.0, 1), None], "the first end was lost"
    first = steps[1]["fox", 1]
    assert first is not None
    assert (first.observation.tolist(), first.next_observation.tolist(), int(first.action)) == ([111.0], [114.0], 211)


def test_the_end_of_the_environment_cuts_agents() -> None:
    exp = segment([MID, LAST, FIRST, MID], [[MID, MID, FIRST, MID], [MID, IDLE, FIRST, MID], [MID, LAST, IDLE, FIRST]])
    rows = [[told(step["fox", k]) for step in agent_transitions(exp, 0)] for k in range(3)]
    assert rows[0] == [(MID, LAST, 1.0, 1.0, 1), None, (FIRST, MID, 3.0, 1.0, 1)]
    assert rows[1] == [None, None, (FIRST, MID, 13.0, 1.0, 1)], "it never saw what its last action led to"
    assert rows[2] == [(MID, LAST, 21.0, 0.0, 1), None, None]


def test_observations_without_agents_are_refused() -> None:
    with pytest.raises(ValueError, match="is for environments with agents"):
        agent_transitions(Experience(observation=np.zeros((2, 1, 3))), 0)


def test_what_agents_of_an_environment_did() -> None:
    """Each life's transitions pair an action with its own reward and its next observation, in every row and slot."""
    envs = _environments(1, 2)
    algorithm = _algorithm(envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 12, 1, mode="sync", random_seed=1)
    driver.start()
    try:
        segments = [driver.get_training_exps()[0] for _ in range(4)]
    finally:
        driver.stop()
    seen = 0
    for batch in segments:
        exp = _one(batch)
        for row in range(2):
            for t, step in enumerate(agent_transitions(exp, row)):
                assert set(step) == {(name, k) for name, count in SLOTS.items() for k in range(count)}
                for (name, slot), transition in step.items():
                    kind = exp.observation[name]["step_type"][t, row, slot]
                    if transition is None:
                        continue
                    seen += 1
                    assert kind == transition.step_type in (FIRST, MID)
                    serial, times, now = transition.observation
                    due = CountingAgents.expected_reward(times, int(transition.action))
                    assert transition.next_observation[0] == serial
                    if transition.next_observation[1] == times + 1:
                        idle = transition.next_observation[2] - now - 1
                        assert transition.reward == pytest.approx(due + idle * IDLE_REWARD)
                        # An agent that begins where another ends has its first step in a row of its own.
                        assert transition.steps >= idle + 1
                    else:
                        # Its end was not observed: the last observation again.
                        assert transition.next_step_type == LAST
                        assert due <= transition.reward <= due + 20 * IDLE_REWARD
    assert seen > 100


def _one(batch: Experience) -> Experience:
    """The only segment of a batch [1, T, B, ...]."""
    return tf.nest.map_structure(lambda x: x.numpy()[0], batch)
