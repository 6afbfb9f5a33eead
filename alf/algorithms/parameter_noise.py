"""Exploration by noise on the weights of the acting network; Plappert et al. 2018, https://arxiv.org/abs/1706.01905."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from alf.algorithms.critic_algorithm import copies
from alf.algorithms.exploration import Exploration, Strength
from alf.utils import rng
from alf.utils.common import check_made
from alf.utils.untracked import Untracked


@gin.configurable(module="alf")
class ParameterNoise(Exploration):
    """Acting by a copy of the network whose weights are shaken, so that an observation is answered alike for a while.

    The copy is part of the weights that are published: all environments act by the same one. Every `period` updates it is
    made anew, from the weights of then and fresh normal noise. The noise's deviation adapts so that what the copy does
    keeps a distance from what the network would do: it grows by a factor where the distance is too small, else it falls.
    Until the first update acting is not shaken. It goes well with layers that are normalised, and together with other
    explorations.
    """

    control = "parameter_noise_target"

    def __init__(
        self,
        distance: Strength = 0.1,
        initial_stddev: float = 0.05,
        adaptation: float = 1.05,
        period: int = 50,
        name: str = "ParameterNoise",
    ) -> None:
        """Creates the exploration.

        Args:
          distance: what is kept, a number or a schedule. For actions: the root of the mean square of their difference, in
            halves of the action's range. For values of actions: the epsilon of the epsilon-greedy policy that is as far
            from the greedy one, at most 1.
          initial_stddev: of the noise on each weight at the start.
          adaptation: the factor, above 1.
          period: updates between two copies, at least 1.
          name: name of the module.

        Raises:
          ValueError: an argument is out of its range.
        """
        super().__init__(distance, name)
        if initial_stddev <= 0.0 or adaptation <= 1.0 or period < 1:
            raise ValueError(
                "ParameterNoise needs initial_stddev > 0, adaptation > 1 and period >= 1; got "
                f"{initial_stddev}, {adaptation} and {period}."
            )
        self._adaptation = adaptation
        self._period = period
        self._stddev = tf.Variable(initial_stddev, dtype=tf.float32, trainable=False, name="stddev")
        self._distance = tf.Variable(0.0, trainable=False, name="distance")
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        self._shaken: Any = None

    def attach(self, network: Any, farthest: float = math.inf) -> None:
        """Makes the copy of `network`, not shaken yet; before anything acts.

        Args:
          network: the one that learns.
          farthest: the largest distance that there is; the deviation would grow without end for the sake of another.

        Raises:
          ValueError: it has a network already, or is to keep a distance above `farthest`.
        """
        self._check_strength(farthest)
        if self._shaken is not None:
            raise ValueError(
                f"{self.name} shakes {self._shaken.name} already: give each algorithm a ParameterNoise of its own."
            )
        (self._shaken,) = copies([network], "shaken")
        self._pairs = Untracked(list(zip(network.variables, self._shaken.variables, strict=True)))
        for source, variable in self._pairs.value:
            variable.assign(source)

    def followers(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """See `Exploration.followers`."""
        return self._pairs.value

    @property
    def network(self) -> Any:
        """The shaken copy."""
        return self._shaken

    def metrics(self) -> dict[str, tf.Tensor]:
        """float32 [] by name: the distance to keep, the deviation of the noise, and how far the copy was when it was made."""
        return {
            self.control: tf.convert_to_tensor(self.strength()),
            "parameter_noise_stddev": tf.convert_to_tensor(self._stddev),
            "parameter_noise_distance": tf.convert_to_tensor(self._distance),
        }

    def after_update(self, distance: Callable[[], tf.Tensor], target: Callable[[tf.Tensor | float], Any]) -> None:
        """Makes a new copy if it is time, and adapts the deviation; in the graph, once for each update.

        Args:
          distance: how far the copy is from the network on recorded observations, float32 [].
          target: the distance that stands for a strength.
        """

        def renew() -> tf.Tensor:
            for source, variable in self._pairs.value:
                value = tf.convert_to_tensor(source)
                if source.trainable:
                    value += self._stddev * tf.random.stateless_normal(
                        source.shape, rng.next_seed(), dtype=source.dtype
                    )
                variable.assign(value)
            self._distance.assign(distance())
            near = self._distance < target(self.strength())
            self._stddev.assign(self._stddev * tf.where(near, self._adaptation, 1.0 / self._adaptation))
            return tf.zeros([])

        tf.cond(tf.equal(self._updates % self._period, 0), renew, lambda: tf.zeros([]))
        self._updates.assign_add(1)


def attach(name: str, parameter_noise: ParameterNoise | None, network: Any, farthest: float = math.inf) -> None:
    """Has the `parameter_noise` that the algorithm `name` was given, if any, shake `network`; see `ParameterNoise.attach`.

    Raises:
      ValueError: it is something else, or see there.
    """
    if parameter_noise is None:
        return
    check_made(name, parameter_noise=parameter_noise)
    if not isinstance(parameter_noise, ParameterNoise):
        raise ValueError(
            f"{name}: parameter_noise={parameter_noise!r} is no ParameterNoise: make one, in gin @ParameterNoise()."
        )
    parameter_noise.attach(network, farthest)


def action_distance(one: tf.Tensor, other: tf.Tensor, half_range: Any) -> tf.Tensor:
    """The root mean square of the difference of actions [B, ...], in halves of their range."""
    return tf.sqrt(tf.reduce_mean(tf.square(tf.math.divide_no_nan(one - other, half_range))))


def value_distance(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """The mean Kullback-Leibler divergence from softmax(`one`) to softmax(`other`), for values [B, number of actions]."""
    log_p, log_q = tf.nn.log_softmax(one), tf.nn.log_softmax(other)
    return tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), -1))


def divergence_of_epsilon(epsilon: tf.Tensor | float, num_actions: int) -> tf.Tensor:
    """The Kullback-Leibler divergence from the greedy policy to the epsilon-greedy one, appendix C of the paper."""
    return -tf.math.log(1.0 - tf.convert_to_tensor(epsilon, tf.float32) * (1.0 - 1.0 / num_actions))
