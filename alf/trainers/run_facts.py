"""What the run index says about the run itself: of what it was made, and how it stands."""

from __future__ import annotations

import filecmp
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from absl import logging
from packaging.version import InvalidVersion, Version

import alf
from alf.trainers.run_index import now

_PACKAGES = ("tensorflow", "tf-keras", "tf-agents", "tensorflow-probability", "numpy", "gymnasium")


def versions() -> dict[str, str]:
    """Versions of alf, Python, and the packages that results may depend on."""
    found = {"alf": alf.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def facts(random_seed: int) -> dict[str, Any]:
    """The facts about a run that begins, or goes on, now.

    Args:
      random_seed: of which its random numbers are derived.
    """
    return {
        "status": "running",
        "why": None,
        "seed": random_seed,
        "command_line": list(sys.argv),
        "git_revision": git_revision(),
        "versions": versions(),
        "started": now(),
    }


def failure(error: BaseException) -> dict[str, Any]:
    """The facts about a run that `error` has ended."""
    kind = type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        return {"status": "interrupted", "why": kind}
    return {"status": "failed", "why": f"{kind}: {error}"}


def git_revision() -> str | None:
    """The commit that the working directory is at; None where there is none, or no git."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def keep_earlier(path: str, directory: str) -> str | None:
    """Copies a file that is about to be written anew to DIRECTORY/<name>-<n><suffix>, unless the last copy is the same.

    Args:
      path: of the file, which need not exist.
      directory: of the copies, n = 1, 2, ...

    Returns:
      path of the new copy, if one was made.
    """
    stem, suffix = os.path.splitext(os.path.basename(path))
    pattern = re.compile(rf"{re.escape(stem)}-(\d+){re.escape(suffix)}", re.ASCII)
    try:
        matches = [pattern.fullmatch(name) for name in os.listdir(directory)]
        last = max((int(match[1]) for match in matches if match), default=0)
        if last and filecmp.cmp(path, os.path.join(directory, f"{stem}-{last}{suffix}"), shallow=False):
            return None
        return shutil.copyfile(path, os.path.join(directory, f"{stem}-{last + 1}{suffix}"))
    except OSError as e:
        if os.path.exists(path):
            logging.warning("%s is written over, and no copy could be kept: %s", path, e)
        return None


def warn_of_other_versions(run: Mapping[str, Any]) -> None:
    """Logs which versions have changed since a run was last worked on.

    Args:
      run: the facts that its index holds.
    """
    before, here = run.get("versions"), versions()
    if not isinstance(before, dict):
        return
    changed = [_change(name, str(before[name]), here.get(name, "none")) for name in before]
    changed = [change for change in changed if change]
    if changed:
        logging.warning("This run was made with other versions: %s. Results may differ a little.", ", ".join(changed))


def warn_of_another_seed(run: Mapping[str, Any], random_seed: int | None) -> None:
    """Logs that a run with `exact_resume` goes on with another seed than it began with.

    Args:
      run: the facts that its index holds.
      random_seed: of which its random numbers are derived now.
    """
    before = run.get("seed")
    if before not in (None, random_seed):
        logging.warning(
            "The run goes on with random_seed=%s and began with %s, so it is not, as exact_resume would have it, the run that "
            "was not interrupted.",
            random_seed,
            before,
        )


def _change(name: str, before: str, here: str) -> str:
    """How a version has changed, in words; empty when it is the same, however it is written."""
    try:
        older, newer = Version(here) < Version(before), Version(here) > Version(before)
    except InvalidVersion:
        older, newer = False, before != here
    if not older and not newer:
        return ""
    return f"{name} {before} -> {here}" + (" (older)" if older else "")
