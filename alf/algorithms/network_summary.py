"""The networks of an algorithm as a table of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from alf.algorithms.algorithm import Algorithm
from alf.algorithms.behaviors import Behaviors

_NOT_NETWORKS = {"_module_sets", "_optimizers"}


def network_summary(algorithm: Algorithm) -> str:
    """The networks in an algorithm, in a stable order, with the shapes and numbers of their parameters.

    Args:
      algorithm: whose networks have their variables.

    Returns:
      Lines of text: for each network its place in the algorithm, its name, its parameters and the optimiser that trains
      it ("not trained" for targets, other copies and frozen behaviors), its variables below it; and the totals.
    """
    learning = algorithm.trained.values() if isinstance(algorithm, Behaviors) else [algorithm]
    trained_by = {
        variable.ref(): type(optimizer).__name__
        for part in learning
        for _, optimizer, modules in part.get_optimizer_and_module_sets()
        if optimizer is not None
        for module in modules
        for variable in ([module] if isinstance(module, tf.Variable) else module.trainable_variables)
    }
    rows: list[tuple[str, str, str]] = []
    total = trained = 0
    for place, network in networks_of(algorithm):
        variables = list({v.ref(): v for v in network.variables}.values())
        by = sorted({trained_by[v.ref()] for v in variables if v.ref() in trained_by})
        count = sum(_size(v) for v in variables)
        rows.append((f"{place} ({type(network).__name__})", f"{count:,}", ", ".join(by) or "not trained"))
        rows += [(f"  {v.name} {v.shape.as_list()}", f"{_size(v):,}", "") for v in variables]
        total += count
        trained += sum(_size(v) for v in variables if v.ref() in trained_by)
    rows.append(("all networks", f"{total:,}", f"{trained:,} trained"))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def networks_of(module: tf.Module) -> Iterator[tuple[str, Any]]:
    """(place, network) of each network in a module, each once, in the order of the names of their places."""
    yield from _below(module, "", set())


def _below(module: tf.Module, place: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for key, value in sorted(vars(module).items()):
        if key in _NOT_NETWORKS or key.startswith("_self_"):
            continue
        several = isinstance(value, (list, tuple, dict))
        if not several and not isinstance(value, tf.Module):
            continue
        for i, item in enumerate(tf.nest.flatten(value)):
            if not isinstance(item, tf.Module) or id(item) in seen:
                continue
            seen.add(id(item))
            here = f"{place}{key.lstrip('_')}" + (f"/{i}" if several else "")
            if isinstance(item, tf.keras.layers.Layer):
                yield here, item
            else:
                yield from _below(item, f"{here}/", seen)


def _size(variable: tf.Variable) -> int:
    return int(variable.shape.num_elements())
