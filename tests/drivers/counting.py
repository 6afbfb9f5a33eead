"""An algorithm and an oracle that prove what drivers deliver.

The algorithm records, with every action, what it saw: its weights, its distribution's parameters, its state. The oracle
walks each stream step by step in plain Python, from the rules of CountingEnvironment alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.specs import tensor_spec

from alf.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from alf.data_structures import Experience, PolicyStep
from alf.environments.testing import CountingEnvironment
from alf.utils.dist_utils import sample_action_distribution

LENGTHS = (3, 5, 1, 4)
TERMINATE = (True, False)


class CountingInfo(NamedTuple):
    action_distribution: Any
    weight: Any


class CountingAlgorithm(OnPolicyAlgorithm):
    """Acts at random from logits that follow from observation and weight; each `train` adds 1 to the weight."""

    def __init__(self, env: Any, recurrent: bool = True, **kwargs: Any) -> None:
        super().__init__(
            tensor_spec.from_spec(env.observation_spec()),
            tensor_spec.from_spec(env.action_spec()),
            train_state_spec=tf.TensorSpec([], tf.float32) if recurrent else (),
            **kwargs,
        )
        self._recurrent = recurrent
        self.use_rollout_state = recurrent
        self._weight = tf.Variable(0.0, trainable=False)
        self.batches: list[Experience] = []
        self.add_experience_observer(self.batches.append)

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        weight = self._weight + tf.zeros_like(time_step.reward)
        logits = tf.concat([time_step.observation * 0.01, weight[:, None] * 0.1, weight[:, None] * 0.0], -1)
        distribution = tfp.distributions.Categorical(logits=logits, dtype=tf.int64)
        return PolicyStep(
            action=sample_action_distribution(distribution),
            state=state + 1.0 if self._recurrent else (),
            info=CountingInfo(distribution, weight),
        )

    def _train(self, experience: Experience, plan: Any) -> dict[str, tf.Tensor]:
        self._iterations.assign_add(1)
        self._weight.assign_add(1.0)
        return {"loss": tf.zeros([])}


def make_envs(count: int, batch_size: int, **kwargs: Any) -> list[CountingEnvironment]:
    return [
        CountingEnvironment(batch_size, i * batch_size, kwargs.pop("lengths", LENGTHS), TERMINATE, **kwargs)
        for i in range(count)
    ]


class Walker:
    """Where a stream must stand next, by the rules of the environment."""

    def __init__(self, stream: int, lengths: Sequence[int] = LENGTHS) -> None:
        self.stream, self.episode, self.position = stream, 0, 0
        self.lengths = lengths
        self.prev_action = 0

    def expect(self, row: dict[str, Any]) -> None:
        """Checks the time step of one row of experience."""
        index = (self.stream + self.episode) % len(self.lengths)
        length = self.lengths[index]
        where = f"stream {self.stream}, episode {self.episode}, step {self.position}"
        assert list(row["observation"]) == [self.stream, self.episode, self.position], where
        assert row["env_id"] == self.stream, where
        first, last = self.position == 0, self.position == length
        assert row["step_type"] == (0 if first else 2 if last else 1), where
        assert row["prev_action"] == (0 if first else self.prev_action), where
        assert row["reward"] == (0.0 if first else np.float32(self.position + self.prev_action / 64)), where
        terminated = last and TERMINATE[(self.stream + self.episode) % len(TERMINATE)]
        assert row["discount"] == (0.0 if terminated else 1.0), where
        self.last = last

    def act(self, action: int) -> None:
        """Moves on by an action."""
        if self.last:
            self.episode, self.position = self.episode + 1, 0
        else:
            self.position += 1
        self.prev_action = action


_TIME_STEP = ("observation", "env_id", "step_type", "prev_action", "reward", "discount")


def check_batches(batches: Sequence[Experience], recurrent: bool, lengths: Sequence[int] = LENGTHS) -> dict[int, int]:
    """Walks all streams through `batches` [Q, T, B, ...] in order; returns the steps seen of each stream."""
    walkers: dict[int, Walker] = {}
    steps: dict[int, int] = {}
    for batch in batches:
        exp = tf.nest.map_structure(lambda x: x.numpy(), batch)
        queue, time, size = exp.step_type.shape
        for q in range(queue):
            for b in range(size):
                stream = int(exp.env_id[q, 0, b])
                walker = walkers.setdefault(stream, Walker(stream, lengths))
                for t in range(time):
                    walker.expect({name: getattr(exp, name)[q, t, b] for name in _TIME_STEP})
                    _check_acting(exp, (q, t, b), walker, recurrent)
                    acted_at = walker.position
                    walker.act(int(exp.action[q, t, b]))
                    steps[stream] = steps.get(stream, 0) + 1
                if recurrent:
                    assert exp.bootstrap.state[q, b] == acted_at + 1, (
                        "the bootstrap's state is not that after the last step"
                    )
                bootstrap = exp.bootstrap.time_step
                walker.expect({name: getattr(bootstrap, name)[q, b] for name in _TIME_STEP})
    return steps


def _check_acting(exp: Any, at: tuple[int, int, int], walker: Walker, recurrent: bool) -> None:
    weight = exp.rollout_info.weight[at]
    assert exp.policy_version[at] == weight, "the stamped version is not that of the weights that acted"
    logits = tf.nest.flatten(exp.rollout_info.action_distribution)[0][at]
    expected = np.concatenate([exp.observation[at] * np.float32(0.01), [weight * np.float32(0.1), 0.0]])
    np.testing.assert_allclose(logits, expected, rtol=1e-6)
    if recurrent:
        assert exp.state[at] == walker.position, "the stored state is not that before the step"
