"""What training draws from a replay memory."""

from __future__ import annotations

from typing import NamedTuple

from alf.replay.uniform_replay import UniformReplay


class MemoryUse(NamedTuple):
    """What training draws from a memory.

    Attributes:
      memory: which it is.
      size: sequences of a minibatch; None where all that is held is trained on.
      length: their steps.
      slots: streams that it has of each single environment.
      kept: whether it holds on to what was trained on.
    """

    memory: UniformReplay
    size: int | None
    length: int
    slots: int = 1
    kept: bool = True

    @property
    def capacity(self) -> int:
        """How many steps of environments it holds when it is full."""
        return self.memory.batch_size * self.memory.buffer.max_length // self.slots

    @property
    def has_minibatch(self) -> bool:
        """Whether there is one to draw, or anything to train on; raises ReplayTooSmallError where there never will be."""
        return self.memory.total_steps > 0 if self.size is None else self.memory.can_sample(self.size, self.length)
