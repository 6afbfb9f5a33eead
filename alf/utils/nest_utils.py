"""Nests with distributions in them: turned into tensors that can be stored, and rebuilt from those tensors.

A distribution is stored as the tensors that its forward pass produced (a dict, nested for distributions built of
others, such as `{"logits": ...}`); everything else about it is fixed and lives in a `DistributionSpec`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import utils as tfa_distributions
from tf_agents.utils import nest_utils as tfa_nest

Nest = Any
_Params = tfa_distributions.Params
_Distribution = tfp.distributions.Distribution


@dataclasses.dataclass(frozen=True, eq=False)
class DistributionSpec:
    """What a distribution is apart from the tensors of its forward pass.

    Attributes:
      template: its type and arguments, with a `tf.TensorSpec` (no leading axes) where a tensor goes.
      param_spec: the nested dict of those `tf.TensorSpec`, the structure that `distributions_to_params` gives.
    """

    template: Any
    param_spec: dict[str, Any]

    def build(self, params: Mapping[str, Any]) -> Any:
        """The distribution with `params` (structure of `param_spec`), whose leading axes may be any."""
        return tfa_distributions.make_from_parameters(_fill(self.template, params))

    @property
    def type(self) -> type:
        """The distribution's class."""
        return self.template.type_


def is_distribution(value: Any) -> bool:
    """Whether `value` is a TensorFlow Probability distribution."""
    return isinstance(value, _Distribution)


def is_namedtuple(value: Any) -> bool:
    """Whether `value` is an instance of a `collections.namedtuple`."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _explicit_axes(dist: Any, params: Any) -> None:
    # Left to its default, Independent takes every batch axis but one into the event, and [T, B] would be cut wrong.
    if isinstance(dist, tfp.distributions.Independent):
        params.params["reinterpreted_batch_ndims"] = int(tf.get_static_value(dist.reinterpreted_batch_ndims))


def _with_batch_axes(dist: Any, name: str, tensor: tf.Tensor) -> tf.Tensor:
    """Broadcasts a parameter over the distribution's batch, so that it has one entry a row."""
    event_ndims = dist.parameter_properties(dist.dtype)[name].event_ndims
    event_ndims = event_ndims(dist) if callable(event_ndims) else event_ndims
    tensor = tf.convert_to_tensor(tensor)
    split = tensor.shape.rank - event_ndims
    if tensor.shape[:split].as_list() == dist.batch_shape.as_list():
        return tensor
    batch = dist.batch_shape if dist.batch_shape.is_fully_defined() else dist.batch_shape_tensor()
    return tf.broadcast_to(tensor, tf.concat([batch, tf.shape(tensor)[split:]], 0))


def _parameters(dist: Any) -> Any:
    """The distribution's type and arguments (recursively), parameters broadcast over the batch."""
    params = tfa_distributions.get_parameters(dist)
    _explicit_axes(dist, params)
    for name, value in list(params.params.items()):
        original = dist.parameters[name]
        if is_distribution(original):
            params.params[name] = _parameters(original)
        elif isinstance(value, _Params):
            _check_batch_axes(dist, name, value)
        elif tf.is_tensor(value):
            params.params[name] = _with_batch_axes(dist, name, value)
    return params


def _check_batch_axes(dist: Any, name: str, params: Any) -> None:
    """Refuses tensors of a bijector that have no entry a row: only their author knows which axes they lack."""
    for tensor in tf.nest.flatten(_collect(params)):
        if not tensor.shape[: dist.batch_shape.rank].is_compatible_with(dist.batch_shape):
            raise ValueError(
                f"The {name} of {type(dist).__name__} holds a tensor of shape {tensor.shape} without the batch axes "
                f"{dist.batch_shape}: give it as a numpy constant, or with the batch axes in front."
            )


def _map_params(fn: Callable[[Any], Any], params: Any) -> Any:
    """A copy of `params` with `fn` applied to its tensors."""

    def convert(value: Any) -> Any:
        if isinstance(value, _Params):
            return _map_params(fn, value)
        return fn(value) if tf.is_tensor(value) else value

    return _Params(params.type_, {name: convert(value) for name, value in params.params.items()})


def _collect(params: Any) -> dict[str, Any]:
    """The tensors of `params` as a nested dict; what holds none is left out."""
    tensors: dict[str, Any] = {}
    for name, value in params.params.items():
        if isinstance(value, _Params):
            inner = _collect(value)
            if inner:
                tensors[name] = inner
        elif tf.is_tensor(value):
            tensors[name] = value
    return tensors


def _fill(template: Any, params: Mapping[str, Any]) -> Any:
    """A copy of `template` with `params` in place of its tensor specs."""
    filled = dict(template.params)
    for name, value in params.items():
        if name not in filled:
            raise ValueError(
                f"{template.type_.__name__} takes no tensor {name!r} here: give the parameters that "
                "distributions_to_params returned for a distribution of the same kind."
            )
        filled[name] = _fill(filled[name], value) if isinstance(value, Mapping) else value
    return _Params(template.type_, filled)


