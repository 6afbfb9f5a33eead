"""Trains what a gin file describes.

    python -m alf.bin.train --gin_file=async_ppo_cart_pole.gin --root_dir=runs/cart_pole

Everything is written below --root_dir; the same command again goes on from the newest checkpoint. Without --gin_file
the *.gin files of --root_dir are used. Ctrl-C (or SIGTERM) finishes the iteration, writes a checkpoint and ends with
exit code 0; a second one ends at once, and so does one before training has begun (exit code 130). Exit code 2: the
command line, a gin file or a checkpoint cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from alf.bin import command_line

_INITIALIZE_FROM = flags.DEFINE_string(
    "initialize_from",
    None,
    "Run or checkpoint whose weights a new run begins with; RUN:best for its best one. Counters begin at 0, and a run "
    "that is resumed goes on with its own weights.",
)
_STRICT = flags.DEFINE_bool("strict", False, "Make bindings that nothing uses an error instead of a warning.")


def train_eval(root_dir: str, strict: bool = False, initialize_from: str | None = None) -> None:
    """Trains by the gin configuration in force.

    Args:
      root_dir: directory of everything the run writes.
      strict: make bindings that nothing uses an error.
      initialize_from: see `TrainerConfig`.
    """
    from alf.trainers.config import TrainerConfig

    with command_line.told_as_usage():
        config = TrainerConfig(root_dir=root_dir)
    config.strict = config.strict or strict
    config.initialize_from = initialize_from or config.initialize_from
    config.create_trainer().train()


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return command_line.run(lambda: _train(argv))


def _train(argv: Sequence[str]) -> None:
    root_dir = command_line.root_dir(argv)
    command_line.set_up()
    command_line.parse_gin(root_dir)
    train_eval(root_dir, _STRICT.value, _INITIALIZE_FROM.value)


if __name__ == "__main__":
    command_line.start(main)
