"""What the files of a run tell about it, gathered without TensorFlow and whatever state they are in."""

from __future__ import annotations

import contextlib
import json
import logging as std_logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from alf.metrics.time_shares import TimeShares
from alf.trainers.run_index import CONFIG_FILE, INDEX_FILE, Record, RunIndex
from alf.trainers.run_lock import LOCK_FILE, holder_of
from alf.trainers.worker_table import read_workers
from alf.utils.files import read_object

STATS_FILE = os.path.join("train", "stats.jsonl")

_TAIL_BYTES = 1 << 17
_DECAY = re.compile(r"^((?:\w+/)*PolynomialDecay\.decay_steps) = (%?[\w/]+)$", re.MULTILINE)
_MACRO = re.compile(r"^([\w/]+) = (\d+)$", re.MULTILINE)
_LIMIT = re.compile(r"(num_iterations|num_env_steps)=(\d+) is reached")


def view(root_dir: str) -> dict[str, Any]:
    """Everything that is known of a run, as JSON values.

    Args:
      root_dir: of the run.

    Returns:
      `state` ("running", "finished", "interrupted", "failed", "killed", "unknown", "no run") and `why`; `run`, the facts
      of the index; `lock`; `checkpoints`, oldest first, with `bytes`; `stats`, the last row; `time_shares` and `verdict`
      where the stats have them; `workers`, the table of those in other processes; `commands` by purpose; `problems`, a
      sentence for each file that cannot be read.
    """
    problems: list[str] = []
    with _collected_warnings(problems), _without_tensorflow():
        index = RunIndex.load(root_dir)
    lock = _lock(root_dir, problems)
    stats = last_row(root_dir, problems)
    shares = time_shares(stats)
    checkpoints = [_checkpoint(root_dir, record, problems) for record in index.records()]
    known = bool(index.run or checkpoints or lock or stats) or os.path.exists(os.path.join(root_dir, CONFIG_FILE))
    state, why = _state(index.run, lock, known)
    return {
        "root_dir": root_dir,
        "state": state,
        "why": why,
        "run": index.run,
        "lock": lock,
        "checkpoints": checkpoints,
        "stats": stats,
        "time_shares": shares.scalars() if shares else {},
        "verdict": shares.verdict() if shares else None,
        "workers": read_workers(root_dir, problems),
        "commands": _commands(root_dir, state, why, bool(checkpoints), index.run.get("command_line")),
        "problems": problems,
    }


def state_of(root_dir: str, run: Mapping[str, Any]) -> tuple[str, str]:
    """The state of a run and why it is in it, as `view` tells them.

    Args:
      root_dir: of the run.
      run: the facts of its index.
    """
    return _state(run, _lock(root_dir, []), known=True)


def _state(run: Mapping[str, Any], lock: Mapping[str, Any], known: bool) -> tuple[str, str]:
    if not known:
        return "no run", f"there is no {INDEX_FILE}, checkpoint, {STATS_FILE} or {CONFIG_FILE}"
    if lock.get("alive"):
        return "running", f"process {lock['pid']} on {lock['host']}, heartbeat {lock['heartbeat_age_secs']:.0f} s ago"
    status = str(run.get("status") or "unknown")
    if status == "running":
        return "killed", "the index says that it runs, and no process holds its lock: it ended without a word"
    return status, str(run.get("why") or "the index does not say why")


def _checkpoint(root_dir: str, record: Record, problems: list[str]) -> dict[str, Any]:
    size, missing = 0, []
    for file in record.files:
        try:
            size += os.path.getsize(os.path.join(root_dir, file))
        except OSError:
            missing.append(file)
    if missing:
        problems.append(f"{record.name} lacks {len(missing)} of its {len(record.files)} files, such as {missing[0]}.")
    return {
        "name": record.name,
        "step": record.step,
        "env_steps": record.env_steps,
        "iterations": record.iterations,
        "reward": record.reward,
        "reward_episodes": record.reward_episodes,
        "kinds": list(record.kinds),
        "created": record.created,
        "bytes": size,
        "has_model": any("saved_model" in file for file in record.files),
    }


