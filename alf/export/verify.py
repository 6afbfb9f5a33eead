"""Whether an exported model does what the policy does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import StepType
from alf.export.policy import ExportablePolicy, ExportError, Tensors

# Largest difference of an output, relative to its size where that is above 1.
TOLERANCE = 1e-5

# (steps, batch size) of the sequences that are compared; recurrent policies need several steps.
_FEED_FORWARD = ((1, 5), (1, 1))
_RECURRENT = ((4, 3), (1, 1))

# Calls a model with all inputs by name, of which it takes those that it knows.
Model = Callable[[Tensors], Mapping[str, Any]]


def check(
    policy: ExportablePolicy,
    run: Callable[[Tensors], Tensors],
    model: Model,
    what: str,
    largest_input: float = math.inf,
) -> None:
    """Compares a model with a policy on random inputs within the specs, over several steps where there is a state.

    Args:
      policy: tells inputs and state.
      run: what the policy does with all of its inputs.
      model: what the model does.
      what: name of the model in messages.
      largest_input: size of the inputs where the bounds allow it, for a model that computes in another order: what it
        rounds otherwise grows with them.

    Raises:
      ExportError: an output is missing, not finite or another one.
    """
    rng = np.random.default_rng(0)
    for steps, batch_size in _RECURRENT if policy.state else _FEED_FORWARD:
        states = (_not_zero(policy, batch_size), _not_zero(policy, batch_size))
        for step_type in _step_types(rng, steps, batch_size):
            drawn = {leaf.name: leaf.draw(rng, batch_size, largest_input) for leaf in policy.inputs}
            drawn |= {"step_type": step_type}
            expected = run(drawn | states[0])
            given = {name: tf.convert_to_tensor(x) for name, x in model(drawn | states[1]).items()}
            _compare(policy, drawn | states[0], expected, given, what)
            states = _advanced(states[0], expected), _advanced(states[1], given)


def _not_zero(policy: ExportablePolicy, batch_size: int) -> Tensors:
    # Rows at FIRST must not see the state that they are given.
    return {name: tf.ones_like(policy.leaf(name).zeros(batch_size)) for name in policy.state}


def _advanced(state: Tensors, outputs: Tensors) -> Tensors:
    return {name: outputs.get(name, x) for name, x in state.items()}


def _step_types(rng: np.random.Generator, steps: int, batch_size: int) -> Iterator[tf.Tensor]:
    """All rows begin; later some begin anew."""
    for step in range(steps):
        first = np.ones(batch_size, bool) if step == 0 else rng.random(batch_size) < 0.25
        yield tf.constant(np.where(first, StepType.FIRST, StepType.MID), tf.int32)


def _compare(policy: ExportablePolicy, inputs: Tensors, expected: Tensors, given: Tensors, what: str) -> None:
    if set(expected) != set(given):
        raise ExportError(f"{what}: the model gives {sorted(given)}, the policy {sorted(expected)}.")
    for name, tensor in expected.items():
        want, got = tensor.numpy(), given[name].numpy()
        if want.shape != got.shape or want.dtype != got.dtype:
            raise ExportError(
                f"{what}: {name} is {got.dtype} {got.shape}, and by the policy {want.dtype} {want.shape}."
            )
        if not np.issubdtype(want.dtype, np.floating):
            if not np.array_equal(want, got) and not _as_good(policy, inputs, expected, given, name):
                raise ExportError(f"{what}: {name} is {got.tolist()}, and by the policy {want.tolist()}.")
            continue
        if not np.isfinite(want).all():
            raise ExportError(f"{what}: {name} of the policy itself is not finite; its weights are of no use.")
        difference = float(np.max(np.abs(want - got) / np.maximum(1.0, np.abs(want)), initial=0.0))
        if not difference <= TOLERANCE:
            raise ExportError(f"{what}: {name} differs from the policy's by {difference:.2g}, more than {TOLERANCE:g}.")


def _as_good(policy: ExportablePolicy, inputs: Tensors, expected: Tensors, given: Tensors, name: str) -> bool:
    """Whether the most probable action is another one only because two are equally probable but for rounding."""
    if not name.startswith("action"):
        return False
    actions = {key: value for key, value in given.items() if key.startswith("action")}
    rows = np.any(
        [np.any(np.reshape(expected[k].numpy() != v.numpy(), [len(v), -1]), 1) for k, v in actions.items()], 0
    )
    return bool(np.all(policy.nearly_best(inputs, actions) | ~rows))
