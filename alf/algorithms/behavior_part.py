"""One behavior at work: its algorithm, its slots, and what it has collected and not learned from yet."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from alf.algorithms.agent_processor import AgentProcessor
from alf.algorithms.agent_rows import experience_of
from alf.algorithms.behavior import Behavior
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience, Nest
from alf.environments.agents import Slots
from alf.replay.uniform_replay import UniformReplay


class Part:
    """A behavior with what it holds beside the variables of its algorithm.

    Attributes:
      name: of the behavior.
      behavior: its settings.
      algorithm: acts for its slots and learns.
      slots: how many an environment has, and whether they may be idle.
    """

    def __init__(self, name: str, behavior: Behavior, algorithm: OffPolicyAlgorithm, slots: Slots) -> None:
        self.name = name
        self.behavior = behavior
        self.algorithm = algorithm
        self.slots = slots
        self._streams = 0
        # Segments in a batch.
        self._batch = 0
        self._fresh = False
        self._processor = AgentProcessor(1)
        self._rows = {
            stored: tf.function(functools.partial(self._rows_of, stored), autograph=False) for stored in (True, False)
        }

    def _rows_of(self, with_state: bool, exp: Experience) -> Experience:
        return experience_of(exp, self.name, self.slots.count, with_state)

    @property
    def processor(self) -> AgentProcessor:
        """What joins the decision steps of slots that may be idle."""
        return self._processor

    def begin_streams(self, exp_replayer: str | None, num_envs: int, unroll_length: int) -> None:
        """Makes ready for new streams: those of `num_envs` single environments; the rest as `set_exp_replayer` has it."""
        self._streams = num_envs * self.slots.count
        self.algorithm.set_exp_replayer(
            self.behavior.exp_replayer or exp_replayer, self._streams, unroll_length=unroll_length
        )
        self._processor = AgentProcessor(self.behavior.unroll_length or unroll_length)
        self._fresh = False

    def observe(self, exp: Experience) -> None:
        """Takes what its slots went through, of experience [Q, T, B, ...] of their environments."""
        if not self.behavior.trained:
            return
        rows = self._rows[self.algorithm.need_full_rollout_state()](exp)
        if not self.slots.may_idle:
            self.algorithm.observe(rows)
            self._fresh = True
            return
        self._batch = rows.step_type.shape[0] * rows.step_type.shape[2]
        arrays = tf.nest.map_structure(lambda x: x.numpy(), rows)
        for q in range(len(arrays.step_type)):
            self._processor.add(_at(arrays, q), self._streams)

    def train(self, arguments: Mapping[str, Any]) -> int:
        """Trains on what there is, if it is enough; the steps trained on.

        Args:
          arguments: of `OffPolicyAlgorithm.train`, where the behavior says nothing itself.
        """
        if not self.behavior.trained:
            return 0
        chosen = self.behavior.train_arguments(arguments)
        if not self.slots.may_idle:
            fresh, self._fresh = self._fresh, False
            return self.algorithm.train(**chosen) if fresh and self._can_sample(chosen) else 0
        if isinstance(self.algorithm.exp_replayer, UniformReplay):
            for batch in self._processor.take_apart():
                self.algorithm.observe(batch)
            return self.algorithm.train(**chosen) if self._can_sample(chosen) else 0
        steps = 0
        while (taken := self._processor.take(self._batch)) is not None:
            self.algorithm.observe(taken)
            steps += self.algorithm.train(**chosen)
        return steps

    def _can_sample(self, arguments: Mapping[str, Any]) -> bool:
        """Whether there is a minibatch to draw, or none is drawn."""
        replayer = self.algorithm.exp_replayer
        if arguments.get("whole_replay_buffer_training", True) or not isinstance(replayer, UniformReplay):
            return True
        return replayer.can_sample(arguments.get("mini_batch_size") or 1, arguments.get("mini_batch_length") or 1)


def _at(nest: Nest, q: int) -> Nest:
    return tf.nest.map_structure(lambda x: x[q], nest)