def _lock(root_dir: str, problems: list[str]) -> dict[str, Any]:
    """Who holds the run, and whether that process is alive; {} when nobody does."""
    path = os.path.join(root_dir, LOCK_FILE)
    data = read_object(path, problems, "lock of a run", "it is not known whether the run is alive")
    if data is None:
        return {}
    try:
        age = max(0.0, time.time() - os.path.getmtime(path))
    except FileNotFoundError:
        return {}  # released since
    alive = holder_of(root_dir) is not None
    return {"pid": data.get("pid"), "host": data.get("host"), "heartbeat_age_secs": age, "alive": alive}


def last_row(root_dir: str, problems: list[str]) -> dict[str, Any]:
    """The newest whole row of the statistics; {} when there is none."""
    path = os.path.join(root_dir, STATS_FILE)
    try:
        with open(path, "rb") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(max(0, end - _TAIL_BYTES))
            lines = f.read().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as e:
        problems.append(f"{path} cannot be read ({type(e).__name__}).")
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                return row
    if lines:
        problems.append(f"{path} has no row that can be read.")
    return {}


def time_shares(stats: Mapping[str, Any]) -> TimeShares | None:
    """The shares of time in a row of statistics, under whatever prefix; None when it has none."""
    by_name = {key.rpartition("/")[2]: value for key, value in stats.items() if isinstance(value, (int, float))}
    if "learner_training" not in by_name:
        return None
    shares = {name: float(by_name.get(name, 0.0)) for name in TimeShares._fields}
    return TimeShares(**{**shares, "threads": int("collecting_waiting" in by_name)})  # type: ignore[arg-type]


def _here(given: Sequence[Any], root_dir: str) -> list[str]:
    """The arguments that a run was begun by, with the directory as it is called here and now, and without --force."""
    kept, arguments = list[str](), iter(map(str, given))
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name in ("--root_dir", "-root_dir"):
            argument = f"--root_dir={root_dir}"
            if not equals:
                next(arguments, None)
        if not argument.startswith(("--force", "-force")):
            kept.append(argument)
    return kept


def _commands(root_dir: str, state: str, why: str, has_checkpoint: bool, begun_by: Any) -> dict[str, str]:
    has_config = os.path.exists(os.path.join(root_dir, CONFIG_FILE))
    commands, quoted = {}, shlex.quote(root_dir)
    if state not in ("running", "finished", "no run"):
        train = f"python -m alf.bin.train --root_dir={quoted}"
        # The configuration is written after the first iteration: before, it is only what the run was begun by.
        if not has_config and isinstance(begun_by, list) and str((begun_by or [""])[0]).endswith("alf/bin/train.py"):
            train = f"python -m alf.bin.train {shlex.join(_here(begun_by[1:], root_dir))}"
        commands["go on"] = train
    limit = _LIMIT.search(why) if state == "finished" else None
    if limit:
        # Twice as far: the number is an example.
        longer = [(f"TrainerConfig.{limit[1]}", limit[2]), *_decays(os.path.join(root_dir, CONFIG_FILE))]
        more = " ".join(f"--gin_param={name}={2 * int(count)}" for name, count in longer)
        commands["extend"] = f"python -m alf.bin.train --root_dir={quoted} {more}"
    if has_checkpoint:
        commands["play"] = f"python -m alf.bin.play --root_dir={quoted}"
        commands["evaluate"] = f"python -m alf.bin.evaluate --root_dir={quoted}"
    if state != "no run":
        commands["see"] = f"tensorboard --logdir={quoted}"
    return commands


def _decays(config: str) -> list[tuple[str, str]]:
    """Names and steps of the learning rates of a configuration that fall for so many gradient steps."""
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    macros = {f"%{name}": value for name, value in _MACRO.findall(text)}
    found = [(name, macros.get(value, value)) for name, value in _DECAY.findall(text)]
    return [(name, value) for name, value in found if value.isdecimal()]


class _Collector(std_logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(std_logging.WARNING)
        self._lines = lines

    def emit(self, record: std_logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextlib.contextmanager
def _collected_warnings(lines: list[str]) -> Iterator[None]:
    """Puts warnings into `lines` instead of the log."""
    logger, handler = logging.get_absl_logger(), _Collector(lines)
    handlers, propagate = list(logger.handlers), logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Where TensorFlow is not loaded, keeps it so: an index made up from the directory then lacks the step counts."""
    if "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["tensorflow"]