def _distribution_spec(dist: Any, from_dim: int) -> DistributionSpec:
    params = _parameters(dist)
    spec_of = functools.partial(_tensor_spec, from_dim=from_dim)
    # Specs of the distribution's own (such as SquashToSpecNormal's action spec) stay as they are in the template.
    return DistributionSpec(_map_params(spec_of, params), tf.nest.map_structure(spec_of, _collect(params)))


def _tensor_spec(tensor: Any, from_dim: int) -> tf.TensorSpec:
    tensor = tf.convert_to_tensor(tensor)
    return tf.TensorSpec(tensor.shape[from_dim:], tensor.dtype)


def extract_spec(nest: Nest, from_dim: int = 1) -> Nest:
    """The spec of a nest of tensors and distributions.

    Args:
      nest: tensors or numpy arrays [B, ...] and distributions of batch shape [B, ...]; may be empty.
      from_dim: how many leading axes to leave out.

    Returns:
      The same structure with a `tf.TensorSpec` for each tensor and a `DistributionSpec` for each distribution.
    """
    return tf.nest.map_structure(
        lambda x: _distribution_spec(x, from_dim) if is_distribution(x) else _tensor_spec(x, from_dim), nest
    )


def distributions_to_params(nest: Nest) -> Nest:
    """Replaces each distribution of a nest by the dict of its parameter tensors, each with the batch axes.

    A parameter that is shared by the batch (a scale that does not depend on the state) comes out once a row. Tensors
    and specs stay as they are.
    """
    return tf.nest.map_structure(lambda x: _collect(_parameters(x)) if is_distribution(x) else x, nest)


def params_to_distributions(nest: Nest, spec: Nest) -> Nest:
    """Rebuilds the distributions of a nest from `distributions_to_params(nest)`.

    Args:
      nest: parameters and tensors, with any leading axes ([B], [T, B], [T * B], ...).
      spec: the nest's spec by `extract_spec`.

    Returns:
      The structure of `spec`, a distribution for each `DistributionSpec`.
    """
    return tfa_nest.map_structure_up_to(
        spec, lambda s, x: s.build(x) if isinstance(s, DistributionSpec) else x, spec, nest
    )


def to_distribution_param_spec(spec: Nest) -> Nest:
    """Replaces each `DistributionSpec` of a nest by the dict of its parameters' `tf.TensorSpec`."""
    return tf.nest.map_structure(lambda s: s.param_spec if isinstance(s, DistributionSpec) else s, spec)


def get_nest_batch_size(nest: Nest, dtype: tf.DType | None = None) -> Any:
    """The size of the first axis of a nest's tensors.

    Args:
      nest: tensors [B, ...].
      dtype: when given, the result is a scalar tensor of it; otherwise an int where B is known, else an int32 scalar.

    Raises:
      ValueError: the nest is empty.
    """
    leaves = tf.nest.flatten(nest)
    if not leaves:
        raise ValueError(
            f"A nest without tensors has no batch size, got {nest!r}: pass a nest with at least one tensor."
        )
    leaf = tf.convert_to_tensor(leaves[0])
    static = leaf.shape[0]
    if dtype is not None:
        return tf.constant(static, dtype) if static is not None else tf.shape(leaf, out_type=dtype)[0]
    return static if static is not None else tf.shape(leaf)[0]


def same_structure(one: Nest, other: Nest) -> bool:
    """Whether two nests have the same structure."""
    try:
        tf.nest.assert_same_structure(one, other)
    except (ValueError, TypeError):
        return False
    return True


def find_field(nest: Nest, name: str, ignore_empty: bool = True) -> list[Any]:
    """All values called `name` in a nest of dicts, namedtuples, lists and tuples.

    Args:
      nest: where to look; a found value is not searched further.
      name: a dict key or a namedtuple field.
      ignore_empty: leave out values that are `()` or None.

    Returns:
      The values, in the order of the fields.
    """
    if is_namedtuple(nest):
        items: list[tuple[Any, Any]] = list(zip(nest._fields, nest, strict=True))
    elif isinstance(nest, Mapping):
        items = list(nest.items())
    elif isinstance(nest, (list, tuple)):
        items = [(None, value) for value in nest]
    else:
        return []
    found: list[Any] = []
    for key, value in items:
        if key != name:
            found.extend(find_field(value, name, ignore_empty))
        elif not ignore_empty or not (value is None or (isinstance(value, tuple) and value == ())):
            found.append(value)
    return found


def paths(nest: Nest) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each leaf of a nest with the names, or numbers, that lead to it, in the order of `tf.nest.flatten`."""
    if is_namedtuple(nest):
        items: list[tuple[Any, Any]] = list(zip(nest._fields, nest, strict=True))
    elif isinstance(nest, Mapping):
        items = [(key, nest[key]) for key in sorted(nest)]
    elif isinstance(nest, (list, tuple)):
        items = list(enumerate(nest))
    else:
        yield (), nest
        return
    for key, value in items:
        for path, leaf in paths(value):
            yield (str(key), *path), leaf
