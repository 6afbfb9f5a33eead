"""Versioned, consistent weights between the learner and those who act.

A version is a tuple of immutable tensors. Traced acting code takes them as arguments and reads them in place of the
variables (`reading`), so one traced function serves every actor and every version, no actor keeps variables of its own,
and no forward pass can see half of an update.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.utils import devices
from alf.utils.tracing import Traced


class Snapshot(NamedTuple):
    """Weights of one version: `weights` are the values of the store's variables, in their order."""

    version: int
    weights: tuple[tf.Tensor, ...]


def check_reads_no_variable(function: Any) -> None:
    """Raises ValueError when a traced acting function uses live variables instead of the weights that it is given."""
    live = [v.name for v in function.graph.variables]
    if live:
        raise ValueError(
            f"Acting uses the variables {live} directly, so its weights would not be of one version: read them as plain "
            "tensors (tf.convert_to_tensor(v) before tf.gather or an embedding), keep them as attributes of the algorithm, "
            "do not assign to them in rollout, and do not wrap parts of rollout in a tf.function of their own."
        )


class PolicyStore:
    """Holds the newest published version of a fixed list of variables."""

    def __init__(self, variables: Sequence[tf.Variable], on_host: bool = True) -> None:
        """Creates a store without a version.

        Args:
          variables: of the learner.
          on_host: keep versions in the memory of the processors, for who acts there; else where the variables are.
        """
        self._variables = list(variables)
        self._place = devices.HOST if on_host else None
        self._lock = threading.Lock()
        self._latest: Snapshot | None = None
        # Reading shares the variable's buffer; the next update of the variable copies it before it writes.
        self._read = Traced(lambda: tuple(v.read_value() for v in self._variables))

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables whose values a version holds."""
        return self._variables

    def publish(self, version: int) -> Snapshot:
        """Makes the present values the newest version; called by the learner only, between its updates.

        Raises:
          ValueError: `version` is older than the newest.
        """
        with tf.device(self._place):  # where results are put
            return self._make_latest(Snapshot(version, self._read()))

    def load(self, version: int, values: Sequence[np.ndarray]) -> Snapshot:
        """Makes values that came from elsewhere the newest version; the variables stay what they are.

        Raises:
          ValueError: the values do not fit the variables, or `version` is older than the newest.
        """
        seen = [(tuple(x.shape), x.dtype) for x in values]
        expected = [(tuple(v.shape), np.dtype(v.dtype.as_numpy_dtype)) for v in self._variables]
        if seen != expected:
            raise ValueError(
                f"The weights of version {version} are not those of this algorithm: {_first_difference(seen, expected)}. "
                "Both sides need the same configuration."
            )
        with tf.device(self._place):
            return self._make_latest(Snapshot(version, tuple(tf.constant(x) for x in values)))

    def _make_latest(self, snapshot: Snapshot) -> Snapshot:
        with self._lock:
            if self._latest is not None and snapshot.version < self._latest.version:
                raise ValueError(
                    f"Version {snapshot.version} is older than the published {self._latest.version}, and versions only grow: "
                    "make a new driver after an earlier checkpoint was restored."
                )
            self._latest = snapshot
        return snapshot

    @property
    def empty(self) -> bool:
        """Whether nothing was published yet."""
        return self._latest is None

    @property
    def version(self) -> int:
        """The newest version; 0 before the first is published."""
        latest = self._latest
        return 0 if latest is None else latest.version

    def latest(self) -> Snapshot:
        """The newest version; RuntimeError before the first is published."""
        with self._lock:
            if self._latest is None:
                raise RuntimeError("No weights are published yet: the driver publishes them at start().")
            return self._latest


def _first_difference(seen: Sequence[Any], expected: Sequence[Any]) -> str:
    if len(seen) != len(expected):
        return f"there are {len(seen)} arrays instead of {len(expected)}"
    at = next(i for i, pair in enumerate(zip(seen, expected, strict=True)) if pair[0] != pair[1])
    return f"array {at} is {seen[at]} instead of {expected[at]}"
