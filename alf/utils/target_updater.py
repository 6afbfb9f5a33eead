"""Target networks: copies of networks that follow them, at once or slowly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from alf.utils.untracked import Untracked

UNITS = ("updates", "env_steps")


class TargetUpdater(tf.Module):
    """Moves target variables towards those they follow, when a period has passed; made by `get_target_updater`."""

    def __init__(
        self,
        pairs: list[tuple[tf.Variable, tf.Variable]],
        tau: float,
        period: int,
        env_steps: tf.Variable | None,
    ) -> None:
        super().__init__(name="TargetUpdater")
        self._pairs = Untracked(pairs)  # The networks own them.
        self._tau = tau
        self._period = period
        self._env_steps = env_steps
        self._since = tf.Variable(0, dtype=tf.int64, trainable=False, name="since")

    def __call__(self) -> None:
        """To be called once after every update, eagerly or traced: moves the targets if it is time."""
        if self._period == 1 and self._env_steps is None:
            self._move()
            return
        if self._env_steps is None:
            passed = self._since.assign_add(1)
            start = tf.zeros([], tf.int64)
        else:
            passed = self._env_steps - self._since
            start = self._env_steps - passed % self._period
        tf.cond(passed >= self._period, lambda: self._move_and_restart(start), lambda: tf.zeros([]))

    @property
    def pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """(variable, its target) of every variable."""
        return self._pairs.value

    @property
    def by_env_steps(self) -> bool:
        """Whether its period is one of environment steps, without which nothing moves."""
        return self._env_steps is not None

    def due(self) -> tf.Tensor:
        """Bool []: whether the next call will move the targets, as far as is known now."""
        if self._env_steps is None:
            return self._since + 1 >= self._period
        return self._env_steps - self._since >= self._period

    def _move_and_restart(self, start: tf.Tensor) -> tf.Tensor:
        self._move()
        self._since.assign(start)
        return tf.zeros([])

    def _move(self) -> None:
        for variable, target in self._pairs.value:
            # Counters, such as those of normalising layers, cannot be blended.
            if self._tau == 1.0 or not variable.dtype.is_floating:
                target.assign(variable)
            else:
                target.assign_add(self._tau * (variable - target))


def get_target_updater(
    models: tf.Module | Sequence[tf.Module],
    target_models: tf.Module | Sequence[tf.Module],
    tau: float = 1.0,
    period: int = 1,
    copy: bool = True,
    *,
    unit: str = "updates",
    env_steps: tf.Variable | None = None,
) -> TargetUpdater:
    """Makes what updates target networks: target += tau * (model - target), every `period` updates or env steps.

    Its clock is a variable, so a resumed run goes on in mid-period. With tau 1 it copies (Mnih et al. 2015), below it
    blends (Polyak averaging, Lillicrap et al. 2015).

    Args:
      models: the networks, built; one or several.
      target_models: their targets, in the same order, with variables of the same shapes.
      tau: in (0, 1].
      period: updates, or env steps, between two moves.
      copy: copy the models into the targets now.
      unit: what `period` counts, "updates" or "env_steps".
      env_steps: int64 [], how many env steps there were; with the unit "env_steps".

    Raises:
      ValueError: a number is out of its range, the unit is another, or the variables do not match.
    """
    if not 0.0 < tau <= 1.0 or period < 1:
        raise ValueError(f"A target update needs 0 < tau <= 1 and period >= 1, got tau={tau} and period={period}.")
    if unit not in UNITS:
        raise ValueError(f"Target networks are updated every so many {' or '.join(UNITS)}, not {unit!r}.")
    if (unit == "env_steps") != (env_steps is not None):
        raise ValueError(f"unit={unit!r}: give the variable env_steps with the unit 'env_steps' and only with it.")
    variables = [v for model in _listed(models) for v in model.variables]
    targets = [v for model in _listed(target_models) for v in model.variables]
    shapes: list[Any] = [[v.shape.as_list() for v in group] for group in (variables, targets)]
    if shapes[0] != shapes[1] or not variables:
        raise ValueError(
            f"Networks with variables {shapes[0]} cannot be followed by targets with {shapes[1]}: build both "
            "(create_variables), and make the targets by copy()."
        )
    if copy:
        for variable, target in zip(variables, targets, strict=True):
            target.assign(variable)
    return TargetUpdater(list(zip(variables, targets, strict=True)), tau, period, env_steps)


def _listed(models: tf.Module | Sequence[tf.Module]) -> list[tf.Module]:
    return [models] if isinstance(models, tf.Module) else list(models)
