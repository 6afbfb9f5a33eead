"""How algorithms explore when they act to collect: over values of actions, and around chosen actions.

What an exploration needs to remember from step to step, such as correlated noise, is part of the policy state, so that
every row of every environment has its own. Its strength follows a schedule whose clock is a checkpointed variable; it is
published to the actors with the weights and stands still while nothing is collected or learned, as in evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import gin
import numpy as np
import tensorflow as tf

from alf.data_structures import Nest
from alf.utils import rng
from alf.utils.action_masks import draw_allowed
from alf.utils.common import broadcast_mask, check_made
from alf.utils.target_updater import UNITS


@gin.configurable(module="alf")
class LinearSchedule(tf.Module):
    """A number that goes in a straight line from one value to another, and stays there."""

    def __init__(
        self,
        initial_value: float,
        final_value: float,
        decay_steps: int,
        unit: str = "env_steps",
        name: str = "schedule",
    ) -> None:
        """Creates the schedule.

        Args:
          initial_value: at step 0.
          final_value: from step `decay_steps` on.
          decay_steps: at least 1.
          unit: what a step is, "env_steps" or "updates".
          name: name of the module.

        Raises:
          ValueError: decay_steps or the unit is another.
        """
        super().__init__(name=name)
        if decay_steps < 1 or unit not in UNITS:
            raise ValueError(
                f"A schedule needs decay_steps >= 1 and one of the units {UNITS}, got {decay_steps} and {unit!r}."
            )
        self._initial = initial_value
        self._final = final_value
        self._decay_steps = decay_steps
        self._unit = unit
        self._clock = tf.Variable(0, dtype=tf.int64, trainable=False, name="clock")
        self._owner: str | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The first value and the last; the others lie between them."""
        return self._initial, self._final

    @property
    def clock(self) -> tf.Variable:
        """int64 []: the steps that have passed."""
        return self._clock

    def __call__(self) -> tf.Tensor:
        """float32 []: the number now."""
        share = tf.minimum(tf.cast(tf.convert_to_tensor(self._clock), tf.float32) / self._decay_steps, 1.0)
        # Not the first and a part of the difference, which is rounded: it ends where it is to end.
        return self._initial * (1.0 - share) + self._final * share

    def claim(self, owner: str) -> None:
        """Has the clock be that of `owner`, which lets it go on.

        Raises:
          ValueError: it is another's: with two its time would pass twice as fast.
        """
        if self._owner is not None:
            raise ValueError(
                f"{owner} and {self._owner} share the schedule {self.name!r}, whose clock both would move: give each its own."
            )
        self._owner = owner

    def advance(self, unit: str, steps: int) -> None:
        """Lets the clock go on, if it counts `unit`."""
        if unit == self._unit:
            self._clock.assign_add(steps)


Strength = float | LinearSchedule


