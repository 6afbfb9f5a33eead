"""Trains what a gin file describes.

    python -m alf.bin.train --gin_file=async_ppo_cart_pole.gin --root_dir=runs/cart_pole

Everything is written below --root_dir; the same command again goes on from the newest checkpoint. Without --gin_file
the *.gin files of --root_dir are used. Ctrl-C (or SIGTERM) finishes the iteration, writes a checkpoint and ends with
exit code 0; a second one ends at once. Exit code 2: the command line, a gin file or a checkpoint cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import app, flags, logging

from alf.bin import command_line

_STRICT = flags.DEFINE_bool("strict", False, "Make bindings that nothing uses an error instead of a warning.")


def train_eval(root_dir: str, strict: bool = False) -> None:
    """Trains by the gin configuration in force.

    Args:
      root_dir: directory of everything the run writes.
      strict: make bindings that nothing uses an error.
    """
    from alf.trainers.config import TrainerConfig

    config = TrainerConfig(root_dir=root_dir)
    config.strict = config.strict or strict
    config.create_trainer().train()


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    try:
        root_dir = command_line.root_dir(argv)
    except command_line.UsageError as e:
        logging.error("%s", e)
        return 2
    command_line.set_up()
    from alf.trainers.checkpointing import CheckpointError
    from alf.utils.gin_utils import GinConfigError

    try:
        command_line.parse_gin(root_dir)
        train_eval(root_dir, _STRICT.value)
    except (command_line.UsageError, GinConfigError, CheckpointError) as e:
        logging.error("%s", e)
        return 2
    return 0


if __name__ == "__main__":
    app.run(main)
