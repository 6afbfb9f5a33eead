"""Acting by given actions: of a human, a teacher, another program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.host_calls import host_call
from alf.drivers.unroll import Call, Policy

# Gets a transformed time step and the action of the policy, numpy arrays [B, ...]; gives the action that is played.
TeacherFn = Callable[[ActionTimeStep, Nest], Nest]


class Teacher:
    """Asks a teacher at every step, from inside of the graph; for one environment after the other.

    Attributes:
      failures: what went wrong last, by the number of the environment that asked.
    """

    def __init__(self, ask: TeacherFn, action_spec: Nest) -> None:
        """Takes the teacher, and the nest of bounded specs of one action."""
        self._ask = ask
        self._action_spec = action_spec
        self._lock = threading.Lock()
        self.failures: dict[int, Exception] = {}

    def policy(self, policy: Policy) -> Policy:
        """Plays what the teacher gives. What else acting gives and records is that of `policy`, at the same step.

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
            return policy_step._replace(action=tf.nest.pack_sequence_as(policy_step.action, given)), version

        return act

    def _given(self, thread: np.ndarray, time_step: ActionTimeStep, action: Nest) -> list[np.ndarray]:
        try:
            with self._lock:
                given = self._ask(time_step, action)
            tf.nest.assert_same_structure(action, given)
            specs = tf.nest.flatten(self._action_spec)
            pairs = zip(specs, tf.nest.flatten(action), tf.nest.flatten(given), strict=True)
            return [_checked(spec, own, np.asarray(value)) for spec, own, value in pairs]
        except Exception as e:
            self.failures[int(thread)] = e
            raise


def _checked(spec: Any, own: np.ndarray, given: np.ndarray) -> np.ndarray:
    """`given` with the dtype of the policy's `own` action.

    Raises:
      ValueError: it has another shape, or is not within `spec`.
    """
    if given.shape != own.shape:
        raise ValueError(f"A teacher gave actions of shape {given.shape}, not {own.shape}: one for each row.")
    within = (given >= spec.minimum) & (given <= spec.maximum)
    if not within.all():
        worst = given[~within].flat[0]
        raise ValueError(f"A teacher gave {worst}, which is not within [{spec.minimum}, {spec.maximum}].")
    return given.astype(own.dtype)