class Exploration(tf.Module):
    """What explorations share: a strength, a number or a schedule."""

    control = "strength"
    way: str
    highest = math.inf
    may_be_zero = True

    def __init__(self, strength: Strength, name: str) -> None:
        super().__init__(name=name)
        self._strength = strength
        self._check_strength(self.highest)
        if isinstance(strength, LinearSchedule):
            strength.claim(name)

    def _check_strength(self, highest: float) -> None:
        check_made(self.name, **{self.control: self._strength})
        if self._strength is None or isinstance(self._strength, str):
            raise ValueError(
                f"{self.name}: {self.control}={self._strength!r} must be a number or a schedule: correct it."
            )
        for value in self._strength.ends if isinstance(self._strength, LinearSchedule) else (self._strength,):
            if not 0.0 <= value <= highest or (value == 0.0 and not self.may_be_zero):
                least = "at least 0" if self.may_be_zero else "above 0"
                most = "" if math.isinf(highest) else f" and at most {highest:g}"
                raise ValueError(
                    f"{self.name}: {self.control} must be {least}{most}, also at the end of a schedule; got {value}."
                )

    def strength(self) -> tf.Tensor | float:
        """How much is explored now, float32 [] or a float; reported under the name `control`."""
        return self._strength() if isinstance(self._strength, LinearSchedule) else float(self._strength)

    def advance(self, unit: str, steps: int) -> None:
        """Tells the schedule that `steps` of `unit` have passed."""
        if isinstance(self._strength, LinearSchedule):
            self._strength.advance(unit, steps)

    def followers(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """(variable, copy of it) where it acts by a copy of a network."""
        return []

    def state_spec(self, action_spec: Any) -> Nest:
        """Specs of what it remembers of each row of an environment."""
        return ()


class ValueExploration(Exploration):
    """Chooses among actions by their values."""

    way = "by values of actions (EpsilonGreedy, Boltzmann)"

    def __call__(self, values: tf.Tensor, allowed: tf.Tensor | None = None) -> tf.Tensor:
        """The number of the action of each row, int32 [B].

        Args:
          values: float32 [B, number of actions], those of forbidden actions lower than any other.
          allowed: bool [B, number of actions], at least one a row; None for all.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no choice.")


class ActionExploration(Exploration):
    """Changes actions."""

    way = "around actions (GaussianNoise, OUNoise)"

    def __call__(self, action: tf.Tensor, state: Nest, action_spec: Any) -> tuple[tf.Tensor, Nest]:
        """The action [B, ...] to be played instead, within its spec, and the state after it."""
        raise NotImplementedError(f"{type(self).__name__} defines no change.")


@gin.configurable(module="alf")
class EpsilonGreedy(ValueExploration):
    """The best action, and with probability epsilon one drawn from all, each row by its own coin."""

    control = "epsilon"
    highest = 1.0

    def __init__(self, epsilon: Strength = 0.1, name: str = "EpsilonGreedy") -> None:
        """Creates the exploration; `epsilon` is a probability, or a schedule of one."""
        super().__init__(epsilon, name)

    def __call__(self, values: tf.Tensor, allowed: tf.Tensor | None = None) -> tf.Tensor:
        return epsilon_greedy(values, self.strength(), allowed)


def epsilon_greedy(values: tf.Tensor, epsilon: tf.Tensor | float, allowed: tf.Tensor | None = None) -> tf.Tensor:
    """The best of each row of values [B, number of actions], int32 [B]; with probability epsilon, a row, any allowed."""
    best = tf.argmax(values, -1, output_type=tf.int32)
    if isinstance(epsilon, (int, float)) and epsilon <= 0.0:
        return best
    rows = tf.shape(best)
    explores = tf.random.stateless_uniform(rows, rng.next_seed()) < epsilon
    if allowed is None:
        drawn = tf.random.stateless_uniform(rows, rng.next_seed(), maxval=values.shape[-1], dtype=tf.int32)
    else:
        drawn = draw_allowed(allowed, rng.next_seed())
    return tf.where(explores, drawn, best)


@gin.configurable(module="alf")
class Boltzmann(ValueExploration):
    """Draws an action with probability proportional to exp(value / temperature)."""

    control = "temperature"
    may_be_zero = False

    def __init__(self, temperature: Strength = 1.0, name: str = "Boltzmann") -> None:
        """Creates the exploration; `temperature` is above 0, or a schedule that stays above it."""
        super().__init__(temperature, name)

    def __call__(self, values: tf.Tensor, allowed: tf.Tensor | None = None) -> tf.Tensor:
        logits = values / self.strength()
        drawn = tf.random.stateless_categorical(logits, 1, rng.next_seed(), dtype=tf.int32)
        return tf.squeeze(drawn, -1)


@gin.configurable(module="alf")
class GaussianNoise(ActionExploration):
    """Adds independent normal noise, in units of half the range of each action component."""

    control = "noise_stddev"

    def __init__(self, stddev: Strength = 0.1, name: str = "GaussianNoise") -> None:
        """Creates the exploration; `stddev` is a number or a schedule."""
        super().__init__(stddev, name)

    def __call__(self, action: tf.Tensor, state: Nest, action_spec: Any) -> tuple[tf.Tensor, Nest]:
        noise = tf.random.stateless_normal(tf.shape(action), rng.next_seed()) * self.strength()
        return clip_to_spec(action + noise * half_range(action_spec), action_spec), state


@gin.configurable(module="alf")
class OUNoise(ActionExploration):
    """Adds an Ornstein-Uhlenbeck process, x' = (1 - damping) x + N(0, stddev), of its own for every row (Lillicrap 2015).

    It is in the units of the action, and starts at 0 in every episode.
    """

    control = "ou_stddev"

    def __init__(self, stddev: Strength = 0.2, damping: float = 0.15, name: str = "OUNoise") -> None:
        """Creates the exploration.

        Args:
          stddev: of what is added in a step; a number or a schedule.
          damping: the share of the noise that is gone after a step, in [0, 1].
          name: name of the module.

        Raises:
          ValueError: an argument is out of its range.
        """
        super().__init__(stddev, name)
        if not 0.0 <= damping <= 1.0:
            raise ValueError(f"{name}: damping must be at least 0 and at most 1; got {damping}.")
        self._damping = damping

    def state_spec(self, action_spec: Any) -> Nest:
        """The noise of a row, as an action."""
        return tf.TensorSpec(action_spec.shape, action_spec.dtype)

    def __call__(self, action: tf.Tensor, state: Nest, action_spec: Any) -> tuple[tf.Tensor, Nest]:
        drawn = tf.random.stateless_normal(tf.shape(action), rng.next_seed()) * self.strength()
        state = (1.0 - self._damping) * state + drawn
        return clip_to_spec(action + state, action_spec), state


def half_range(spec: Any) -> np.ndarray:
    """Half of what lies between the bounds of a spec, float32, of its shape or broadcast to it."""
    return (0.5 * (np.asarray(spec.maximum, np.float64) - np.asarray(spec.minimum, np.float64))).astype(np.float32)


def clip_to_spec(action: tf.Tensor, spec: Any) -> tf.Tensor:
    """`action` [..., action shape] within the bounds of its spec."""
    return tf.clip_by_value(action, tf.cast(spec.minimum, action.dtype), tf.cast(spec.maximum, action.dtype))


def select(mask: tf.Tensor, chosen: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Rows of `chosen` [B, ...] where `mask` [B] holds, else of `other`."""
    return tf.where(broadcast_mask(mask, chosen), chosen, other)


_Kind = TypeVar("_Kind", bound=Exploration)


def exploration_for(
    action_spec: Any, explorations: Exploration | Mapping[str, Exploration], kind: type[_Kind], name: str
) -> _Kind:
    """The exploration of an action space.

    Args:
      action_spec: spec of one action.
      explorations: one, or a mapping from the kind of action, "discrete" or "continuous", to one.
      kind: of the exploration that is needed.
      name: of the algorithm that needs it.

    Raises:
      ValueError: the mapping has none for these actions, or it is of another kind, or none.
    """
    found: Any = explorations
    if isinstance(explorations, Mapping):
        actions = "discrete" if action_spec.dtype.is_integer else "continuous"
        if actions not in explorations:
            raise ValueError(
                f"There is no exploration for {actions} actions, only for {sorted(explorations) or 'none'}: add {actions!r}."
            )
        found = explorations[actions]
    check_made(name, exploration=found)
    if not isinstance(found, Exploration):
        raise ValueError(
            f"{name} explores {kind.way}, but exploration={found!r} is no exploration: make one, in gin with parentheses."
        )
    if not isinstance(found, kind):
        raise ValueError(f"{name} explores {kind.way}, not by {found.name}.")
    return found
