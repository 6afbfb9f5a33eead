"""The models that are written with each checkpoint of a run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from alf.algorithms.behaviors import Behaviors
from alf.algorithms.exporting import exportable
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.export import PolicyExporter, check_onnx
from alf.trainers.counters import Counters
from alf.utils.files import folder_name

if TYPE_CHECKING:
    from alf.trainers.config import TrainerConfig


def model_exporter(
    config: TrainerConfig, algorithm: RLAlgorithm, counters: Counters
) -> Callable[[str], list[str]] | None:
    """What writes the models of a moment into a directory; None where the configuration asks for none.

    With behaviors each is written below it, into a directory of its own.

    Raises:
      ExportError: ONNX models are asked for and their packages are missing.
    """
    if not (config.export_saved_model or config.export_onnx):
        return None
    if config.export_onnx:
        check_onnx()

    def facts() -> dict[str, Any]:
        return {"step": counters.global_steps, "iterations": counters.iterations, "env_steps": counters.env_steps}

    if isinstance(algorithm, Behaviors):
        writers = {
            name: _writer(config, one, functools.partial(_of_behavior, name, facts))
            for name, one in algorithm.by_name.items()
        }
        return functools.partial(_write_each, writers)
    return _writer(config, algorithm, facts)


def _writer(
    config: TrainerConfig, algorithm: RLAlgorithm, facts: Callable[[], dict[str, Any]]
) -> Callable[[str], list[str]]:
    # A policy that cannot be exported must not keep training from beginning: it is looked at with the first checkpoint.
    @functools.cache
    def exporter() -> PolicyExporter:
        return PolicyExporter(exportable(algorithm), onnx=config.export_onnx, facts=facts)

    return lambda directory: exporter()(directory)


def _of_behavior(name: str, facts: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {"behavior": name, **facts()}


def _write_each(writers: Mapping[str, Callable[[str], list[str]]], directory: str) -> list[str]:
    """Writes the models of every behavior; one that fails is logged, and raised when there is no other."""
    written: list[str] = []
    for name, write in writers.items():
        folder = folder_name(name)
        try:
            written += [os.path.join(folder, entry) for entry in write(os.path.join(directory, folder))]
        # Whatever goes wrong with one, the others are written.
        except Exception as e:
            if len(writers) == 1:
                raise
            logging.error("%s has no model of the behavior %r: %s: %s", directory, name, type(e).__name__, e)
    return written
