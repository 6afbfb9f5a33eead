"""Acting by given actions: of a human, a teacher, another program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.util import nest

from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.host_calls import host_call
from alf.drivers.unroll import Call, Decision, Policy, queue_decision
from alf.utils.exits import not_an_exit

# Gets a transformed time step and the action of the policy, numpy arrays [B, ...]; gives the action that is played.
TeacherFn = Callable[[ActionTimeStep, Nest], Nest]


class Teacher:
    """Asks a teacher at every step, from inside of the graph; for one environment after the other.

    Attributes:
      failures: what went wrong last, by the number of the environment that asked.
      asked_since: since when an environment has waited for an answer, by its number.
    """

    def __init__(self, ask: TeacherFn, action_spec: Nest) -> None:
        """Takes the teacher, and the nest of bounded specs of one action."""
        self._ask = ask
        self._action_spec = action_spec
        self._lock = threading.Lock()
        self.failures: dict[int, BaseException] = {}
        self.asked_since: dict[int, float] = {}

    def policy(self, policy: Policy, decide: Decision = queue_decision) -> Policy:
        """Plays what the teacher gives, by `decide`. What else acting gives and records is that of `policy`, at the same step.

        So a recorded distribution says how likely `policy` would have been to do what was done, not how likely the
        teacher was.
        """

        def act(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
            policy_step, version = policy(call, time_step, state, t)
            inputs = (call.thread, time_step, policy_step.action)

            def ask(*flat: np.ndarray) -> list[np.ndarray]:
                # TensorFlow lends its own memory, of what is recorded; a teacher may write into what it gets.
                return self._given(*tf.nest.pack_sequence_as(inputs, [np.array(leaf) for leaf in flat]))

            leaves = tf.nest.flatten(policy_step.action)
            given = host_call(ask, tf.nest.flatten(inputs), [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves])
            action = tf.nest.pack_sequence_as(policy_step.action, given)
            return decide(call, time_step, state, policy_step, action), version

        return act

    def _given(self, thread: np.ndarray, time_step: ActionTimeStep, action: Nest) -> list[np.ndarray]:
        asking = int(thread)
        self.asked_since[asking] = time.monotonic()
        try:
            with self._lock:
                given = self._ask(time_step, action)
            specs = tf.nest.flatten(self._action_spec)
            pairs = zip(specs, tf.nest.flatten(action), _leaves(action, given), strict=True)
            return [_checked(spec, own, np.asarray(value)) for spec, own, value in pairs]
        except BaseException as e:
            self.failures[asking] = not_an_exit(e, "The teacher")
            raise
        finally:
            del self.asked_since[asking]


def _leaves(action: Nest, given: Any) -> list[Any]:
    """What was given for each array of `action`; ValueError where it is another nest."""
    try:
        leaves: list[Any] = nest.flatten_up_to(action, given, check_types=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"A teacher gave {given!r:.200}: give a nest of arrays like the action that it gets, {action!r:.200}."
        ) from None
    return leaves


def _checked(spec: Any, own: np.ndarray, given: np.ndarray) -> np.ndarray:
    """`given` with the dtype of the policy's `own` action.

    Raises:
      ValueError: it has another shape, is not within `spec` and not the policy's own, or no whole number where the action
        is one.
    """
    if given.shape != own.shape:
        raise ValueError(f"A teacher gave actions of shape {given.shape}, not {own.shape}: one for each row.")
    # A policy samples beyond the bounds too: what the environment gets is clipped.
    within = ((given >= spec.minimum) & (given <= spec.maximum)) | (given == own)
    if not within.all():
        worst = given[~within].flat[0]
        raise ValueError(f"A teacher gave {worst}, which is not within [{spec.minimum}, {spec.maximum}].")
    played = given.astype(own.dtype)
    if own.dtype.kind in "iu" and (played != given).any():
        raise ValueError(f"A teacher gave {given[played != given].flat[0]}, and actions are whole numbers: round it.")
    return played
