"""What replayers are, and those of segments that are trained on once, in batches of [B', T, ...]."""

from __future__ import annotations

import abc

import gin
import tensorflow as tf

from alf.data_structures import Experience
from alf.utils.tracing import Traced
from alf.utils.untracked import Untracked

NOTHING_TO_REPLAY = (
    "There is nothing to replay: run a driver that collects first, such as SyncOffPolicyDriver (PolicyDriver has the algorithm "
    "observe nothing), or do not clear it before training."
)


class ReplayTooSmallError(ValueError):
    """A memory can never hold what training is to draw from it; the message says what to set."""


class ExperienceReplayer(tf.Module, abc.ABC):
    """Keeps observed experience and hands it to the learner, batch-major [B', T, ...]."""

    @abc.abstractmethod
    def observe(self, exp: Experience) -> None:
        """Takes experience [Q, T, B, ...] whose bootstrap is [Q, B, ...]."""

    @abc.abstractmethod
    def replay_all(self) -> Experience:
        """Everything that is kept, [B', T, ...]; ValueError when there is nothing."""

    def replay(self, sample_batch_size: int, mini_batch_length: int) -> Experience:
        """A random sample [sample_batch_size, mini_batch_length, ...], where a replayer can sample."""
        raise ValueError(
            f"{type(self).__name__} hands out everything once and cannot sample: set whole_replay_buffer_training=True."
        )

    @abc.abstractmethod
    def clear(self) -> None:
        """Forgets what was observed."""

    def end_streams(self) -> None:
        """Called when what is observed next does not follow on what was: the environments are others."""

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """B' of what `replay_all` would return now."""


def _batch_major(exp: Experience) -> Experience:
    """[Q, T, B, ...] to [Q*B, T, ...], the bootstrap [Q, B, ...] to [Q*B, ...]."""

    def transpose(x: tf.Tensor) -> tf.Tensor:
        q, t, b = x.shape[:3]
        if q == 1:
            return tf.transpose(tf.squeeze(x, 0), [1, 0, *range(2, x.shape.rank - 1)])
        x = tf.transpose(x, [0, 2, 1, *range(3, x.shape.rank)])
        return tf.reshape(x, [q * b, t, *x.shape[3:]])

    bootstrap = tf.nest.map_structure(lambda x: tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]]), exp.bootstrap)
    return tf.nest.map_structure(transpose, exp._replace(bootstrap=()))._replace(bootstrap=bootstrap)


@gin.configurable(module="alf")
class OnetimeExperienceReplayer(ExperienceReplayer):
    """Keeps only the last batch observed: the replayer of on-policy learners."""

    def __init__(self) -> None:
        super().__init__(name="one_time")
        self._exp: Untracked[Experience | None] = Untracked(None)
        self._batch_major = Traced(_batch_major)

    def observe(self, exp: Experience) -> None:
        self._exp.value = exp

    def replay_all(self) -> Experience:
        if self._exp.value is None:
            raise ValueError(NOTHING_TO_REPLAY)
        return self._batch_major(self._exp.value)

    def clear(self) -> None:
        self._exp.value = None

    @property
    def batch_size(self) -> int:
        if self._exp.value is None:
            raise ValueError("The batch size is known after the first batch is observed.")
        return int(self._exp.value.step_type.shape[0] * self._exp.value.step_type.shape[2])


@gin.configurable(module="alf")
class CyclicOneTimeExperienceReplayer(OnetimeExperienceReplayer):
    """`cycle_one_time`: every transition is trained on exactly once, those between two segments too.

    A segment carries the step that follows it as its bootstrap, which the learner appends as the last row. So the
    transition into the next segment is trained with this one, no ring over environments is needed, and a batch may hold
    any number of segments of one stream: it is the one-time replayer, under the name that gin files use.
    """


def stack_segments(segments: list[Experience]) -> Experience:
    """Q segments [T, B, ...] as one batch [Q, T, B, ...], bootstraps [B, ...] included."""
    return tf.nest.map_structure(lambda *x: tf.expand_dims(x[0], 0) if len(x) == 1 else tf.stack(x), *segments)
