"""Recorded episodes in one file, and the replayer of algorithms that learn from such a file alone.

The file is a numpy archive (`.npz`, no pickle) of N steps, whole episodes one after the other: `step_type` int32 [N],
`reward` and `discount` float32 [N], and the leaves of raw observations and of actions, in the order of `tf.nest.flatten`,
as `observation/0`, ..., `action/0`, ... [N, ...]. Rows are time steps: `reward[i]` is what the action of the row before
has earned, `action[i]` was chosen at row i, and that of a LAST row means nothing. A column `log_probability`, float32 [N],
may tell the natural logarithm of the chance with which each action was chosen.
"""

from __future__ import annotations

import os
import zipfile
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.data_structures import Experience, Nest, StepType
from alf.replay.experience_replayer import ExperienceReplayer

_CHANCE = "log_probability"


class DatasetError(RuntimeError):
    """The file is damaged, or not of these observations and actions."""


class Steps(NamedTuple):
    """Recorded steps, numpy [N, ...]: see the module."""

    step_type: Any
    reward: Any
    discount: Any
    observation: Nest
    action: Nest
    log_probability: Any = ()


def write_dataset(path: str, steps: Steps) -> None:
    """Writes steps; a file that is there already is replaced in one go.

    Args:
      path: of the file, which should end in `.npz`; `~` is the home folder.
      steps: whole episodes.

    Raises:
      ValueError: there is no step, or one that should be FIRST or LAST is not.
    """
    broken = _broken_episode(np.asarray(steps.step_type))
    if broken:
        raise ValueError(f"A dataset holds whole episodes: {broken}.")
    arrays = {"step_type": steps.step_type, "reward": steps.reward, "discount": steps.discount}
    arrays |= _leaves("observation", steps.observation) | _leaves("action", steps.action) | _chances(steps)
    path = os.path.expanduser(path)
    partial = f"{path}.part"
    with open(partial, "wb") as f:
        np.savez_compressed(f, **arrays)  # type: ignore[arg-type]
    os.replace(partial, path)


def _broken_episode(step_type: np.ndarray) -> str | None:
    """What keeps step types [N] from being those of whole episodes; None where nothing does."""
    if not len(step_type):
        return "it has no step"
    # Before the first step and behind the last one others would be LAST and FIRST.
    first = np.append(step_type == StepType.FIRST, True)
    after_last = np.insert(step_type == StepType.LAST, 0, True)
    wrong = np.flatnonzero(first != after_last)
    if not len(wrong):
        return None
    row = int(wrong[0])
    if first[row]:
        return f"step {row - 1} must be LAST (step_type {int(StepType.LAST)}; its discount tells the end from a time limit)"
    return f"step {row} must be FIRST (step_type {int(StepType.FIRST)})"


def _chances(steps: Steps) -> dict[str, Any]:
    return {} if isinstance(steps.log_probability, tuple) else {_CHANCE: steps.log_probability}


def _leaves(name: str, nest: Nest) -> dict[str, Any]:
    return {f"{name}/{i}": leaf for i, leaf in enumerate(tf.nest.flatten(nest))}


