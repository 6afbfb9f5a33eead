"""The replayer of off-policy learners: random sequences of the last steps of every stream."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import tensorflow as tf

from alf.data_structures import Experience
from alf.replay.experience_replayer import ExperienceReplayer, ReplayTooSmallError
from alf.replay.replay_buffer import ReplayBuffer
from alf.replay.sampling import VIEW_SPEC, Sample, View, draw, make_view
from alf.utils import rng
from alf.utils.common import check_sizes
from alf.utils.devices import for_host
from alf.utils.untracked import Untracked


@gin.configurable(module="alf")
class UniformReplay(ExperienceReplayer):
    """`uniform`: keeps the last `ReplayBuffer.max_length` steps of each stream and hands out random sequences.

    A sequence is of consecutive steps of one stream, never over a gap and never over the place of writing. All
    numbers are drawn from stateless seeds, in traced code, so that the same run draws the same.
    """

    # Of what `view` returns.
    view_spec = VIEW_SPEC

    def __init__(self, experience_spec: Experience, num_streams: int, balanced: bool = False) -> None:
        """Creates an empty replayer.

        Args:
          experience_spec: specs of one step.
          num_streams: E, single environments.
          balanced: every stream is drawn from with the same chance, however much it holds; otherwise every sequence has
            the same chance.
        """
        super().__init__(name=type(self).__name__)
        self._balanced = balanced
        self._buffer = Untracked(ReplayBuffer(experience_spec, num_streams))

    @property
    def buffer(self) -> ReplayBuffer:
        """The memory."""
        return self._buffer.value

    @property
    def batch_size(self) -> int:
        """E."""
        return self.buffer.num_environments

    @property
    def total_steps(self) -> int:
        """Steps held, of all streams."""
        return self.buffer.total_steps

    @property
    def num_episodes(self) -> int:
        """Episodes whose end is held, of all streams."""
        return self.buffer.num_episodes

    def observe(self, exp: Experience) -> None:
        """Stores experience [Q, T, B, ...] with bootstrap [Q, B, ...], or single steps [B, ...].

        Where writing fails the memory is empty behind it: its index counts rows that were never written.
        """
        before = self.buffer.index.count.copy()
        try:
            self.buffer.add(exp)
        except BaseException:
            if (self.buffer.index.count != before).any():
                self.clear()
            raise

    def end_streams(self) -> None:
        """What is observed next does not follow on what is held: the environments are others."""
        self.buffer.end_streams()

    def clear(self) -> None:
        """Forgets all steps."""
        self.buffer.clear()

    def replay_all(self) -> Experience:
        """All steps in order; see `ReplayBuffer.gather_all`."""
        return self.buffer.gather_all()

    def num_sequences(self, mini_batch_length: int) -> int:
        """How many different sequences of this length could be drawn now."""
        return int(self.buffer.index.starts(mini_batch_length)[:, 2].sum())

    def capacity(self, mini_batch_length: int) -> int:
        """How many there can be at most."""
        return self.buffer.num_environments * max(
            0, self.buffer.max_length - self.buffer.index.history - mini_batch_length + 1
        )

    def can_sample(self, batch_size: int, mini_batch_length: int) -> bool:
        """Whether there are `batch_size` different sequences; raises ReplayTooSmallError where there never will be."""
        self.check_capacity(batch_size, mini_batch_length)
        return self.num_sequences(mini_batch_length) >= batch_size

    def check_capacity(self, batch_size: int, mini_batch_length: int) -> None:
        """Raises ReplayTooSmallError where there will never be `batch_size` different sequences; says what to do."""
        most = self.capacity(mini_batch_length)
        if most < batch_size:
            raise ReplayTooSmallError(
                f"{self.buffer.num_environments} streams of ReplayBuffer.max_length={self.buffer.max_length} never hold "
                f"mini_batch_size={batch_size} sequences of mini_batch_length={mini_batch_length} steps, at most {most}: "
                "raise max_length."
            )

    def check(self, batch_size: int, mini_batch_length: int) -> None:
        """Raises ValueError when there are fewer different sequences than `batch_size`; says what to do."""
        self.check_capacity(batch_size, mini_batch_length)
        there = self.num_sequences(mini_batch_length)
        if there < batch_size:
            raise ValueError(
                f"The replayer holds {there} sequences of {mini_batch_length} steps, fewer than "
                f"mini_batch_size={batch_size}: collect more before training, as initial_collect_steps does."
            )

    def view(self, mini_batch_length: int) -> View:
        """What can be drawn now; the argument of `sample`, to be made anew after each `observe`."""
        return make_view(self.buffer.index, mini_batch_length)

    @for_host
    def sample(
        self, view: View, batch_size: int, mini_batch_length: int, seed: tf.Tensor, clock: tf.Tensor | int = 0
    ) -> Sample:
        """Draws sequences, with replacement; traceable.

        Args:
          view: of this moment and for this length; not empty.
          batch_size: b.
          mini_batch_length: L.
          seed: int32 [2].
          clock: int64 [], how often training was done, for what depends on it.
        """
        del clock
        stream, step = draw(view, batch_size, seed, self._balanced)
        return Sample(self.buffer.sequences(stream, step, mini_batch_length), stream, step)

    def learned(self, sample: Sample, priority: Any) -> None:
        """Takes what a loss says about the sequences it has seen, float32 [b] or (); traceable. Without effect here."""

    def check_learned(self) -> None:
        """Raises ValueError where a loss gave `learned` what cannot be used; nothing here can."""

    def replay(self, sample_batch_size: int, mini_batch_length: int) -> Experience:
        """A random sample [sample_batch_size, mini_batch_length, ...]; ValueError when there is too little, or for no size."""
        check_sizes(sample_batch_size=sample_batch_size, mini_batch_length=mini_batch_length)
        self.check(sample_batch_size, mini_batch_length)
        view = self.view(mini_batch_length)
        return self.sample(view, sample_batch_size, mini_batch_length, rng.next_seed()).experience

    # ---- saving ----

    def state(self) -> dict[str, np.ndarray]:
        """What `load_state` takes, small arrays by name; steps are read and written by rows."""
        return self.buffer.index.state()

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Takes over the state of a replayer whose rows have been written here; new runs begin after it."""
        self.buffer.index.load(state)
        self.buffer.end_streams()

    def row_specs(self) -> list[tf.TensorSpec]:
        """Specs of the arrays of `read_rows`, without their first axis."""
        return self.buffer.stored_specs

    def read_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """All that is held in rows [n]: arrays [n, ...]."""
        return [x.numpy() for x in self.buffer.read_rows(tf.constant(rows))]

    def write_rows(self, rows: np.ndarray, values: list[np.ndarray]) -> None:
        """Writes what `read_rows` gave, into rows [n]."""
        self.buffer.write_rows(rows, values)


def sampling(replayer: ExperienceReplayer) -> UniformReplay:
    """`replayer` itself; raises ValueError where it hands out everything and cannot sample."""
    if not isinstance(replayer, UniformReplay):
        raise ValueError(
            f"{type(replayer).__name__} hands out everything and cannot sample: set whole_replay_buffer_training=True, or, "
            "with a driver, exp_replayer='uniform'."
        )
    return replayer
