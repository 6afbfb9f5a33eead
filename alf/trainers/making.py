"""A trainer for a script or a notebook, from the gin files that the command line takes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import alf.trainers.configurables  # noqa: F401
from alf.trainers.config import TrainerConfig
from alf.trainers.configurations import Configuration
from alf.trainers.policy_trainer import Trainer
from alf.utils import gin_utils

AnyPath = str | os.PathLike[str]


def make_trainer(
    gin_files: AnyPath | Sequence[AnyPath], root_dir: AnyPath, bindings: str | Sequence[str] = ()
) -> Trainer:
    """A trainer as `python -m alf.bin.train` has it; its `train` begins a run, or goes on with that of the directory.

    The process forgets what gin was told before: close a trainer that was made earlier, as its `train` does in the end.
    One that has not been built until then never is.

    Args:
      gin_files: one or several, each as `gin_utils.find_gin_file` takes it, such as the name of a shipped example.
      root_dir: directory of everything the run writes; `~` is the home folder.
      bindings: one or several, such as `TrainerConfig.num_iterations=10`; they win over the files.

    Raises:
      GinConfigError: a file or a binding cannot be used.
      ValueError: `TrainerConfig` cannot be made, or has no trainer.
    """
    Configuration.begin()
    files = [gin_files] if isinstance(gin_files, (str, os.PathLike)) else gin_files
    lines = [bindings] if isinstance(bindings, str) else bindings
    gin_utils.parse_gin([os.fspath(file) for file in files], lines)
    trainer: Trainer = TrainerConfig(root_dir=os.path.expanduser(root_dir)).create_trainer()
    return trainer
