"""Trains what a gin file describes.

    python -m alf.bin.train --gin_file=async_ppo_cart_pole.gin --root_dir=runs/cart_pole

Everything is written below --root_dir; the same command again goes on from the newest checkpoint (--resume insists on
one), or with --force starts anew, with the run before renamed to ROOT_DIR-1. Without --gin_file the *.gin files of
--root_dir are used, of which configured.gin, by which a run that goes on was configured, wins over those that are not
newer. Ctrl-C (or SIGTERM, or a terminal that is closed) finishes the iteration, writes a checkpoint and ends with exit
code 0; a second one ends at once, and so does one before training has begun (exit code 130, for SIGTERM 143). Exit code
2: the command line, a gin file or a checkpoint cannot be used. With --num_workers=8 as many processes collect, on this
machine or, with --ray_address, on those of a Ray cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from absl import flags

from alf.bin import command_line

_INITIALIZE_FROM = flags.DEFINE_string(
    "initialize_from",
    None,
    "Run or checkpoint whose weights a new run begins with; RUN:best for its best one. NAME=RUN is for one behavior, "
    "NAME=OTHER@RUN takes those of another; several between commas. Counters begin at 0, and a run that is resumed goes "
    "on with its own weights.",
)
_RESUME = flags.DEFINE_bool(
    "resume", False, "Only go on with a run: an error where there is no checkpoint to go on from."
)
_FORCE = flags.DEFINE_bool(
    "force", False, "Start anew in a directory that holds a run, which is renamed to ROOT_DIR-1 (or -2, ...)."
)
_STRICT = flags.DEFINE_bool("strict", False, "Make bindings that nothing uses an error instead of a warning.")
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers",
    None,
    "Processes that collect, over TrainerConfig.num_workers of the gin files; 0 collects in this one.",
    lower_bound=0,
)
_RAY_ADDRESS = flags.DEFINE_string(
    "ray_address",
    None,
    "Ray cluster of the workers, over TrainerConfig.ray_address: auto, HOST:PORT, or local for this machine alone.",
)
flags.adopt_module_key_flags(command_line)


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
    with command_line.told_as_usage():
        trainer = config.create_trainer()
    with command_line.told_as_usage(lambda: not trainer.initialized):
        trainer.train()


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return command_line.run(lambda: _train(argv))


def _train(argv: Sequence[str]) -> None:
    root_dir = command_line.root_dir(argv)
    command_line.set_up()
    command_line.parse_gin(root_dir, edits_count=True, begins_anew=_FORCE.value)
    _bind_flags()
    _prepare(root_dir)
    command_line.make_directory(root_dir, "--root_dir")
    train_eval(root_dir, _STRICT.value)


def _bind_flags() -> None:
    """Puts flags of `TrainerConfig` over the gin files, so that the configuration that is written down has them too."""
    from alf.trainers.config import TrainerConfig
    from alf.utils.gin_utils import bind

    for flag in (_NUM_WORKERS, _RAY_ADDRESS, _INITIALIZE_FROM):
        if flag.value not in (None, ""):
            bind(TrainerConfig, flag.name, flag.value)


def _prepare(root_dir: str) -> None:
    """Insists on a run in the directory, or gets it out of the way, as the flags ask."""
    from alf.trainers.config import TrainerConfig
    from alf.trainers.earlier_run import can_be_resumed, set_aside
    from alf.utils.gin_utils import bound

    if _RESUME.value and _FORCE.value:
        raise command_line.UsageError("--resume goes on with a run and --force starts anew: give one of them.")
    if _RESUME.value and not can_be_resumed(root_dir):
        raise command_line.UsageError(
            f"--resume: there is no checkpoint in --root_dir={root_dir} to go on from; leave --resume out to start there."
        )
    if not _FORCE.value:
        return
    source = _INITIALIZE_FROM.value or bound(TrainerConfig, "initialize_from")
    if isinstance(source, str) and _is_inside(source, root_dir):
        raise command_line.UsageError(
            f"--force would rename {root_dir}, which --initialize_from={source} begins with: give the new run another "
            "--root_dir."
        )
    try:
        set_aside(root_dir)
    except OSError as e:
        raise command_line.UsageError(f"--force cannot rename {root_dir}: {e}; give another --root_dir.") from e


def _is_inside(source: str, root_dir: str) -> bool:
    """Whether `source`, which may end in ":best" or the like, is a run or a part of it, or names one for a behavior."""
    run = os.path.realpath(os.path.expanduser(root_dir))
    paths = [source, *(part for part in re.split("[=@,]", source) if os.path.exists(os.path.expanduser(_bare(part))))]
    inside = (os.path.realpath(os.path.expanduser(_bare(path))) for path in paths)
    return any(os.path.commonpath([run, path]) == run for path in inside)


def _bare(source: str) -> str:
    return source.partition(":")[0]


if __name__ == "__main__":
    command_line.start(main)
