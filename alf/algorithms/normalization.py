"""Normalisation of observations and rewards by statistics that are part of the weights.

Every step that the learner observes is counted once, whatever it is trained on later. It counts from the end of the
iteration on: so within an iteration acting and learning see one version of the statistics, which is published, saved and
exported with the weights, and stands still in evaluation.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from alf.data_structures import Experience, Nest, StepType
from alf.utils.common import check_range, transform_observation
from alf.utils.normalizers import (
    Normalizer,
    RunningMoments,
    RunningNormalizer,
    ScalarAdaptiveNormalizer,
    ScalarEMNormalizer,
    ScalarWindowNormalizer,
    batch_moments,
)
from alf.utils.tracing import Traced
from alf.utils.value_ops import reverse_scan

_OF_SCALARS = (ScalarAdaptiveNormalizer, ScalarEMNormalizer, ScalarWindowNormalizer)


@dataclasses.dataclass
class _Functions:
    """Functions, kept from TensorFlow's tracking."""

    observe: Traced
    publish: Traced


class LearnerStatistics(tf.Module, abc.ABC):
    """A normaliser with what was observed since its statistics were last published."""

    def __init__(self, tensor_spec: Nest, normalizer_cls: Callable[..., Normalizer], name: str) -> None:
        super().__init__(name=name)
        if isinstance(normalizer_cls, type) and issubclass(normalizer_cls, _OF_SCALARS):
            raise ValueError(
                f"{name}: normalizer_cls={normalizer_cls.__name__} takes no spec: give the class without Scalar in its name, "
                "which does for a single number too."
            )
        self._tensor_spec = tensor_spec
        self._normalizer = normalizer_cls(tensor_spec)
        self._pending = RunningMoments(tensor_spec)
        self._traced = _Functions(Traced(self._observe), Traced(self._publish))

    def observe(self, exp: Experience) -> None:
        """Takes in what the learner got, [Q, T, B, ...] or [B, ...]; it has no effect yet."""
        self._traced.observe(exp._replace(bootstrap=(), rollout_info=(), state=()))

    def publish(self) -> None:
        """Makes what was taken in part of the statistics; called by the learner between its iterations."""
        self._traced.publish()

    @abc.abstractmethod
    def _rows(self, exp: Experience) -> tuple[Nest, tf.Tensor | None]:
        """The rows to be counted, [..., shape of the spec], and which of them are valid."""

    def _observe(self, exp: Experience) -> None:
        rows, mask = self._rows(exp)
        self._pending.add(batch_moments(rows, self._tensor_spec, mask))

    def _publish(self) -> None:
        self._normalizer.update_moments(self._pending.get())
        self._pending.clear()


@gin.configurable(module="alf")
class ObservationNormalizer(LearnerStatistics):
    """Gives every component of the observations mean 0 and standard deviation 1."""

    def __init__(
        self,
        observation_spec: Nest,
        clip_value: float = 10.0,
        normalizer_cls: Callable[..., Normalizer] = RunningNormalizer,
        name: str = "ObservationNormalizer",
        *,
        fields: Sequence[str] | None = None,
    ) -> None:
        """Creates the normaliser.

        Args:
          observation_spec: nest of specs of one transformed observation, of floats, e.g. @get_observation_spec().
          clip_value: above 0, normalised observations are clipped to [-clip_value, clip_value].
          normalizer_cls: which statistics.
          name: name of the module.
          fields: dotted paths of what is normalised in a nested observation; by default all of it. Masks of actions are
            to be left out.

        Raises:
          ValueError: there are no fields, or `normalizer_cls` is none for specs.
        """
        self._names = None if fields is None else tuple(fields)
        if self._names == ():
            raise ValueError(f"{name}: fields=[] names nothing to normalise: name some, or leave the normaliser out.")
        super().__init__(self._taken(observation_spec), normalizer_cls, name)
        self._clip_value = clip_value

    @property
    def takes_all(self) -> bool:
        """Whether it takes whole observations, not some fields of them."""
        return self._names is None

    def _taken(self, observation: Nest) -> Nest:
        """What is normalised, of an observation or its spec."""
        if self._names is None:
            return observation
        taken: dict[str, Nest] = {}
        for field in self._names:
            transform_observation(observation, field, functools.partial(taken.setdefault, field))
        return taken

    def check_spec(self, observation_spec: Nest) -> None:
        """Raises ValueError where it was made for other observations than those of this spec, one transformed one's."""
        taken = self._taken(observation_spec)
        shapes = [tf.nest.map_structure(lambda spec: tuple(spec.shape), spec) for spec in (self._tensor_spec, taken)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{self.name} was made for observations of shape {shapes[0]}, the transformed ones have {shapes[1]}: set "
                "ObservationNormalizer.observation_spec to the spec that the observation_transformer gives."
            )
        # Other floats will do: the statistics are cast to theirs.
        if not all(spec.dtype.is_floating for spec in tf.nest.flatten(taken)):
            dtypes = tf.nest.map_structure(lambda spec: spec.dtype.name, taken)
            raise ValueError(
                f"{self.name} normalises floats, and the transformed observations are {dtypes}: have the observation_transformer "
                "of the Agent end with cast_transformer."
            )

    def normalize(self, observation: Nest) -> Nest:
        """Observations with any leading axes, normalised."""
        normalized = self._normalizer.normalize(self._taken(observation), self._clip_value)
        if self._names is None:
            return normalized
        for field in self._names:
            observation = transform_observation(observation, field, functools.partial(_instead, normalized[field]))
        return observation

    def _rows(self, exp: Experience) -> tuple[Nest, tf.Tensor | None]:
        return self._taken(exp.observation), None


