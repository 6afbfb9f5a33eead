"""Recorded episodes in one file, and the replayer of algorithms that learn from such a file alone.

The file is a numpy archive (`.npz`, no pickle) of N steps, whole episodes one after the other: `step_type` int32 [N],
`reward` and `discount` float32 [N], and the leaves of raw observations and of actions, in the order of `tf.nest.flatten`,
as `observation/0`, ..., `action/0`, ... [N, ...]. Rows are time steps: `reward[i]` is what the action of the row before
has earned, `action[i]` was chosen at row i, and that of a LAST row means nothing. A column `log_probability`, float32 [N],
may tell the natural logarithm of the chance with which each action was chosen.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.data_structures import Experience, Nest, StepType
from alf.replay.experience_replayer import ExperienceReplayer
from alf.utils.files import absolute
from alf.utils.untracked import Untracked

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
      steps: whole episodes. Step types, rewards, discounts and log-probabilities get the dtypes of the file.

    Raises:
      ValueError: there is no step, or one that should be FIRST or LAST is not, columns are not of the same length, or a
        number is not finite.
      OSError: the file cannot be written; what was there before is unharmed.
    """
    columns = _columns(steps)
    fault = _fault(columns)
    if fault:
        raise ValueError(f"The dataset {path} is not written: it {fault}.")
    path = os.path.expanduser(path)
    partial = f"{path}.part"
    try:
        with open(partial, "wb") as f:
            np.savez_compressed(f, **columns)  # type: ignore[arg-type]
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


def _columns(steps: Steps) -> dict[str, np.ndarray]:
    columns = {"step_type": np.asarray(steps.step_type, np.int32)}
    numbers = {"reward": steps.reward, "discount": steps.discount}
    if not isinstance(steps.log_probability, tuple):
        numbers[_CHANCE] = steps.log_probability
    with np.errstate(over="ignore"):  # What is infinite by it is told as such.
        columns |= {name: np.asarray(x, np.float32) for name, x in numbers.items()}
    leaves = _leaves("observation", steps.observation) | _leaves("action", steps.action)
    return columns | {name: np.asarray(x) for name, x in leaves.items()}


def _leaves(name: str, nest: Nest) -> dict[str, Any]:
    return {f"{name}/{i}": leaf for i, leaf in enumerate(tf.nest.flatten(nest))}


def _fault(columns: dict[str, np.ndarray]) -> str | None:
    """What keeps columns from being a dataset, whatever the specs; None where nothing does."""
    sizes = {x.shape[0] if x.ndim else 0 for x in columns.values()}
    if len(sizes) != 1 or 0 in sizes:
        return f"has columns of {sorted(sizes)} steps; all must have the same, at least one"
    broken = _broken_episode(columns["step_type"])
    if broken:
        return f"does not hold whole episodes: {broken}"
    for name, column in _carried(columns).items():
        wrong = ~np.isfinite(column) if column.dtype.kind == "f" else np.zeros(0, bool)
        if wrong.any():
            why = "a chance is above 0" if name == _CHANCE else "it must be finite"
            return f"has {name}={column[wrong][0]} at step {_first_row(wrong)}: {why}"
    return None


def _broken_episode(step_type: np.ndarray) -> str | None:
    """What keeps step types [N] from being those of whole episodes; None where nothing does."""
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


