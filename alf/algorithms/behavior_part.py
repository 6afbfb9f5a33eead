"""One behavior at work: its algorithm, its slots, and what it has collected and not learned from yet."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from alf.algorithms.agent_processor import AgentProcessor
from alf.algorithms.agent_rows import cut_rows, experience_of
from alf.algorithms.behavior import DROP, Behavior
from alf.algorithms.minibatch import check_segments
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience, Nest
from alf.environments.agents import Slots
from alf.replay.memory_use import MemoryUse
from alf.replay.uniform_replay import UniformReplay
from alf.utils.common import is_stateless
from alf.utils.tracing import Traced


class Part:
    """A behavior with what it holds beside the variables of its algorithm.

    Attributes:
      name: of the behavior.
      behavior: its settings.
      algorithm: acts for its slots and learns.
      slots: how many an environment has, and whether they may be idle.
      joins: whether its steps are joined to segments of their own: where slots may be idle, or steps be dropped.
    """

    def __init__(self, name: str, behavior: Behavior, algorithm: OffPolicyAlgorithm, slots: Slots) -> None:
        self.name = name
        self.behavior = behavior
        self.algorithm = algorithm
        self.slots = slots
        self._drops_cut = behavior.cut_episodes == DROP
        self.joins = slots.may_idle or self._drops_cut
        self._streams = 0
        # Steps in a segment.
        self._unroll_length = 1
        # Segments in a batch.
        self._batch = 0
        # Whether something was observed since it was last trained.
        self._fresh = False
        self._processor = AgentProcessor(1)
        # What processors before this one have dropped.
        self._dropped_before = 0
        self._rows = {stored: Traced(functools.partial(self._rows_of, stored)) for stored in (True, False)}

    def _rows_of(self, with_state: bool, exp: Experience) -> Experience:
        return experience_of(exp, self.name, self.slots.count, with_state)

    @property
    def processor(self) -> AgentProcessor:
        """What joins the decision steps of slots that may be idle."""
        return self._processor

    @property
    def dropped_steps(self) -> int:
        """Decision steps that it has not learned from and never will, where steps are joined."""
        return self._dropped_before + self._processor.dropped_steps

    def begin_streams(self, exp_replayer: str | None, num_envs: int, unroll_length: int) -> None:
        """Makes ready for new streams: those of `num_envs` single environments; the rest as `set_exp_replayer` has it."""
        self._streams = num_envs * self.slots.count
        # The driver's need not suit one that does not learn.
        chosen = self.behavior.exp_replayer or (exp_replayer if self.behavior.trained else "one_time")
        self.algorithm.set_exp_replayer(chosen, self._streams, unroll_length=unroll_length)
        self._dropped_before += self._processor.dropped_steps + self._processor.held_steps
        joined = self.behavior.unroll_length or unroll_length
        self._processor = AgentProcessor(joined, self._drops_cut)
        self._unroll_length = joined if self.joins else unroll_length
        self._fresh = False

    def observe(self, exp: Experience) -> None:
        """Takes what its slots went through, of experience [Q, T, B, ...] of their environments."""
        if not self.behavior.trained:
            return
        rows = self._rows[self.algorithm.need_full_rollout_state()](exp)
        untrained, self._fresh = self._fresh, True
        if not self.joins:
            self.algorithm.observe(rows)
            return
        if untrained:
            # Who learns from each step once learns nothing from a heat-up.
            self._processor.drop_ready()
        self._batch = rows.step_type.shape[0] * rows.step_type.shape[2]
        arrays = tf.nest.map_structure(lambda x: x.numpy(), rows)
        cut = cut_rows(exp, self.name) if self._drops_cut else None
        for q in range(len(arrays.step_type)):
            self._processor.add(_at(arrays, q), self._streams, None if cut is None else cut[q])
        if self._samples:
            for batch in self._processor.take_apart():
                self.algorithm.observe(batch)

    @property
    def _samples(self) -> bool:
        return isinstance(self.algorithm.exp_replayer, UniformReplay)

    @property
    def takes_burn_in(self) -> bool:
        """Whether it learns a recurrent network, and nothing says that it does so from everything."""
        behavior = self.behavior
        samples = behavior.trained and behavior.whole_replay_buffer_training is not True
        return samples and not is_stateless(self.algorithm.learning_state_spec)

    def memory_uses(self, arguments: Mapping[str, Any]) -> list[MemoryUse]:
        """What `train` draws from its memories, of which there is one at most; `arguments` as there.

        Raises:
          ValueError: all is to be learned from that a memory holds of streams of different lengths.
        """
        if not self.behavior.trained:
            return []
        uses = self.algorithm.memory_uses(self.behavior.train_arguments(arguments)).values()
        if self.joins and self._streams > 1 and any(use.size is None for use in uses):
            raise ValueError(
                f"The behavior {self.name!r} has streams of different lengths, since its agents come and go or its steps are "
                f"dropped, and cannot learn from all that its memory holds: set {self.name}/Behavior."
                "whole_replay_buffer_training=False, or leave out its exp_replayer and clear_replay_buffer."
            )
        return [use._replace(slots=self.slots.count) for use in uses]

    def check_segments(self, arguments: Mapping[str, Any]) -> None:
        """See `minibatch.check_segments`; nothing where it is not learned from whole segments."""
        chosen = self.behavior.train_arguments(arguments)
        if not (self.behavior.trained and chosen["whole_replay_buffer_training"] and chosen["clear_replay_buffer"]):
            return
        try:
            check_segments(self.algorithm, self._unroll_length, chosen["mini_batch_length"])
        except ValueError as error:
            raise ValueError(f"The behavior {self.name!r} cannot learn so: {error}") from None

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """See `OffPolicyAlgorithm.prepare`."""
        if self.behavior.trained:
            self.algorithm.prepare(self.behavior.train_arguments(arguments))

    def train(self, arguments: Mapping[str, Any]) -> int:
        """Trains on what there is, if it is enough; the steps trained on.

        Args:
          arguments: of `OffPolicyAlgorithm.train`, where the behavior says nothing itself.
        """
        if not self.behavior.trained:
            return 0
        chosen = self.behavior.train_arguments(arguments)
        fresh, self._fresh = self._fresh, False
        if self._samples or not self.joins:
            ready = all(use.has_minibatch for use in self.memory_uses(arguments))
            return self.algorithm.train(**chosen) if fresh and ready else 0
        steps = 0
        while (taken := self._processor.take(self._batch)) is not None:
            self.algorithm.observe(taken)
            steps += self.algorithm.train(**chosen)
        return steps


def _at(nest: Nest, q: int) -> Nest:
    return tf.nest.map_structure(lambda x: x[q], nest)
