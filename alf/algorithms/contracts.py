"""What the methods that an algorithm defines have to give; a slip in one is told here, not by TensorFlow's inner parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from alf.data_structures import LossInfo, Nest, PolicyStep
from alf.utils import nest_utils

# What training reports by itself; `grad_norm` where alf applies the gradients.
_TAKEN = ("loss", "grad_norm")

_IN_EXTRA = "give what it reported as LossInfo.extra of calc_loss"
_BY_DRIVER = "give metrics to the driver, such as AsyncOffPolicyDriver.metrics"
# Methods that drivers and learners of ALF's earlier releases called.
_NEVER_CALLED = {
    "summarize_train": _IN_EXTRA,
    "summarize_rollout": _IN_EXTRA,
    "training_summary": _IN_EXTRA,
    "summarize_metrics": _BY_DRIVER,
    "metric_summary": _BY_DRIVER,
    "set_metrics": _BY_DRIVER,
}


def check_methods(kind: type) -> None:
    """Raises ValueError where a class of algorithms defines a method that nothing calls any more."""
    for name, instead in _NEVER_CALLED.items():
        if any(name in vars(base) for base in kind.__mro__):
            raise ValueError(
                f"{kind.__name__} defines {name}, which ALF's earlier releases called and nothing calls here: {instead}, and "
                "take the method out."
            )


def check_predict(name: str, predict: Callable[..., Any]) -> None:
    """Raises ValueError where `predict` cannot be called as evaluations do.

    Args:
      name: of the algorithm.
      predict: its method.
    """
    taken = inspect.signature(predict)
    try:
        taken.bind(None, None, 0.0)
    except TypeError as e:
        raise ValueError(f"{name}: predict is predict(time_step, state, epsilon_greedy), and has {taken}: {e}.") from e


def check_policy_step(name: str, step: Any, batch_size: int, action_spec: Nest, state_spec: Nest) -> None:
    """Checks what `rollout` gave for a batch.

    Args:
      name: of the algorithm.
      step: what was given.
      batch_size: B.
      action_spec: specs that the action [B, ...] must have.
      state_spec: specs that the recurrent state [B, ...] must have.

    Raises:
      ValueError: it is no PolicyStep, or its action, state or info is not as it must be.
    """
    _check_step(f"{name}: rollout", step, batch_size, action_spec, state_spec, "train_state_spec")
    for leaf in tf.nest.flatten(step.info):
        shape = leaf.batch_shape if nest_utils.is_distribution(leaf) else getattr(leaf, "shape", None)
        if shape is None or tf.TensorShape(shape)[:1].as_list() != [batch_size]:
            raise ValueError(
                f"{name}: rollout gave an info that has {_told(leaf)} for a batch of {batch_size}: an info is a nest of tensors "
                "and distributions whose first axis is the batch, and () where there is nothing to record."
            )


def check_prediction(name: str, step: Any, batch_size: int | None, action_spec: Nest, state_spec: Nest) -> None:
    """Checks what `predict` gave for a batch, whose info is not looked at.

    Args:
      name: of the algorithm.
      step: what was given.
      batch_size: B; None where any will do.
      action_spec: specs that the action [B, ...] must have.
      state_spec: specs that the recurrent state [B, ...] must have.

    Raises:
      ValueError: it is no PolicyStep, or its action or state is not as it must be.
    """
    _check_step(f"{name}: predict", step, batch_size, action_spec, state_spec, "predict_state_spec")


def _check_step(
    given: str, step: Any, batch_size: int | None, action_spec: Nest, state_spec: Nest, name_of_state: str
) -> None:
    if getattr(step, "_fields", None) != PolicyStep._fields:
        raise ValueError(f"{given} gave {type(step).__name__}; it gives a PolicyStep(action, state, info).")
    _check_nest(f"{given} gave an action", step.action, batch_size, action_spec, "action_spec")
    _check_nest(f"{given} gave a state", step.state, batch_size, state_spec, name_of_state)


def refuse_other_goals(algorithm: tf.Module) -> None:
    """Raises the ValueError of an algorithm that learns from values that it recorded, where a replayer puts in other goals."""
    raise ValueError(
        f"{type(algorithm).__name__} learns from values that it recorded as it acted, and exp_replayer='hindsight' puts in "
        "other goals than it acted for: take an algorithm that records none, such as SAC or DQN, or another replayer."
    )


def _check_nest(given: str, nest: Nest, batch_size: int | None, specs: Nest, of: str) -> None:
    if not nest_utils.same_structure(nest, specs):
        raise ValueError(
            f"{given} {_told_nest(nest)}, but {of} is {_told_nest(specs)}: they must have the same structure."
        )
    for leaf, spec in zip(tf.nest.flatten(nest), tf.nest.flatten(specs), strict=True):
        wanted = tf.TensorShape([batch_size, *spec.shape])
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or tf.as_dtype(dtype) != spec.dtype or not wanted.is_compatible_with(leaf.shape):
            raise ValueError(
                f"{given} with {_told(leaf)}, but for a batch of {'any size' if batch_size is None else batch_size} {of} asks "
                f"for {spec.dtype.name} {tuple(wanted)}."
            )


def _told(leaf: Any) -> str:
    if nest_utils.is_distribution(leaf):
        return f"{type(leaf).__name__} of batch shape {tuple(leaf.batch_shape)}"
    if hasattr(leaf, "dtype"):
        return f"{leaf.dtype.name} {tuple(leaf.shape)}"
    return f"{leaf!r} of {type(leaf).__name__}"


def _told_nest(nest: Nest) -> str:
    return str(tf.nest.map_structure(_told, nest))


def minimised(
    name: str,
    info: LossInfo,
    rows: tf.TensorShape,
    valid_masks: tf.Tensor | None = None,
    sequence_weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """What the optimisers minimise of a loss: the mean over its steps, plus its scalar.

    Args:
      name: of the algorithm.
      info: what `calc_loss` gave.
      rows: the shape [T, B] of the data.
      valid_masks: float32 [T, B], 1 where a step counts; by default all do.
      sequence_weights: float32 [B], factors of the losses of the sequences.

    Returns:
      float32 [].

    Raises:
      ValueError: `calc_loss` gave something else than a LossInfo, or a loss that is None or of a wrong shape.
    """
    if not isinstance(info, LossInfo):
        raise ValueError(f"{name}: calc_loss gave {type(info).__name__}; it gives a LossInfo.")
    for field in ("loss", "scalar_loss"):
        if info._asdict()[field] is None:
            raise ValueError(f"{name}: LossInfo.{field} is None; leave it out where there is none.")
    total = tf.zeros([]) if isinstance(info.scalar_loss, tuple) else tf.cast(info.scalar_loss, tf.float32)
    _check_shape(name, "scalar_loss", total, [])
    if isinstance(info.loss, tuple):
        return total
    loss = tf.cast(info.loss, tf.float32)
    if loss.shape.rank == 0:
        return total + loss
    _check_shape(name, "loss", loss, rows)
    if sequence_weights is not None:
        loss = loss * sequence_weights
    if valid_masks is None:
        return total + tf.reduce_mean(loss)
    return total + tf.reduce_sum(loss * valid_masks) / tf.maximum(tf.reduce_sum(valid_masks), 1.0)


def check_gradients(name: str, grads_and_vars: Sequence[tuple[tf.Tensor | None, tf.Variable]]) -> None:
    """Raises ValueError where the loss of the algorithm called `name` has no gradient for any variable of an optimiser."""
    if not grads_and_vars or any(gradient is not None for gradient, _ in grads_and_vars):
        return
    names = [v.name for _, v in grads_and_vars[:3]] + ["..."] * (len(grads_and_vars) > 3)
    raise ValueError(
        f"{name}: the loss that calc_loss gave has no gradient for any of {', '.join(names)}: make it of what train_step "
        "gave, in floats and without tf.stop_gradient, or name attributes that the loss does not train in "
        "_trainable_attributes_to_ignore."
    )


def reported(name: str, info: LossInfo, valid: tf.Tensor) -> dict[str, tf.Tensor]:
    """Each value of `info.extra` by its name, a mean over the steps that count.

    Args:
      name: of the algorithm.
      info: its loss; names within names are joined by `/`.
      valid: float32 [T, B], 1 where a step counts.

    Raises:
      ValueError: a value has no name, a name that is taken, or a wrong shape.
    """
    total = tf.maximum(tf.reduce_sum(valid), 1.0)
    found: dict[str, tf.Tensor] = {}
    for key, value in _named(name, info.extra, ""):
        if key in _TAKEN:
            raise ValueError(f"{name}: LossInfo.extra has {key!r}, which every training reports: name it otherwise.")
        if key in found:
            raise ValueError(f"{name}: LossInfo.extra has {key!r} twice, in a dict inside and beside it: rename one.")
        found[key] = tf.cast(value, tf.float32)
        if found[key].shape.rank:
            _check_shape(name, f"extra[{key!r}]", found[key], valid.shape)
            found[key] = tf.reduce_sum(found[key] * valid) / total
    return found


def merged(name: str, extra: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """What the loss of a critic reports, with what the algorithm reports itself.

    Args:
      name: of the algorithm.
      extra: `LossInfo.extra` of the loss.
      own: the algorithm's, by name.

    Raises:
      ValueError: `extra` is no dict or namedtuple, or both report by one name.
    """
    given = _by_name(name, extra, "")
    if twice := sorted(given.keys() & own.keys()):
        raise ValueError(
            f"{name}: the critic_loss reports {', '.join(map(repr, twice))} in LossInfo.extra, which the algorithm reports "
            "itself: name it otherwise."
        )
    return {**given, **own}


def _named(name: str, extra: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in _by_name(name, extra, prefix).items():
        if isinstance(value, (Mapping, tuple, list)):
            yield from _named(name, value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value


def _by_name(name: str, extra: Any, prefix: str) -> Mapping[str, Any]:
    if nest_utils.is_namedtuple(extra):
        return extra._asdict()
    if extra is None or (isinstance(extra, tuple) and not extra):
        return {}
    if not isinstance(extra, Mapping):
        raise ValueError(
            f"{name}: LossInfo.extra{f' at {prefix!r}' if prefix else ''} is a {type(extra).__name__}; it is a dict, or a "
            "namedtuple, of what to report by name."
        )
    return extra


def _check_shape(name: str, field: str, value: tf.Tensor, shape: Any) -> None:
    if not tf.TensorShape(shape).is_compatible_with(value.shape):
        raise ValueError(
            f"{name}: LossInfo.{field} has shape {tuple(value.shape)}, but it takes {tuple(shape)}: what is of the steps has "
            "one number for each [T, B], and what is of all one number."
        )
