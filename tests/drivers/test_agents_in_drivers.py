"""Agents that come and go, through every driver: each step of each agent once, in order, with what its own actor saw."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.specs import tensor_spec

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from alf.data_structures import Experience, PolicyStep
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.agents_env import AgentsEnv
from alf.environments.counting_agents import IDLE_REWARD, CountingAgents

FIRST, LAST = 0, 2
SLOTS = {"fox": 2, "hen": 3}
T = 4


class _Info(NamedTuple):
    action_distribution: Any
    seen: Any
    state: Any
    prev_action: Any
    weight: Any


class RecordingAlgorithm(OnPolicyAlgorithm):
    """Acts by what it observes alone; records what it saw; counts the steps of an agent in its state, and batches."""

    def __init__(self, observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> None:
        super().__init__(observation_spec, action_spec, train_state_spec=tf.TensorSpec([], tf.float32))
        self._weight = tf.Variable(0.0, trainable=False)
        self.batches: list[Experience] = []
        # By the version of all behaviors' weights, what this one's was.
        self.weights: dict[int, float] = {0: 0.0}
        self.add_experience_observer(self.batches.append)

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        serial, seen, _ = tf.unstack(time_step.observation, axis=-1)
        action = tf.cast(3 * serial + 2 * seen, tf.int64) % 5
        weight = self._weight + tf.zeros_like(serial)
        logits = 100.0 * tf.one_hot(action, 5) + 0.0 * weight[:, None]
        distribution = tfp.distributions.Categorical(logits=logits, dtype=tf.int64)
        info = _Info(distribution, time_step.observation, state, time_step.prev_action, weight)
        return PolicyStep(action=action, state=state + 1.0, info=info)

    def _train(self, experience: Experience, plan: Any) -> dict[str, tf.Tensor]:
        self._iterations.assign_add(1)
        self._weight.assign_add(1.0)
        return {"loss": tf.zeros([])}


def _make_agents(crash: float) -> AgentsEnv:
    return AgentsEnv(CountingAgents(("fox", "hen"), 2, crash=crash), {"fox*": "fox", "hen*": "hen"}, SLOTS)


def _environments(count: int, rows: int, crash: float = 0.0, vectorization: str | None = None) -> list[Any]:
    return [
        create_environment(
            functools.partial(_make_agents, crash),
            num_parallel_environments=rows,
            seed=100 + i,
            vectorization=vectorization,
            max_restarts=1000,
            max_restarts_per_window=1000,
        )
        for i in range(count)
    ]


def _algorithm(env: Any) -> Behaviors:
    return Behaviors(
        tensor_spec.from_spec(env.observation_spec()),
        tensor_spec.from_spec(env.action_spec()),
        {"*": Behavior(RecordingAlgorithm)},
    )


def _run(driver: Any, algorithm: Behaviors, batches: int) -> None:
    driver.start()
    try:
        for _ in range(batches):
            driver.run_async() if isinstance(driver, AsyncOffPolicyDriver) else driver.run()
            _learn(algorithm)
    finally:
        driver.stop()


def _learn(algorithm: Behaviors) -> None:
    algorithm.train()
    for child in algorithm.by_name.values():
        child.weights[int(algorithm.iterations)] = float(child._weight)


Step = dict[str, Any]
Streams = dict[tuple[str, int], list[Step]]


def _streams(algorithm: Behaviors) -> Streams:
    """What each slot of each environment went through, by what its behavior was given to learn from."""
    found: Streams = {}
    for name, child in algorithm.by_name.items():
        for exp in (tf.nest.map_structure(lambda x: x.numpy(), batch) for batch in child.batches):
            _, length, width = exp.step_type.shape
            assert length == T
            for row in range(width):
                steps = found.setdefault((name, int(exp.env_id[0, 0, row])), [])
                steps += [_step(exp, t, row, child.weights) for t in range(length)]
    return found


def _step(exp: Experience, t: int, row: int, weights: dict[int, float]) -> Step:
    at = (0, t, row)
    info = exp.rollout_info
    # The row is one step: what was observed, what the actor saw then, and what it recorded.
    np.testing.assert_array_equal(exp.observation[at], info.seen[at])
    assert exp.action[at] == np.argmax(info.action_distribution["logits"][at])
    assert exp.prev_action[at] == info.prev_action[at]
    assert exp.state[at] == info.state[at]
    assert info.weight[at] == weights[int(exp.policy_version[at])]
    serial, seen, now = (int(x) for x in exp.observation[at])
    return {
        "serial": serial,
        "seen": seen,
        "now": now,
        "step_type": int(exp.step_type[at]),
        "reward": float(exp.reward[at]),
        "discount": float(exp.discount[at]),
        "action": int(exp.action[at]),
        "prev_action": int(exp.prev_action[at]),
        "state": float(exp.state[at]),
    }


def _check_stream(steps: list[Step], crashes: bool) -> None:
    """Lives one after another, each from its first observation, none left out, rewards those of its own actions."""
    before: Step | None = None
    for step in steps:
        if before is None or before["step_type"] == LAST:
            assert step["step_type"] == FIRST
            assert (step["seen"], step["prev_action"], step["state"], step["reward"]) == (0, 0, 0.0, 0.0)
        else:
            assert step["step_type"] != FIRST
            assert step["serial"] == before["serial"]
            assert step["prev_action"] == before["action"]
            assert step["state"] == before["state"] + 1
            due = CountingAgents.expected_reward(before["seen"], before["action"])
            if step["seen"] == before["seen"]:
                # Its end was not observed, or came by a crash, in which nothing is gained: the last observation again.
                assert crashes or step["step_type"] == LAST
                if step["reward"] or not crashes:
                    assert due <= step["reward"] <= due + 20 * IDLE_REWARD
                else:
                    assert step["discount"] == 1.0
            else:
                assert step["seen"] == before["seen"] + 1
                idle = step["now"] - before["now"] - 1
                assert step["reward"] == pytest.approx(due + idle * IDLE_REWARD)
        before = step


def _lives(streams: Streams) -> list[tuple[str, int, int, int, bool]]:
    """Each step; an end that was not observed shows the step before it again."""
    return [
        (name, stream, step["serial"], step["seen"], step["step_type"] == LAST)
        for (name, stream), steps in streams.items()
        for step in steps
    ]


def _count_decisions(algorithm: Behaviors) -> dict[str, int]:
    """By behavior the steps that were observed of slots that are not idle, filled as the algorithm goes on."""
    counts = dict.fromkeys(SLOTS, 0)

    def count(exp: Experience) -> None:
        for name in counts:
            counts[name] += int(np.count_nonzero(exp.observation[name]["step_type"] <= LAST))

    algorithm.add_experience_observer(count)
    return counts


def test_every_step_of_every_agent_is_learned_from_once():
    envs = _environments(1, 2)
    algorithm = _algorithm(envs[0])
    decisions = _count_decisions(algorithm)
    _run(SyncOffPolicyDriver(envs[0], algorithm, unroll_length=T, random_seed=1), algorithm, 50)
    streams = _streams(algorithm)
    for part in algorithm._parts:
        learned = sum(len(steps) for (name, _), steps in streams.items() if name == part.name)
        assert learned + part.processor.held_steps == decisions[part.name]
        assert part.processor.dropped_steps == 0
    assert set(streams) == {(name, i) for name, count in SLOTS.items() for i in range(2 * count)}
    for steps in streams.values():
        _check_stream(steps, crashes=False)
    lives = _lives(streams)
    assert len(set(lives)) == len(lives) > 300
    assert any(step["step_type"] == LAST and step["discount"] == 0 for steps in streams.values() for step in steps)
    assert any(step["step_type"] == LAST and step["discount"] == 1 for steps in streams.values() for step in steps)


def test_nothing_is_learned_from_a_heat_up():
    """By those who learn from each step once, but for its last segments."""
    env = _environments(1, 2)[0]
    algorithm = _algorithm(env)
    decisions = _count_decisions(algorithm)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=T, random_seed=1)
    driver.start()
    try:
        for _ in range(10):
            driver.run()
        heated, dropped = dict(decisions), {part.name: part.processor.dropped_steps for part in algorithm._parts}
        for _ in range(20):
            _learn(algorithm)
            driver.run()
    finally:
        driver.stop()
    streams = _streams(algorithm)
    for part in algorithm._parts:
        # Each stream has an open segment, and one that came last.
        assert heated[part.name] - dropped[part.name] <= 2 * T * part.slots.count * env.batch_size < heated[part.name]
        assert part.processor.dropped_steps == dropped[part.name]
        learned = sum(len(steps) for (name, _), steps in streams.items() if name == part.name)
        assert learned + part.processor.held_steps + dropped[part.name] == decisions[part.name]


@pytest.fixture(scope="module")
def reference() -> Streams:
    """What the slots of two environments go through in sync, the second's ids behind the first's."""
    found: Streams = {}
    for i, env in enumerate(_environments(2, 2)):
        alone = _algorithm(env)
        _run(SyncOffPolicyDriver(env, alone, unroll_length=T, random_seed=1), alone, 40)
        found |= {(name, slot + 2 * i * SLOTS[name]): steps for (name, slot), steps in _streams(alone).items()}
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "lockstep"},
        pytest.param({"mode": "sync", "num_envs": 1}, marks=pytest.mark.slow),
        {"learn_queue_cap": 2},
        pytest.param({"num_actor_queues": 1}, marks=pytest.mark.slow),
        {"num_actor_queues": 2, "stepping": "host"},
        pytest.param({"vectorization": "async"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_driver_gives_agents_the_same_segments(options, reference):
    options = dict(options)
    envs = _environments(options.pop("num_envs", 2), 2, vectorization=options.pop("vectorization", None))
    algorithm = _algorithm(envs[0])
    driver = AsyncOffPolicyDriver(
        envs, algorithm, **{"num_actor_queues": 0, "unroll_length": T, "random_seed": 1, **options}
    )
    _run(driver, algorithm, 20)
    streams = _streams(algorithm)
    assert sum(len(steps) for steps in streams.values()) > 100
    for key, steps in streams.items():
        _check_stream(steps, crashes=False)
        shared = min(len(steps), len(reference[key]))
        assert steps[:shared] == reference[key][:shared]


def test_a_crash_cuts_all_open_agents_as_truncated():
    envs = _environments(1, 3, crash=0.02)
    algorithm = _algorithm(envs[0])
    _run(SyncOffPolicyDriver(envs[0], algorithm, unroll_length=T, random_seed=1), algorithm, 60)
    assert envs[0].restarts > 2
    streams = _streams(algorithm)
    cut = 0
    for steps in streams.values():
        _check_stream(steps, crashes=True)
        cut += sum(a["seen"] == b["seen"] and not b["reward"] for a, b in itertools.pairwise(steps))
    assert cut > 2
