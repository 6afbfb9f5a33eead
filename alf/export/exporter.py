"""Writes a policy to a directory: a SavedModel, ONNX if asked for, and a description; verified, or not at all."""

from __future__ import annotations

import datetime
import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

import alf
from alf.export import onnx_model
from alf.export.policy import ExportablePolicy, ExportError
from alf.export.saved_model import INITIAL_STATE, SavedModelWriter
from alf.utils import mixed_precision

SAVED_MODEL = "saved_model"
ONNX = "model.onnx"
METADATA = "metadata.json"

FORMAT = 1


class PolicyExporter:
    """Exports one policy again and again, as its weights change; what does not change is done at the first time."""

    def __init__(
        self, policy: ExportablePolicy, *, onnx: bool = False, facts: Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        """Prepares exports; nothing is traced yet.

        Args:
          policy: what to export, such as `alf.algorithms.exporting.exportable(algorithm)`.
          onnx: write an ONNX model too, which needs the extra `onnx`.
          facts: called at each export; what it returns, such as the step, goes into `metadata.json`.

        Raises:
          ExportError: `onnx` is asked for and its packages are missing.
        """
        if onnx:
            onnx_model.check_onnx()
        self._policy = policy
        self._onnx = onnx
        self._facts = facts

    @functools.cached_property
    def _saved_model(self) -> SavedModelWriter:
        return SavedModelWriter(self._policy)

    def __call__(self, directory: str) -> list[str]:
        """Writes the policy with its present weights into `directory`, which is made; what it held of these is replaced.

        To be called by the thread that trains, between updates. Whoever acts may go on meanwhile; nothing of the policy
        and of the random streams changes.

        Returns:
          the written files and folders, relative to `directory`.

        Raises:
          ExportError: a written model does not do what the policy does, or the policy cannot be a model; `directory` is
            as it was.
          OSError: a file cannot be written.
        """
        directory = os.path.abspath(os.path.expanduser(directory))
        parent, name = os.path.split(directory)
        partial = os.path.join(parent, f"{name}.export-partial")
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        try:
            # A model is run by others in float32, and compared so.
            with mixed_precision.in_float32():
                written = self._write(partial)
            _move(partial, directory, written)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return written

    def _write(self, directory: str) -> list[str]:
        written = [SAVED_MODEL, METADATA]
        path = os.path.join(directory, SAVED_MODEL)
        self._saved_model.write(path)
        self._saved_model.verify(path)
        metadata = self._metadata()
        if self._onnx:
            metadata["onnx"] = onnx_model.write(self._policy, os.path.join(directory, ONNX))
            written.insert(1, ONNX)
        with open(os.path.join(directory, METADATA), "w", encoding="utf-8") as file:
            json.dump(metadata, file, indent=1, allow_nan=False)
        return written

    def _metadata(self) -> dict[str, Any]:
        model = self._saved_model
        return {
            "format": FORMAT,
            "alf": alf.__version__,
            "tensorflow": tf.__version__,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **(self._facts() if self._facts is not None else {}),
            "specs": dict(self._policy.description),
            "signatures": {
                name: {"inputs": model.inputs_of(name), "outputs": model.outputs_of(name)} for name in model.signatures
            },
            "usage": _usage(self._policy, model),
        }


def _usage(policy: ExportablePolicy, model: SavedModelWriter) -> list[str]:
    """Lines of Python that load a written model and act with it."""
    arguments = []
    for name in model.inputs_of("action"):
        if name not in policy.state:
            leaf = policy.leaf(name)
            shape = ", ".join(["B", *(str(size) for size in leaf.shape)])
            arguments.append(f"{name}=...,  # {leaf.dtype.name} [{shape}]")
    lines = ["import tensorflow as tf", f'model = tf.saved_model.load("{SAVED_MODEL}")']
    if policy.state:
        lines.append(f'state = model.signatures["{INITIAL_STATE}"](batch_size=tf.constant(B))')
        own = [name for name in model.inputs_of("action") if name in policy.state]
        arguments.append(f"**{{name: state[name] for name in {own}}},")
    lines += ['outputs = model.signatures["action"](', *(f"    {a}" for a in arguments), ")"]
    if policy.state:
        lines += ["state = state | {name: outputs[name] for name in outputs if name in state}"]
        lines += ["# step_type: 0 begins an episode (its row of the state counts as zero), 1 goes on, 2 ends it"]
    return lines


def usage_of(directory: str) -> list[str]:
    """The lines of Python by which the model exported into `directory` is used.

    Raises:
      ExportError: its description is missing or damaged.
    """
    path = os.path.join(directory, METADATA)
    try:
        with open(path, encoding="utf-8") as file:
            return [str(line) for line in json.load(file)["usage"]]
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as e:
        raise ExportError(f"{path} does not describe a model ({type(e).__name__}): export it again.") from e


def export_policy(
    policy: ExportablePolicy, directory: str, *, onnx: bool = False, facts: Mapping[str, Any] | None = None
) -> list[str]:
    """Exports a policy once; see `PolicyExporter` for arguments, result and errors."""
    return PolicyExporter(policy, onnx=onnx, facts=lambda: facts or {})(directory)


def _move(source: str, directory: str, entries: list[str]) -> None:
    """Moves what was written to its place, all at once where there is nothing yet."""
    if not os.path.lexists(directory):
        os.rename(source, directory)
        return
    if not os.path.isdir(directory):
        raise ExportError(f"{directory} is a file: give a directory for the export.")
    for entry in entries:
        target = os.path.join(directory, entry)
        if os.path.isdir(target):
            shutil.rmtree(target)
        os.replace(os.path.join(source, entry), target)
    if ONNX not in entries and os.path.exists(os.path.join(directory, ONNX)):
        os.remove(os.path.join(directory, ONNX))  # of an earlier export, with other weights
