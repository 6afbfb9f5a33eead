"""What a policy makes of steps that another one has played: the chance of the recorded actions, and their values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, RLAlgorithm
from alf.algorithms.stored_steps import time_steps_of
from alf.data_structures import ActionTimeStep, Nest, StepType
from alf.replay.dataset import Steps
from alf.utils import rng
from alf.utils.common import add_outer_dims, is_stateless, reset_state_at_first, zeros_from_spec

# Rows of a forward pass, where none depends on the one before.
_AT_ONCE = 1024


class Judged(NamedTuple):
    """Of each recorded step, float32 [N]; of LAST rows nothing means anything.

    Fields: log_probability of the recorded action; value, what the policy is thought to earn from the observation on, and
    q_value, the same after the recorded action; both None where the algorithm does not say.
    """

    log_probability: np.ndarray
    value: np.ndarray | None
    q_value: np.ndarray | None


def judge(algorithm: RLAlgorithm, steps: Steps, epsilon_greedy: float = 0.0) -> Judged | None:
    """Judges recorded steps by a policy of discrete actions that takes the most likely one, or samples.

    Args:
      algorithm: whose policy it is; nothing in it changes.
      steps: whole episodes, [N, ...].
      epsilon_greedy: chance of a sampled instead of the most likely action, as `predict` takes it: of the distribution,
        or, where there are only values of actions, of any allowed one.

    Returns:
      None where the algorithm gives no probabilities and no values of all actions, as with continuous ones; where it acts
      by goals, which are not recorded; or where it would sample, and does not tell from what.
    """
    specs = tf.nest.flatten(algorithm.action_spec)
    if algorithm.follows_goals or not all(spec.dtype.is_integer for spec in specs):
        return None
    if epsilon_greedy > 0.0 and not algorithm.outputs_tell_chances:
        return None
    names = _names(algorithm, len(specs))
    if names is None:
        return None
    time_steps, count = time_steps_of(steps), len(steps.step_type)
    function = _judging(algorithm, names, epsilon_greedy)
    stateless = is_stateless(algorithm.train_state_spec)
    found: list[np.ndarray] = []
    state: Nest = zeros_from_spec(algorithm.train_state_spec, int(np.sum(steps.step_type == StepType.FIRST)))
    with _all_remembering(algorithm):
        for rows in _batches(count) if stateless else _side_by_side(steps.step_type):
            time_step, action = tf.nest.map_structure(
                lambda x, rows=rows: tf.gather(x, rows), (time_steps, steps.action)
            )
            *said, state = function(time_step, action, state)
            if not found:
                found = [np.zeros(count, np.float32) for _ in said]
            for column, part in zip(found, said, strict=True):
                column[rows] = part
    return Judged(*found, *[None] * (3 - len(found)))


@contextlib.contextmanager
def _all_remembering(algorithm: RLAlgorithm) -> Iterator[None]:
    """Has acting bring all networks forward: those that only give values are otherwise left where they are."""
    before = algorithm.use_rollout_state
    algorithm.use_rollout_state = True
    try:
        yield
    finally:
        algorithm.use_rollout_state = before


def _batches(count: int) -> Iterator[np.ndarray]:
    return (np.arange(at, min(at + _AT_ONCE, count)) for at in range(0, count, _AT_ONCE))


def _side_by_side(step_type: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of all episodes at their first step, at their second, and so on; of one that is over, its LAST again."""
    begins, ends = (np.flatnonzero(step_type == kind) for kind in (StepType.FIRST, StepType.LAST))
    return (np.minimum(begins + t, ends) for t in range(int(np.max(ends - begins)) + 1))


def _names(algorithm: RLAlgorithm, leaves: int) -> tuple[list[str], list[str], bool] | None:
    """The outputs with probabilities of each leaf of an action, those with values of all actions, and whether V is there."""

    def outputs() -> dict[str, tf.Tensor]:
        time_step = zeros_from_spec(algorithm.time_step_spec, 1)
        return _outputs(algorithm, time_step, zeros_from_spec(algorithm.train_state_spec, 1))[1]

    shapes = tf.function(outputs, autograph=False).get_concrete_function().structured_outputs
    probabilities = [name for name in shapes if name.split("/")[0] == "action_probabilities"]
    q_values = [name for name, x in shapes.items() if name.split("/")[0] == "q_values" and x.shape.rank == 2]
    if leaves != 1 or any(shapes[name].shape.rank != 2 for name in probabilities):
        q_values = []
    if len(probabilities) != leaves and (probabilities or not q_values):
        return None
    return probabilities, q_values, "value" in shapes


