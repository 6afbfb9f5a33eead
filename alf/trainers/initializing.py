"""Beginning a run with the weights of others, all of them or those of some behaviors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from alf.algorithms.behaviors import Behaviors
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.trainers.checkpoint_objects import StoredObjects, variables_below
from alf.trainers.checkpointing import CheckpointError, damage_of
from alf.trainers.origins import Origin, origins

# Names of attributes that hold optimisers and what training, explorations and target networks count by; of alf, and of
# the agents of TF-Agents.
_CLOCK = "_clock"
_NO_WEIGHTS = (
    *("_optimizers", "_delayed_optimizer", "_iterations", "_seed", _CLOCK, "_env_steps", "_since"),
    *("_optimizer", "_actor_optimizer", "_critic_optimizer", "_alpha_optimizer", "_cql_alpha_optimizer"),
    *("_train_step_counter", "_counter"),
)
_OPTIMIZERS = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer, tf.compat.v1.train.Optimizer)
# Names of attributes under which a shell holds the algorithm inside of it.
_INSIDE = ("_rl_algorithm", "_ac_algorithm")
_SHOWN = 10


class _Pair(NamedTuple):
    """An algorithm of this run, what stands for it in a checkpoint, and what to call it."""

    algorithm: OffPolicyAlgorithm
    node: int | None
    called: str


def load_weights(algorithm: OffPolicyAlgorithm, source: str, setting: str = "initialize_from") -> list[Origin]:
    """Sets the weights of an algorithm to those of checkpoints; optimisers and counters stay new.

    Behaviors that do not learn also explore as those that they come from did in the end.

    Variables are matched by their place in the algorithm, and must agree in shape and dtype. What is inside of an `Agent`
    or TRAC also matches what is inside of none, or of others. What has no match, on either side, is named in the log; a
    target network without one becomes what it follows. The sources are only read.

    Args:
      algorithm: whose variables exist.
      source: path of a run, of a checkpoint, or `RUN:which` with "best", "final" or a step. With behaviors also
        `TARGET=SOURCE` for one of them, or several between commas: the weights of the behavior of that name there, or of
        its only one. `BEHAVIOR@SOURCE` says which behavior there.
      setting: what `source` is given as, for errors.

    Returns:
      whose weights went where.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, has no such behavior, or nothing in it fits.
    """
    names = list(algorithm.by_name) if isinstance(algorithm, Behaviors) else []
    found = origins(source, names, setting)
    for origin in found:
        what = f"{setting}={source}"
        try:
            _load(algorithm, origin, what)
        except tf.errors.OpError as e:
            # A run that goes on there may have let it go since it was looked at.
            why = damage_of(origin.path) or e.message
            raise CheckpointError(f"{what}: {origin.path} cannot be read any more: {why}.") from e
    return found


def _load(algorithm: OffPolicyAlgorithm, origin: Origin, what: str) -> None:
    path = origin.path
    damage = damage_of(path)
    if damage is not None:
        raise CheckpointError(f"{what}: {path} cannot be read: {damage}")
    reader = tf.train.load_checkpoint(path)
    objects = StoredObjects(reader)
    target, node, called = _pair(algorithm, objects, origin, what)
    left = objects.variables(node, _NO_WEIGHTS)
    matched, unmatched = [], []
    optimizers = [thing for thing in tf.train.TrackableView(target).descendants() if isinstance(thing, _OPTIMIZERS)]
    for place, variable, key in _places(target, objects, node, optimizers, _frozen(algorithm)):
        left.pop(key or "", None)
        value = None if key is None else reader.get_tensor(key)
        if value is None:
            unmatched.append(f"{place} is not in it")
        elif not objects.fits(variable, key):
            unmatched.append(f"{place} is {value.dtype}{list(value.shape)} there")
        else:
            matched.append((variable, value))
    if not matched:
        raise CheckpointError(f"{what}: no weight of {path} fits {called}: {_some(unmatched, left, called)}.")
    for variable, value in matched:
        variable.assign(value)
    taken = {variable.ref() for variable, _ in matched}
    for variable, follower in target.followers():
        if variable.ref() in taken and follower.ref() not in taken:
            follower.assign(variable)
    logging.info("Weights from %s for %s: %d variables.", path, called, len(matched))
    if unmatched or left:
        logging.warning("Not taken from %s: %s.", path, _some(unmatched, left, called))


def _some(unmatched: list[str], left: dict[str, str], called: str) -> str:
    """What did not match, in words: of this run, and what is left of the source."""
    told = [*unmatched, *(f"{place} is not in {called}" for place in left.values())]
    more = f", and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return "; ".join(told[:_SHOWN]) + more


def _places(
    target: OffPolicyAlgorithm,
    objects: StoredObjects,
    node: int | None,
    optimizers: list[Any],
    frozen: list[OffPolicyAlgorithm],
) -> Iterator[tuple[str, tf.Variable, str | None]]:
    """As `variables_below`; where the shells differ, such as an `Agent` on one side only, the innermost are matched."""
    if isinstance(target, Behaviors):
        for name, child in target.by_name.items():
            for place, variable, key in _places(child, objects, objects.behaviors.get(name), optimizers, frozen):
                yield f"{name}/{place}", variable, key
        return
    # What never learns explores as what it comes from did in the end, for no schedule of it goes on.
    skip = [name for name in _NO_WEIGHTS if name != _CLOCK or all(target is not one for one in frozen)]
    mine, shells = _innermost(target, lambda thing, name: getattr(thing, name, None))
    there, other_shells = _innermost(node, objects.child)
    if shells == other_shells:
        yield from variables_below(target, objects, node, skip, optimizers)
        return
    yield from variables_below(mine, objects, there, skip, optimizers)
    if shells:
        yield from variables_below(target, objects, node, [*skip, *_INSIDE], optimizers)


def _frozen(algorithm: OffPolicyAlgorithm) -> list[OffPolicyAlgorithm]:
    """The behaviors that do not learn."""
    several = isinstance(algorithm, Behaviors)
    return [one for name, one in algorithm.by_name.items() if name not in algorithm.trained] if several else []


def _innermost(shell: Any, child: Callable[[Any, str], Any]) -> tuple[Any, list[str]]:
    """What is inside of all shells, and the names on the way to it."""
    names: list[str] = []
    while (name := next((n for n in _INSIDE if child(shell, n) is not None), None)) is not None:
        shell = child(shell, name)
        names.append(name)
    return shell, names


def _pair(algorithm: OffPolicyAlgorithm, objects: StoredObjects, origin: Origin, what: str) -> _Pair:
    """What gets weights, and from what; a single agent and the only behavior of a run stand for each other."""
    mine = algorithm.by_name if isinstance(algorithm, Behaviors) else {}
    there = objects.behaviors
    target, behavior = origin.target, origin.behavior
    if target is None and behavior is None and bool(mine) == bool(there):
        return _Pair(algorithm, objects.algorithm, "this algorithm")
    if mine and target is None:
        if len(mine) > 1:
            raise CheckpointError(f"{what}: say for which behavior, as in {next(iter(mine))}=..., of {_listed(mine)}.")
        target = next(iter(mine))
    if there and behavior is None:
        behavior = target if target in there else next(iter(there))
        if behavior != target and len(there) > 1:
            raise CheckpointError(
                f"{what}: {origin.path} has several behaviors; say which, as in {behavior}@RUN, of {_listed(there)}."
            )
    if behavior is not None and behavior not in there:
        has = f"has {_listed(there)}" if there else "is of a single agent"
        raise CheckpointError(f"{what}: {origin.path} has no behavior {behavior!r}: it {has}.")
    node = objects.algorithm if behavior is None else there[behavior]
    if target is None:
        return _Pair(algorithm, node, "this algorithm")
    return _Pair(mine[target], node, f"the behavior {target!r}")


def _listed(names: dict[str, OffPolicyAlgorithm] | dict[str, int]) -> str:
    return ", ".join(map(repr, names))
