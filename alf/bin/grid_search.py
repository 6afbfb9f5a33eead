"""Trains with many settings, several at a time, and compares them.

    python -m alf.bin.grid_search --root_dir=runs/search --gin_file=async_ppo_cart_pole.gin --search_config=search.json

where search.json is, for example,

    {"parameters": {"PolynomialDecay.initial_learning_rate": [1e-3, 3e-3], "PPOLoss.td_lambda": [0.8, 0.95]}, "repeats": 3}

Each run is a process of alf.bin.train in a directory of its own below --root_dir, whose output is in `output.log` there.
The same command again goes on: runs that are finished are left out, others resume. Ctrl-C ends the runs, which save
first, for up to ten minutes, and once more ends them at once; they save first also when this command is killed. Results:
a table, results.csv, results.md, results.svg, and results.html with the learning curves of all runs. Exit code 1: a run
has failed; 2: the command line is wrong, or a file cannot be written; 130: interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from absl import flags, logging

from alf.bin import command_line
from alf.bin.command_line import UsageError
from alf.bin.parent_death import ENDING, ended_with_parent
from alf.bin.search_curves import curves_page
from alf.bin.search_report import METRIC, Result, markdown, read_result, write_reports
from alf.bin.search_space import MAX_RUNS, Search, read_search, run_name, run_seed
from alf.trainers.run_index import INDEX_FILE, RunIndex
from alf.trainers.run_lock import holder_of
from alf.utils.files import write_atomically

_CONFIG = flags.DEFINE_string("search_config", None, "File of what to try: .json, or gin with lists of values.")
_REPEATS = flags.DEFINE_integer("repeats", None, "Runs of each setting, with different seeds; 1 by default.")
_WORKERS = flags.DEFINE_integer("workers", None, "Runs at a time; 1 by default.")
_METRIC = flags.DEFINE_string(
    "metric", None, "Column of train/stats.jsonl to compare by; by default the last evaluation, else the mean return."
)
flags.adopt_module_key_flags(command_line)

PLAN_FILE = "grid_search.json"
LOCK_FILE = "grid_search.lock"
OUTPUT_FILE = "output.log"
CURVES_FILE = "results.html"

_FAILED = 1
# The level and the text of a line that Python has logged; TensorFlow's own are of other files.
_LOGGED = re.compile(r"([IWEF])\d{4} .*?\.py:\d+\] (.*)")
_POLL_SECS = 0.1
# A run that is asked to end finishes its iteration and saves, which takes a large memory long.
_SAVING_SECS = 600.0
_TELL_EVERY_SECS = 30.0
# A process whose run is over ends sooner, unless something that an environment has left in it goes on.
_LINGER_SECS = 30.0


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> int:
        root_dir = command_line.root_dir(argv)
        if not _CONFIG.value:
            raise UsageError("--search_config is missing: give a file of what to try; see --help.")
        if not command_line.GIN_FILE.value:
            raise UsageError("--gin_file is missing: give what to train, e.g. --gin_file=async_ppo_cart_pole.gin.")
        command_line.at_least(_REPEATS, 1)
        command_line.at_least(_WORKERS, 1)
        command_line.set_up_logging()
        search = read_search(_CONFIG.value)
        _check_bindings(search)
        search = dataclasses.replace(
            search, repeats=_REPEATS.value or search.repeats, workers=_WORKERS.value or search.workers
        )
        if len(search.settings) * search.repeats > MAX_RUNS:
            raise UsageError(
                f"{len(search.settings):,} settings with {search.repeats:,} repeats are more than {MAX_RUNS:,} runs: try "
                "fewer."
            )
        command_line.make_directory(root_dir, "--root_dir")
        with _alone(root_dir):
            check_plan(root_dir, search, _what())
            return run_search(root_dir, search)

    return command_line.run(body)


@contextlib.contextmanager
def _writing(what: str) -> Iterator[None]:
    """Around code that writes `what`: an OSError becomes one line.

    Raises:
      UsageError: instead of OSError.
    """
    try:
        yield
    except OSError as e:
        raise UsageError(
            f"{what} cannot be written ({e.strerror or e}): make room, or put that right; the same command goes on."
        ) from e


@contextlib.contextmanager
def _alone(root_dir: str) -> Iterator[None]:
    """Keeps other searches out of a directory until the block, or this process, ends; where file systems cannot, does nothing."""
    # A `RunLock` has a thread, and the runs would hear of the end of their parent once for each of its threads.
    with open(os.path.join(root_dir, LOCK_FILE), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise UsageError(
                f"A search is going on in --root_dir={root_dir}: wait for its end, or give another --root_dir."
            ) from e
        except OSError as e:
            logging.debug("%s cannot be locked: %s", file.name, e)
        yield


def _what() -> dict[str, list[str]]:
    return {"gin_files": list(command_line.GIN_FILE.value), "bindings": command_line.bindings()}


def _check_bindings(search: Search) -> None:
    """Refuses bindings that a run would be given another value of."""
    given = [binding.partition("=")[0].strip() for binding in command_line.bindings()]
    for name in given:
        if name in search.settings[0]:
            raise UsageError(
                f"{name} is searched, so that a binding of it on the command line has no effect: leave one of them out."
            )
    for name in [*search.settings[0], *given]:
        if re.fullmatch(r"([\w./]*[./])?TrainerConfig\.random_seed", name):
            raise UsageError(
                f"{name} cannot be set here: each run's seed follows from the search's 'seed' and the number of its repeat. "
                "Leave it out, and give --repeats for runs with several seeds."
            )


def check_plan(root_dir: str, search: Search, what: Mapping[str, Any]) -> None:
    """Notes what is searched, and refuses a directory of another search; more repeats are no other search.

    A gin file of the same name that has other text now is warned of.

    Raises:
      GinConfigError: a gin file is missing.
      UsageError: the directory holds another search, a gin file cannot be read, or there is no room for the plan.
    """
    contents = {name: _digest(name) for name in what["gin_files"]}
    plan = {"settings": list(search.settings), "seed": search.seed, **what}
    path = os.path.join(root_dir, PLAN_FILE)
    try:
        with open(path, encoding="utf-8") as f:
            before = json.load(f)
    except FileNotFoundError:
        before = dict(plan)
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(f"{path} cannot be read ({type(e).__name__}): remove it if this is the same search.") from e
    known = before.pop("contents", {}) if isinstance(before, dict) else {}
    if before != plan:
        raise UsageError(
            f"--root_dir={root_dir} holds another search: give its --search_config, or another --root_dir."
        )
    changed = [
        name for name, digest in contents.items() if isinstance(known, dict) and known.get(name, digest) != digest
    ]
    if changed:
        logging.warning("%s has changed since this search began: its runs are not all by the same.", ", ".join(changed))
    with _writing(path):
        write_atomically(path, json.dumps({**plan, "contents": contents}, indent=1) + "\n")


def _digest(name: str) -> str:
    """What tells the text of a gin file from others, without that of files that it includes."""
    from alf.utils.gin_utils import find_gin_file

    path = find_gin_file(name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as e:
        raise UsageError(f"The gin file {path} cannot be read: {e}.") from e


def run_search(root_dir: str, search: Search) -> int:
    """Runs what is not finished, reports, and returns the exit code.

    Raises:
      UsageError: a file cannot be written; what is running has been ended, and has saved.
    """
    runs = [
        Result(run_name(index, setting, repeat), index, repeat, setting, "waiting")
        for repeat in range(search.repeats)
        for index, setting in enumerate(search.settings)
    ]
    done = {run.name: "finished" for run in runs if _is_finished(os.path.join(root_dir, run.name))}
    logging.info(
        "%d settings, %d runs, %d of them finished already; %d at a time.",
        len(search.settings),
        len(runs),
        len(done),
        search.workers,
    )
    pool = Pool(root_dir, search)
    interrupted = False
    with _sigterm_as_interrupt():
        try:
            done |= pool.run([run for run in runs if run.name not in done])
        except KeyboardInterrupt:
            done |= pool.stop()
            interrupted = True
        except BaseException:
            pool.stop()
            raise
    results = [
        read_result(os.path.join(root_dir, run.name), run._replace(state=done.get(run.name, "waiting")), _METRIC.value)
        for run in runs
    ]
    print(markdown(results))
    name = os.path.basename(os.path.abspath(root_dir))
    page = os.path.join(root_dir, CURVES_FILE)
    with _writing(f"The results in {root_dir}"):
        paths = write_reports(root_dir, results, f"{name}: scores of the settings")
        write_atomically(page, curves_page(root_dir, results, name, _METRIC.value))
    finished = [run for run in results if run.state == "finished"]
    if len({run.source for run in finished if run.source}) > 1:
        logging.warning(
            "Some scores are of evaluations and others of training, which are no measure of each other: see the column source "
            "of results.csv, and give --metric=%s to compare all by training.",
            METRIC,
        )
    if finished and all(run.score is None for run in finished):
        logging.warning(
            "No run that finished has a %s",
            f"value of --metric={_METRIC.value}: the same command with the name of a column of train/stats.jsonl compares them."
            if _METRIC.value
            else "score: no episode has ended in them, or StatsReporter.formats has neither 'csv' nor 'jsonl'.",
        )
    print(f"Runs: {paths['csv']}; plot: {paths['svg']}; learning curves: {page}")
    if interrupted:
        logging.warning("Interrupted: the same command goes on.")
        return command_line.INTERRUPTED
    failed = [run.name for run in results if run.state == "failed"]
    if failed:
        logging.error("%d of %d runs failed: %s.", len(failed), len(runs), ", ".join(failed))
        return _FAILED
    return 0


def _is_finished(directory: str) -> bool:
    return os.path.isdir(directory) and RunIndex.load(directory).run.get("status") == "finished"


class Pool:
    """Runs training processes, a fixed number at a time."""

    def __init__(self, root_dir: str, search: Search) -> None:
        """Creates the pool.

        Args:
          root_dir: of the search.
          search: how many at a time, seeds and GPUs.
        """
        self._root_dir = root_dir
        self._search = search
        self._active: dict[str, subprocess.Popen[bytes]] = {}
        self._slots: dict[str, int] = {}
        self._states: dict[str, str] = {}
        self._held_since: dict[str, float] = {}
        # When the index of a run was written last before its process began.
        self._index_before: dict[str, int | None] = {}
        self._over_since: dict[str, float] = {}
        self._killed: set[str] = set()

    def run(self, runs: Sequence[Result]) -> dict[str, str]:
        """Runs all; returns "finished" or "failed" by name.

        Raises:
          UsageError: there is no room for the output of a run; those before go on until `stop`.
        """
        waiting = list(runs)
        while waiting or self._active:
            while len(self._active) < self._search.workers and (run := self._next(waiting)) is not None:
                self._start(run)
            time.sleep(_POLL_SECS)
            for name in [name for name, process in self._active.items() if process.poll() is not None]:
                self._ended(name, self._active.pop(name).returncode)
            self._end_what_is_over()
        return self._states

    def _next(self, waiting: list[Result]) -> Result | None:
        """Takes the first run out of `waiting` that nobody holds; None where there is none."""
        run = next((run for run in waiting if not self._is_held(run.name)), None)
        if run is not None:
            waiting.remove(run)
        return run

    def _is_held(self, name: str) -> bool:
        """Whether a process of a search before, which was killed, still saves there; for long, and the run itself will tell."""
        holder = holder_of(os.path.join(self._root_dir, name))
        if holder is None:
            return False
        if name not in self._held_since:
            logging.warning(
                "%s waits up to %.0f s for process %s on %s, which still has its directory.",
                name,
                _SAVING_SECS,
                holder.get("pid"),
                holder.get("host"),
            )
        return time.monotonic() - self._held_since.setdefault(name, time.monotonic()) < _SAVING_SECS

    def _start(self, run: Result) -> None:
        directory = os.path.join(self._root_dir, run.name)
        path = os.path.join(directory, OUTPUT_FILE)
        with _writing(path):
            os.makedirs(directory, exist_ok=True)
            output = open(path, "ab")  # noqa: SIM115
        self._index_before[run.name] = _written_at(directory)
        free = set(range(self._search.workers)) - set(self._slots.values())
        slot = self._slots[run.name] = min(free)
        with output:
            # A session of its own: Ctrl-C in the terminal would else reach it, and once more from here.
            self._active[run.name] = subprocess.Popen(
                train_command(directory, run, self._search),
                env=self._environment(slot),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=ended_with_parent(),
            )
        logging.info("Started %s.", run.name)

    def _environment(self, slot: int) -> dict[str, str]:
        gpus = self._search.gpus
        chosen = {"CUDA_VISIBLE_DEVICES": str(gpus[slot % len(gpus)])} if gpus else {}
        return {**os.environ, **chosen}

    def _ended(self, name: str, code: int) -> None:
        del self._slots[name]
        directory = os.path.join(self._root_dir, name)
        facts, killed = RunIndex.load(directory).run, name in self._killed
        if (code == 0 or killed) and facts.get("status", "finished") == "finished":
            self._states[name] = "finished"
            logging.info("Finished %s.", name)
            return
        self._states[name] = "failed"
        path = os.path.join(directory, OUTPUT_FILE)
        # The last that is said of one that was killed is that it waits.
        word = facts.get("why") if killed else _last_word(path)
        logging.error("%s ended with exit code %d: %s (all of it: %s)", name, code, word, path)

    def _end_what_is_over(self) -> None:
        """Ends processes that go on though their runs are over, since an environment has left a thread, say."""
        for name, process in self._active.items():
            directory = os.path.join(self._root_dir, name)
            if name in self._killed or holder_of(directory) is not None or not self._is_over(name, directory):
                self._over_since.pop(name, None)
            elif time.monotonic() - self._over_since.setdefault(name, time.monotonic()) >= _LINGER_SECS:
                logging.warning(
                    "%s is over, and its process is killed since it still runs after %.0f s: an environment has perhaps left a "
                    "thread; have its close() end that, or make it a daemon.",
                    name,
                    _LINGER_SECS,
                )
                self._killed.add(name)
                _signal(process, signal.SIGKILL)

    def _is_over(self, name: str, directory: str) -> bool:
        """Whether its index tells of an end that is not that of the process before."""
        written = _written_at(directory) != self._index_before[name]
        return written and RunIndex.load(directory).run.get("status", "running") != "running"

    def stop(self) -> dict[str, str]:
        """Asks all processes to end, waits while they save, ends those that take too long, and returns the states so far.

        KeyboardInterrupt ends them at once.
        """
        try:
            if self._active:
                logging.warning("Ending %d runs, which save first; once more ends them at once.", len(self._active))
            for process in self._active.values():
                _signal(process, ENDING)
            self._wait()
            why = f"since they had not saved within {_SAVING_SECS:.0f} s"
        except KeyboardInterrupt:
            why = "as asked for"
        if left := self._alive():
            logging.warning("Killed before they had saved, %s: %s.", why, ", ".join(left))
        for name, process in self._active.items():
            _signal(process, signal.SIGKILL)
            process.wait()
            finished = _is_finished(os.path.join(self._root_dir, name))
            self._states[name] = "finished" if finished else "interrupted"
        return self._states

    def _wait(self) -> None:
        """Waits until all processes have ended, but not for ever."""
        began = told = time.monotonic()
        while (alive := self._alive()) and time.monotonic() - began < _SAVING_SECS:
            time.sleep(_POLL_SECS)
            self._end_what_is_over()
            if time.monotonic() - told >= _TELL_EVERY_SECS:
                told = time.monotonic()
                logging.warning("Waiting for %s to save; once more ends them at once.", ", ".join(alive))

    def _alive(self) -> list[str]:
        return [name for name, process in self._active.items() if process.poll() is None]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            # With the environments' processes, which are in its group.
            os.killpg(process.pid, number) if number == signal.SIGKILL else process.send_signal(number)


def _written_at(directory: str) -> int | None:
    """When the index of a run was written, in ns; None where there is none."""
    try:
        return os.stat(os.path.join(directory, INDEX_FILE)).st_mtime_ns
    except OSError:
        return None


def train_command(directory: str, run: Result, search: Search) -> list[str]:
    """The command line of a run."""
    what = _what()
    bindings = [
        *what["bindings"],
        *(f"{name}={value}" for name, value in run.setting.items()),
        f"TrainerConfig.random_seed={run_seed(search.seed, run.repeat)}",
    ]
    threads = (command_line.INTRA_OP, command_line.INTER_OP)
    return [
        sys.executable,
        "-m",
        "alf.bin.train",
        f"--root_dir={directory}",
        *(f"--gin_file={name}" for name in what["gin_files"]),
        *(f"--gin_param={binding}" for binding in bindings),
        *([] if search.use_gpu and not command_line.USE_CPU.value else ["--use_cpu"]),
        *(f"--{flag.name}={flag.value}" for flag in threads if flag.value is not None),
    ]


def _last_word(path: str) -> str:
    """The message that a run has logged last, where that is an error; else the last line of its output."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = [line.strip() for line in f.read()[-10_000:].splitlines() if line.strip()]
    except OSError:
        lines = []
    error = next((found for line in reversed(lines) if (found := _LOGGED.match(line))), None)
    if error is not None and error[1] == "E":
        return error[2]
    return lines[-1].partition("] ")[2] or lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


if __name__ == "__main__":
    command_line.start(main)