def _outputs(
    algorithm: RLAlgorithm, time_step: ActionTimeStep, state: Nest
) -> tuple[ActionTimeStep, dict[str, tf.Tensor], Nest]:
    """A raw time step [B, ...] transformed, what the networks say of it, and the state after it."""
    time_step = algorithm.transform_timestep(time_step)
    state = reset_state_at_first(state, time_step.step_type)
    # What is drawn on the way must take no number from anybody's stream.
    with rng.scope(tf.zeros([2], tf.int32)):
        outputs, after = algorithm.outputs(time_step, state), state
        if not is_stateless(state) and algorithm.acts:
            after = algorithm.rollout(time_step, state, OFF_POLICY_TRAINING).state
        elif not is_stateless(state):
            after = algorithm.predict(time_step, state).state
    return time_step, outputs, after


def _judging(algorithm: RLAlgorithm, names: tuple[list[str], list[str], bool], epsilon: float) -> Any:
    """From raw time steps, actions and states [B, ...] to the columns of `Judged` and the states after."""
    probabilities, q_values, has_value = names

    def function(time_step: ActionTimeStep, action: Nest, state: Nest) -> tuple[Any, ...]:
        time_step, outputs, after = _outputs(algorithm, time_step, state)
        q = tf.reduce_min(tf.stack([outputs[name] for name in q_values]), 0) if q_values else None
        if probabilities:
            sampled = [outputs[name] for name in probabilities]
            likely = [tf.argmax(p, -1, tf.int32) for p in sampled]
        else:
            sampled = [_uniform(q, algorithm.allowed_actions(time_step))]
            likely = [tf.argmax(q, -1, tf.int32)]
        # Networks of values give an action of shape [1] no axis.
        taken = [tf.reshape(a, tf.shape(b)) for a, b in zip(_numbers(action), likely, strict=True)]
        chance = epsilon * _chance(taken, sampled) + (1.0 - epsilon) * _same(taken, likely)
        columns = [tf.math.log(chance)]
        if q is not None:
            policy = epsilon * sampled[0] + (1.0 - epsilon) * tf.one_hot(likely[0], q.shape[-1])
            columns += [tf.reduce_sum(policy * q, -1), tf.gather(q, taken[0], batch_dims=1)]
        elif has_value:
            columns.append(outputs["value"])
        return (*columns, after)

    signature = (algorithm.time_step_spec, algorithm.action_spec, algorithm.train_state_spec)
    return tf.function(function, autograph=False, input_signature=add_outer_dims(signature, [None]))


def _numbers(action: Nest) -> list[tf.Tensor]:
    return [tf.cast(a, tf.int32) for a in tf.nest.flatten(action)]


def _uniform(q: tf.Tensor, allowed: tf.Tensor | None) -> tf.Tensor:
    chance = tf.ones_like(q) if allowed is None else tf.cast(allowed, q.dtype)
    return chance / tf.reduce_sum(chance, -1, keepdims=True)


def _chance(taken: list[tf.Tensor], sampled: list[tf.Tensor]) -> tf.Tensor:
    """The probability [B] of a whole action, of the probabilities [B, ..., A] of its leaves [B, ...]."""
    each = [tf.gather(p, a, batch_dims=p.shape.rank - 1) for a, p in zip(taken, sampled, strict=True)]
    return tf.reduce_prod(tf.concat([tf.reshape(p, [tf.shape(p)[0], -1]) for p in each], 1), 1)


def _same(taken: list[tf.Tensor], likely: list[tf.Tensor]) -> tf.Tensor:
    """1.0 [B] where all leaves of two actions are the same, else 0.0."""
    each = [tf.reshape(a == b, [tf.shape(a)[0], -1]) for a, b in zip(taken, likely, strict=True)]
    return tf.cast(tf.reduce_all(tf.concat(each, 1), 1), tf.float32)