def _carried(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of whole episodes with what LAST rows say of actions, which means nothing, replaced by the row before."""
    last = np.flatnonzero(columns["step_type"] == StepType.LAST)

    def carried(column: np.ndarray) -> np.ndarray:
        column = column.copy()
        column[last] = column[last - 1]
        return column

    return {name: carried(x) if name == _CHANCE or name.startswith("action/") else x for name, x in columns.items()}


def _first_row(wrong: np.ndarray) -> int:
    return int(np.argwhere(wrong)[0, 0])


def read_dataset(path: str, observation_spec: Nest, action_spec: Nest) -> Steps:
    """Reads what `write_dataset` wrote.

    Args:
      path: of the file; `~` is the home folder.
      observation_spec: nest of specs of one raw observation.
      action_spec: nest of specs of one action.

    Returns:
      the steps, as `checked` returns them.

    Raises:
      DatasetError: it cannot be read, or holds what `checked` refuses.
    """
    file = absolute(path)
    if os.path.isfile(file) and not zipfile.is_zipfile(file):
        raise DatasetError(
            f"The dataset {path} cannot be read: it is damaged, or no .npz archive as alf.replay.dataset.write_dataset writes."
        )
    try:
        with np.load(file, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
    except Exception as e:  # Damaged bytes make zlib, zipfile and numpy raise many kinds.
        raise DatasetError(f"The dataset {path} cannot be read: {e}") from e
    return _steps_of(columns, observation_spec, action_spec, f"The dataset {path}")


def checked(steps: Steps, observation_spec: Nest, action_spec: Nest, name: str) -> Steps:
    """Steps that are in no file, checked as `read_dataset` does.

    Args:
      steps: whole episodes. Step types, rewards, discounts and log-probabilities get the dtypes of the file.
      observation_spec: nest of specs of one raw observation.
      action_spec: nest of specs of one action.
      name: of what holds them, in messages.

    Returns:
      the steps, numpy; action and log-probability of each LAST row, which mean nothing and may be anything, are replaced
      by those of the row before.

    Raises:
      DatasetError: there are other leaves, shapes or dtypes, columns that are not of the same length, episodes that are not
        whole, numbers that are not finite, or discrete actions that are none of the spec's.
    """
    for what, nest, spec in (
        ("observations", steps.observation, observation_spec),
        ("actions", steps.action, action_spec),
    ):
        try:
            tf.nest.assert_same_structure(nest, spec)
        except (ValueError, TypeError) as e:
            found, expected = (reprlib.repr(tf.nest.map_structure(lambda _: "column", x)) for x in (nest, spec))
            raise DatasetError(
                f"{name} has {what} nested as {found}, and this environment as {expected}: nest the columns alike."
            ) from e
    return _steps_of(_columns(steps), observation_spec, action_spec, name)


def _steps_of(columns: dict[str, np.ndarray], observation_spec: Nest, action_spec: Nest, name: str) -> Steps:
    specs = {"step_type": tf.TensorSpec([], tf.int32)}
    specs |= {name: tf.TensorSpec([], tf.float32) for name in ("reward", "discount")}
    if _CHANCE in columns:
        specs[_CHANCE] = tf.TensorSpec([], tf.float32)
    specs |= _leaves("observation", observation_spec) | _leaves("action", action_spec)
    expected = {name: f"{spec.dtype.name}{spec.shape.as_list()}" for name, spec in specs.items()}
    found = {name: f"{x.dtype.name}{list(x.shape[1:])}" for name, x in columns.items()}
    if found != expected:
        raise DatasetError(f"{name} holds {found}, and this environment has {expected}.")
    fault = _fault(columns)
    if fault:
        raise DatasetError(f"{name} {fault}.")
    columns = _carried(columns)
    for leaf, spec in _leaves("action", action_spec).items():
        if not spec.dtype.is_integer:
            continue
        spec, action = BoundedTensorSpec.from_spec(spec), columns[leaf]
        wrong = (action < spec.minimum) | (action > spec.maximum)
        if wrong.any():
            raise DatasetError(
                f"{name} has {leaf}={action[wrong][0]} at step {_first_row(wrong)}, and this environment's actions are "
                f"{np.min(spec.minimum)} to {np.max(spec.maximum)}."
            )

    def nest(part: str, spec: Nest) -> Nest:
        return tf.nest.pack_sequence_as(spec, [columns[leaf] for leaf in _leaves(part, spec)])

    return Steps(
        columns["step_type"],
        columns["reward"],
        columns["discount"],
        nest("observation", observation_spec),
        nest("action", action_spec),
        columns.get(_CHANCE, ()),
    )


class DatasetReplayer(ExperienceReplayer):
    """Hands out the same experience again and again; nothing adds to it and nothing clears it."""

    def __init__(self, experience: Experience | Callable[[], Experience]) -> None:
        """Creates the replayer.

        Args:
          experience: [B', T, ...] without a bootstrap, or what reads it, which is called when it is first asked for.
        """
        super().__init__(name="dataset")
        self._experience = Untracked(experience)

    def observe(self, exp: Experience) -> None:
        """Refused: a dataset is fixed."""
        raise ValueError("A dataset takes nothing in: record another one, or use the replayer 'uniform'.")

    def replay_all(self) -> Experience:
        held = self._experience
        if not isinstance(held.value, Experience):
            held.value = held.value()
        return held.value

    def clear(self) -> None:
        """Does nothing."""

    @property
    def batch_size(self) -> int:
        return int(self.replay_all().step_type.shape[0])


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
