"""A hundred thousand agents that live for a moment leave nothing behind, in the environment and in what joins their steps."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from alf.algorithms.agent_processor import AgentProcessor
from alf.data_structures import ActionTimeStep, Bootstrap, Experience
from alf.environments.agents_env import _REMEMBERED_NAMES, AgentsEnv
from alf.environments.counting_agents import CountingAgents

AGENTS = 100_000
# What a hundred bytes an agent would come to is fifty times as much, of the fewest here five times.
MOST_GROWTH = 200_000


def _held_bytes() -> int:
    """Traced memory, without what waits for the garbage collector."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.parametrize("agents", [25_000, AGENTS])
def test_in_the_environment(agents: int) -> None:
    inner = CountingAgents(max_agents=8, steps=10**9, birth=1.0, death=0.9, idle=0.0, again=0.0)
    env = AgentsEnv(inner, slots={"agent": 8})
    env.reset(seed=1)
    action = {"agent": np.zeros(8, np.int64)}
    sizes = []
    tracemalloc.start()
    try:
        # The names that the environment remembers are forgotten all at once: as many of them are there both times.
        for number in (_REMEMBERED_NAMES + agents % _REMEMBERED_NAMES, agents):
            while inner._serial < number:
                env.step(action)
            sizes.append(_held_bytes())
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < MOST_GROWTH


def _lives(streams: int, length: int, first: int) -> Experience:
    """Agents of two steps each, one after another in each stream."""
    number = first + np.arange(length + 1)[:, np.newaxis] + np.zeros(streams, np.int64)

    def steps(rows: np.ndarray) -> ActionTimeStep:
        return ActionTimeStep(
            step_type=np.where(rows % 2, 2, 0).astype(np.int32),
            reward=rows.astype(np.float32),
            discount=np.ones(rows.shape, np.float32),
            observation=rows.astype(np.float32)[..., np.newaxis],
            prev_action=np.zeros_like(rows),
            env_id=np.broadcast_to(np.arange(streams, dtype=np.int32), rows.shape),
        )

    after = Bootstrap(steps(number[-1]), ())
    return Experience(
        *steps(number[:-1]), action=number[:-1], policy_version=np.zeros((length, streams), np.int64), bootstrap=after
    )


def test_in_what_joins_their_steps() -> None:
    processor = AgentProcessor(16)
    streams, length = 50, 100
    sizes, taken, batches = [], 0, 2 * AGENTS // (streams * length)
    tracemalloc.start()
    try:
        for i in range(batches):
            processor.add(_lives(streams, length, i * length), streams)
            while (exp := processor.take(streams)) is not None:
                taken += int(np.count_nonzero(exp.step_type.numpy() == 2))
            if i in (batches // 10, batches - 1):
                sizes.append(_held_bytes())
    finally:
        tracemalloc.stop()
    assert processor.dropped_steps == 0
    assert taken + processor.held_steps >= AGENTS
    assert sizes[1] - sizes[0] < MOST_GROWTH