def read_dataset(path: str, observation_spec: Nest, action_spec: Nest) -> Steps:
    """Reads what `write_dataset` wrote.

    Args:
      path: of the file; `~` is the home folder.
      observation_spec: nest of specs of one raw observation.
      action_spec: nest of specs of one action.

    Raises:
      DatasetError: it cannot be read, or holds other leaves, shapes or dtypes, episodes that are not whole, or values as
        `usable` says.
    """
    specs = {"step_type": tf.TensorSpec([], tf.int32)}
    specs |= {name: tf.TensorSpec([], tf.float32) for name in ("reward", "discount")}
    specs |= _leaves("observation", observation_spec) | _leaves("action", action_spec)
    file = os.path.expanduser(path)
    if os.path.isfile(file) and not zipfile.is_zipfile(file):
        raise DatasetError(
            f"The dataset {path} cannot be read: it is damaged, or no .npz archive as alf.replay.dataset.write_dataset writes."
        )
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as e:  # Damaged bytes make zlib, zipfile and numpy raise many kinds.
        raise DatasetError(f"The dataset {path} cannot be read: {e}") from e
    if _CHANCE in arrays:
        specs[_CHANCE] = tf.TensorSpec([], tf.float32)
    expected = {name: f"{spec.dtype.name}{spec.shape.as_list()}" for name, spec in specs.items()}
    found = {name: f"{x.dtype.name}{list(x.shape[1:])}" for name, x in arrays.items()}
    if found != expected:
        raise DatasetError(f"The dataset {path} holds {found}, and this environment has {expected}.")
    sizes = {len(x) for x in arrays.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise DatasetError(
            f"The dataset {path} has columns of {sorted(sizes)} steps; all must have the same, at least one."
        )

    broken = _broken_episode(arrays["step_type"])
    if broken:
        raise DatasetError(f"The dataset {path} does not hold whole episodes: {broken}.")

    def nest(name: str, spec: Nest) -> Nest:
        return tf.nest.pack_sequence_as(spec, [arrays[leaf] for leaf in _leaves(name, spec)])

    steps = Steps(
        arrays["step_type"],
        arrays["reward"],
        arrays["discount"],
        nest("observation", observation_spec),
        nest("action", action_spec),
        arrays.get(_CHANCE, ()),
    )
    return usable(steps, action_spec, f"The dataset {path}")


def usable(steps: Steps, action_spec: Nest, name: str) -> Steps:
    """`steps` with the action of each LAST row, which means nothing and may be anything, replaced by that of the row before.

    So is its log-probability.

    Args:
      steps: whole episodes.
      action_spec: nest of specs of one action.
      name: of what holds them.

    Raises:
      DatasetError: a number is infinite or none, or that of a discrete action is not one of the spec's.
    """
    last = np.flatnonzero(np.asarray(steps.step_type) == StepType.LAST)

    def carried(leaf: Any) -> np.ndarray:
        leaf = np.array(leaf)
        leaf[last] = leaf[last - 1]
        return leaf

    steps = steps._replace(
        action=tf.nest.map_structure(carried, steps.action),
        log_probability=tf.nest.map_structure(carried, steps.log_probability),
    )
    actions = _leaves("action", steps.action)
    numbers = {
        "reward": steps.reward,
        "discount": steps.discount,
        **_leaves("observation", steps.observation),
        **actions,
        **_chances(steps),
    }
    useless = _not_finite(numbers)
    if useless:
        raise DatasetError(f"{name} has {useless}.")
    for (column, leaf), spec in zip(actions.items(), tf.nest.flatten(action_spec), strict=True):
        if not spec.dtype.is_integer:
            continue
        spec = BoundedTensorSpec.from_spec(spec)
        wrong = (leaf < spec.minimum) | (leaf > spec.maximum)
        if wrong.any():
            raise DatasetError(
                f"{name} has {column}={leaf[wrong][0]} at step {_first_row(wrong)}, and this environment's actions are "
                f"{np.min(spec.minimum)} to {np.max(spec.maximum)}."
            )
    return steps


def _not_finite(columns: dict[str, Any]) -> str | None:
    """The first number in columns [N, ...] that is infinite or none, and its step; None where there is none such."""
    for column, leaf in columns.items():
        leaf = np.asarray(leaf)
        wrong = ~np.isfinite(leaf) if leaf.dtype.kind == "f" else np.zeros(0, bool)
        if wrong.any():
            why = "a chance is above 0" if column == _CHANCE else "it must be finite"
            return f"{column}={leaf[wrong][0]} at step {_first_row(wrong)}: {why}"
    return None


def _first_row(wrong: np.ndarray) -> int:
    return int(np.argwhere(wrong)[0, 0])


class DatasetReplayer(ExperienceReplayer):
    """Hands out the same experience again and again; nothing adds to it and nothing clears it."""

    def __init__(self, experience: Experience) -> None:
        """Creates the replayer.

        Args:
          experience: [B', T, ...] without a bootstrap.
        """
        super().__init__(name="dataset")
        self._held = _Held(experience)

    def observe(self, exp: Experience) -> None:
        """Refused: a dataset is fixed."""
        raise ValueError("A dataset takes nothing in: record another one, or use the replayer 'uniform'.")

    def replay_all(self) -> Experience:
        return self._held.experience

    def clear(self) -> None:
        """Does nothing."""

    @property
    def batch_size(self) -> int:
        return int(self._held.experience.step_type.shape[0])


class _Held:
    """Data that TensorFlow shall not track."""

    def __init__(self, experience: Experience) -> None:
        self.experience = experience


def sequences(experience: Experience, length: int) -> Experience:
    """Steps [N, ...] as sequences [ceil(N / length), length, ...].

    A last one that is too short is filled up with its last step as LAST, which nothing is learned from.
    """
    missing = -experience.step_type.shape[0] % length

    def cut(x: tf.Tensor) -> tf.Tensor:
        filling = tf.repeat(x[-1:], missing, axis=0)
        return tf.reshape(tf.concat([x, filling], 0), [-1, length, *x.shape[1:]])

    filled = tf.nest.map_structure(cut, experience)
    if not missing:
        return filled
    last = tf.range(filled.step_type.shape[0] * length) >= experience.step_type.shape[0]
    return filled._replace(
        step_type=tf.where(tf.reshape(last, filled.step_type.shape), int(StepType.LAST), filled.step_type)
    )
