"""The models that are written with each checkpoint of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from alf.algorithms.exporting import exportable
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.export import PolicyExporter, check_onnx
from alf.trainers.counters import Counters

if TYPE_CHECKING:
    from alf.trainers.config import TrainerConfig


def model_exporter(
    config: TrainerConfig, algorithm: RLAlgorithm, counters: Counters
) -> Callable[[str], list[str]] | None:
    """What writes the models of a moment into a directory; None where the configuration asks for none.

    Raises:
      ExportError: ONNX models are asked for and their packages are missing.
    """
    if not (config.export_saved_model or config.export_onnx):
        return None
    if config.export_onnx:
        check_onnx()

    def facts() -> dict[str, Any]:
        return {"step": counters.global_steps, "iterations": counters.iterations, "env_steps": counters.env_steps}

    # A policy that cannot be exported must not keep training from beginning: it is looked at with the first checkpoint.
    @functools.cache
    def exporter() -> PolicyExporter:
        return PolicyExporter(exportable(algorithm), onnx=config.export_onnx, facts=facts)

    return lambda directory: exporter()(directory)
