"""What a directory holds of a run before, and how a new one gets it out of its way."""

from __future__ import annotations

import glob
import os
import shutil

from absl import logging

from alf.trainers.checkpoint_files import CHECKPOINT_DIR
from alf.trainers.run_index import CONFIG_FILE, INDEX_FILE, RunIndex
from alf.trainers.run_lock import LOCK_FILE, RunLock


def can_be_resumed(root_dir: str) -> bool:
    """Whether a run in `root_dir` has a checkpoint to go on from."""
    return bool(RunIndex.load(root_dir).records())


def set_aside(root_dir: str) -> str | None:
    """Renames the directory of a run to ROOT_DIR-<n>, n = 1, 2, ..., and makes an empty one in its place.

    The gin files that a user has put there stay, as copies. Of a link, it is the directory that it leads to.

    Args:
      root_dir: of the run.

    Returns:
      where the run is now; None when there was none, and nothing was changed.

    Raises:
      RunLockedError: it is alive.
      OSError: it cannot be renamed.
    """
    root_dir = os.path.realpath(root_dir)
    if not any(os.path.exists(os.path.join(root_dir, name)) for name in (INDEX_FILE, CHECKPOINT_DIR, CONFIG_FILE)):
        return None
    aside = _free_name(root_dir)
    with RunLock(root_dir):
        os.rename(root_dir, aside)
        os.remove(os.path.join(aside, LOCK_FILE))
    os.makedirs(root_dir, exist_ok=True)
    for path in glob.glob(os.path.join(glob.escape(aside), "*.gin")):
        if os.path.basename(path) != CONFIG_FILE:
            shutil.copy2(path, root_dir)
    logging.info("The run that was in %s is in %s now.", root_dir, aside)
    return aside


def _free_name(path: str) -> str:
    number = 1
    while os.path.lexists(f"{path}-{number}"):
        number += 1
    return f"{path}-{number}"
