"""Writes the policy of a run as a model that runs without alf.

    python -m alf.bin.export --root_dir=runs/cart_pole --checkpoint=best --export_dir=models/cart_pole
    python -m alf.bin.export --root_dir=runs/cart_pole --export_dir=models/cart_pole --onnx
    python -m alf.bin.export --root_dir=runs/pursuit --export_dir=models/pursuit --behavior=runner

Writes a TensorFlow SavedModel, with --onnx an ONNX model too, and metadata.json, which tells the names, shapes and
bounds of inputs and outputs, and how to call the model. Each model is compared with the policy before it is put into
--export_dir. Of a run with behaviors each is exported on its own, into --export_dir/BEHAVIOR, as a policy of single
agents, any number of which make a batch; --behavior chooses one. It writes nothing into --root_dir unless --export_dir
is there. Exit code 2: the command line, the configuration or the checkpoint is wrong, or the policy cannot be exported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from alf.bin import command_line, policy_flags, trained
from alf.utils import files

_EXPORT_DIR = flags.DEFINE_string("export_dir", None, "Directory for the models; made if it is not there.")
_ONNX = flags.DEFINE_bool("onnx", False, "Write an ONNX model too; needs the extra onnx.")
_BEHAVIOR = flags.DEFINE_string("behavior", None, "Export this behavior only, of a run that has several.")
flags.adopt_module_key_flags(command_line)
flags.declare_key_flag("checkpoint")


def export(root_dir: str, which: str, export_dir: str, onnx: bool = False, behavior: str | None = None) -> list[str]:
    """Exports a checkpoint of a run whose gin configuration is parsed.

    Args:
      root_dir: of the run.
      which: as `trained.restore` takes it.
      export_dir: where the models go; other files there stay.
      onnx: write an ONNX model too.
      behavior: export this one only; None: all that there are.

    Returns:
      paths of what was written, those of a policy side by side in one directory.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the configuration.
      UsageError: there is no checkpoint at all, no such behavior, or environment or algorithm cannot be built.
      ExportError: the policy cannot be exported, or a model does not do what the policy does.
      OSError: a file cannot be written.
    """
    from alf.trainers.checkpoint_files import counts_in

    algorithm = trained.make_algorithm_alone(root_dir)
    policies = _policies(algorithm, behavior)
    restored = trained.restore(root_dir, algorithm, which)
    logging.info("Exporting %s.", restored.path)
    # Not those of the index: the checkpoint may be of another run.
    env_steps, _ = counts_in(restored.path)
    facts = {"checkpoint": restored.name, "step": restored.step, "env_steps": env_steps}
    each = [_export_one(policy, name, export_dir, onnx, facts) for name, policy in policies.items()]
    return [path for paths in each for path in paths]


def _policies(algorithm: Any, behavior: str | None) -> dict[str | None, Any]:
    """The algorithms to export, by the names of their behaviors; None stands for an agent that is alone."""
    from alf.algorithms.behaviors import Behaviors

    if not isinstance(algorithm, Behaviors):
        if behavior is not None:
            raise command_line.UsageError(f"--behavior={behavior}: this run has a single agent; leave the flag out.")
        return {None: algorithm}
    by_name = algorithm.by_name
    if behavior is not None and behavior not in by_name:
        raise command_line.UsageError(f"--behavior={behavior}: the run has {', '.join(map(repr, by_name))}.")
    return {name: one for name, one in by_name.items() if behavior in (None, name)}


def _export_one(algorithm: Any, behavior: str | None, export_dir: str, onnx: bool, facts: dict[str, Any]) -> list[str]:
    from alf.algorithms.exporting import exportable
    from alf.export import ExportError, export_policy
    from alf.utils.files import folder_name

    directory = export_dir
    if behavior is not None:
        directory, facts = os.path.join(export_dir, folder_name(behavior)), {"behavior": behavior, **facts}
    try:
        written = export_policy(exportable(algorithm), directory, onnx=onnx, facts=facts)
    except ExportError as e:
        if behavior is None:
            raise
        raise ExportError(f"The behavior {behavior!r}: {e}") from e
    return [os.path.join(directory, entry) for entry in written]


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv)
        if not _EXPORT_DIR.value:
            raise command_line.UsageError(
                "--export_dir is missing: give the directory for the models, e.g. --export_dir=models/cart_pole."
            )
        with command_line.told_as_usage():
            export_dir = files.full_path(_EXPORT_DIR.value, "--export_dir")
        if os.path.isfile(export_dir):
            raise command_line.UsageError(f"--export_dir={export_dir} is a file: give a directory.")
        policy_flags.check()
        command_line.refuse(policy_flags.OF_EPISODES, "nothing is played")
        which = policy_flags.checkpoint()
        command_line.check_directory(root_dir)
        command_line.make_directory(os.path.dirname(export_dir), "The place of --export_dir")
        command_line.set_up()
        command_line.parse_gin(root_dir)
        try:
            written = export(root_dir, which, export_dir, _ONNX.value, _BEHAVIOR.value)
        except OSError as e:
            raise command_line.UsageError(
                f"--export_dir={export_dir} cannot be written to ({e.strerror or e}): make room, or give another path."
            ) from e
        logging.info("Written and verified: %s", ", ".join(written))
        for directory in dict.fromkeys(map(os.path.dirname, written)):
            _tell_usage(directory)

    return command_line.run(body)


def _tell_usage(export_dir: str) -> None:
    from alf.export import usage_of

    logging.info("Use it so, with TensorFlow alone (from %s):\n%s", export_dir, "\n".join(usage_of(export_dir)))


if __name__ == "__main__":
    command_line.start(main)