def _instead(value: Any, _: Any) -> Any:
    return value


@gin.configurable(module="alf")
class RewardNormalizer(LearnerStatistics):
    """Divides rewards by the standard deviation of the running discounted return of each environment."""

    def __init__(
        self,
        gamma: float = 0.99,
        clip_value: float = 10.0,
        normalizer_cls: Callable[..., Normalizer] = RunningNormalizer,
        name: str = "RewardNormalizer",
    ) -> None:
        """Creates the normaliser.

        Args:
          gamma: discount of the running return; that of the loss.
          clip_value: above 0, scaled rewards are clipped to [-clip_value, clip_value].
          normalizer_cls: which statistics.
          name: name of the module.

        Raises:
          ValueError: gamma is not in [0, 1].
        """
        super().__init__(tf.TensorSpec([], tf.float32), normalizer_cls, name)
        check_range(0.0, 1.0, gamma=gamma)
        self._gamma = gamma
        self._clip_value = clip_value
        # Of each environment, by its id; every episode begins anew, so a checkpoint needs none of it.
        self._returns = _Returns()

    def normalize(self, reward: tf.Tensor) -> tf.Tensor:
        """Rewards of any shape, scaled."""
        return self._normalizer.scale(reward, self._clip_value)

    def _rows(self, exp: Experience) -> tuple[Nest, tf.Tensor | None]:
        """The running returns R[t] = r[t] + gamma * R[t - 1], from 0 at FIRST, which is no result of an action."""
        shape = exp.step_type.shape
        segments = [exp.step_type, exp.reward, exp.env_id]
        if shape.rank == 1:
            segments = [x[tf.newaxis, tf.newaxis] for x in segments]
        elif shape.rank == 2:
            segments = [x[tf.newaxis] for x in segments]
        step_types, rewards, env_ids = segments
        kept = self._returns.of_at_least(tf.reduce_max(env_ids) + 1)
        rows = []
        for step_type, reward, env_id in zip(
            *(tf.unstack(x) for x in (step_types, rewards, env_ids[:, 0])), strict=True
        ):
            goes_on = tf.cast(tf.not_equal(step_type, StepType.FIRST), tf.float32)
            returns, kept = self._running(reward * goes_on, self._gamma * goes_on, env_id, kept)
            rows.append(returns)
        self._returns.variable.assign(kept)
        return tf.stack(rows), tf.not_equal(step_types, StepType.FIRST)

    def _running(
        self, earned: tf.Tensor, decay: tf.Tensor, env_id: tf.Tensor, kept: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Running returns of [T, B] by the last ones `kept` of each environment, and the new ones of these.

        Segments of agents that come and go may be of one stream several times in a batch: the later begin where the
        earlier end. Each round takes the next segment of every stream.
        """
        order = tf.argsort(env_id, stable=True)
        sorted_ids = tf.gather(env_id, order)
        among_its_own = tf.range(tf.size(env_id)) - tf.searchsorted(sorted_ids, sorted_ids)
        place = tf.scatter_nd(order[:, tf.newaxis], among_its_own, tf.shape(env_id))

        def take(r: tf.Tensor, returns: tf.Tensor, kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            before = (decay[0] * tf.gather(kept, env_id))[tf.newaxis]
            found = _forward_scan(earned + tf.concat([before, tf.zeros_like(earned[1:])], 0), decay)
            now = tf.where(tf.equal(place, r))
            kept = tf.tensor_scatter_nd_update(kept, tf.gather(env_id, now), tf.gather_nd(found[-1], now))
            return r + 1, tf.where(tf.equal(place, r), found, returns), kept

        most = tf.reduce_max(place)
        _, returns, kept = tf.while_loop(lambda r, *_: r <= most, take, (0, tf.zeros_like(earned), kept))
        return returns, kept


class _Returns:
    """The running returns, float32 [largest id seen + 1]; kept from TensorFlow's tracking."""

    def __init__(self) -> None:
        self.variable = tf.Variable(tf.zeros([0]), shape=[None], trainable=False)

    def of_at_least(self, size: tf.Tensor) -> tf.Tensor:
        """Them, with zeros for environments not seen before."""
        missing = tf.maximum(size - tf.size(self.variable), 0)
        return tf.concat([self.variable, tf.zeros([missing])], 0)


def _forward_scan(x: tf.Tensor, decay: tf.Tensor) -> tf.Tensor:
    """y[t] = x[t] + decay[t] * y[t - 1] along the first axis, with y[-1] = 0."""
    return tf.reverse(reverse_scan(tf.reverse(x, [0]), tf.reverse(decay, [0])), [0])
