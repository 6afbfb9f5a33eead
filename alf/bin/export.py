"""Writes the policy of a run as a model that runs without alf.

    python -m alf.bin.export --root_dir=runs/cart_pole --checkpoint=best --export_dir=models/cart_pole
    python -m alf.bin.export --root_dir=runs/cart_pole --export_dir=models/cart_pole --onnx

Writes a TensorFlow SavedModel, with --onnx an ONNX model too, and metadata.json, which tells the names, shapes and
bounds of inputs and outputs, and how to call the model. Each model is compared with the policy before it is put into
--export_dir. It writes nothing into --root_dir unless --export_dir is there. Exit code 2: the command line, the
configuration or the checkpoint is wrong, or the policy cannot be exported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags, logging

from alf.bin import command_line, policy_flags, trained

_EXPORT_DIR = flags.DEFINE_string("export_dir", None, "Directory for the models; made if it is not there.")
_ONNX = flags.DEFINE_bool("onnx", False, "Write an ONNX model too; needs the extra onnx.")
flags.adopt_module_key_flags(command_line)
flags.declare_key_flag("checkpoint")


def export(root_dir: str, which: str, export_dir: str, onnx: bool = False) -> list[str]:
    """Exports a checkpoint of a run whose gin configuration is parsed.

    Args:
      root_dir: of the run.
      which: as `trained.restore` takes it.
      export_dir: where the models go; other files there stay.
      onnx: write an ONNX model too.

    Returns:
      paths of what was written.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the configuration.
      UsageError: there is no checkpoint at all, or environment or algorithm cannot be built.
      ExportError: the policy cannot be exported, or a model does not do what the policy does.
      OSError: a file cannot be written.
    """
    from alf.algorithms.exporting import exportable
    from alf.export import export_policy
    from alf.trainers.run_index import RunIndex

    env = trained.make_environment(seed=0)
    try:
        algorithm = trained.make_algorithm(root_dir, env)
    finally:
        env.close()
    restored = trained.restore(root_dir, algorithm, which)
    logging.info("Exporting %s.", restored.path)
    record = RunIndex.load(root_dir).find(restored.name)
    facts = {"checkpoint": restored.name, "step": restored.step}
    if record is not None:
        facts["env_steps"] = record.env_steps
    written = export_policy(exportable(algorithm), export_dir, onnx=onnx, facts=facts)
    return [os.path.join(export_dir, entry) for entry in written]


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv)
        if not _EXPORT_DIR.value:
            raise command_line.UsageError(
                "--export_dir is missing: give the directory for the models, e.g. --export_dir=models/cart_pole."
            )
        export_dir = os.path.expanduser(_EXPORT_DIR.value)
        policy_flags.check()
        which = policy_flags.checkpoint()
        command_line.make_directory(os.path.dirname(os.path.abspath(export_dir)), "The place of --export_dir")
        command_line.set_up()
        command_line.parse_gin(root_dir)
        try:
            written = export(root_dir, which, export_dir, _ONNX.value)
        except OSError as e:
            raise command_line.UsageError(str(e)) from e
        logging.info("Written and verified: %s", ", ".join(written))
        _tell_usage(export_dir)

    return command_line.run(body)


def _tell_usage(export_dir: str) -> None:
    from alf.export import usage_of

    logging.info("Use it so, with TensorFlow alone (from %s):\n%s", export_dir, "\n".join(usage_of(export_dir)))


if __name__ == "__main__":
    command_line.start(main)
