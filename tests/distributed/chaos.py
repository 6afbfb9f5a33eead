"""A training run on an emulated cluster of three nodes, whose processes are killed one after the other."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import psutil

from alf.trainers.checkpointing import damage_of
from alf.trainers.run_index import INDEX_FILE, RunIndex
from alf.trainers.worker_table import WORKERS_FILE

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Of one turn: processes that import TensorFlow one after the other on a busy machine take their time.
PATIENCE_SECS = 600.0
_LOOK_SECS = 0.2
# The node of the learner, which is not removed, has room for one worker: the others live where they can be lost.
_HEAD_CPUS, _NODE_CPUS = 1, 5
_STORE_BYTES = 100 * 2**20
_PR_SET_CHILD_SUBREAPER = 36


class Kill(NamedTuple):
    """A kill that the run has survived: `what` was killed, `secs` until all was well again, and what there was then."""

    what: str
    secs: float
    version: int
    learner_fds: int
    ray_fds: int
    store_objects: int
    store_bytes: int


@contextlib.contextmanager
def adopted_orphans() -> Iterator[Callable[[], list[psutil.Process]]]:
    """Makes this process the parent of what its descendants leave behind; gives a list of those that live."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def living() -> list[psutil.Process]:
        return [c for c in psutil.Process().children(recursive=True) if c.pid not in before and not _is_dead(c)]

    try:
        yield living
    finally:
        for process in living():
            process.kill()
        for child in psutil.Process().children():
            if child.pid not in before and _is_dead(child):
                # A child of Ray's own handles is none of ours to wait for.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Cluster:
    """Ray on three nodes that are processes of this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        head = {
            "wait": False,
            "num_cpus": _HEAD_CPUS,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
        }
        self._ray = _patiently(lambda: RayCluster(initialize_head=True, head_node_args=head))
        for _ in range(2):
            self._add()
        self.address = str(self._ray.address)

    def _add(self) -> None:
        _patiently(lambda: self._ray.add_node(wait=False, num_cpus=_NODE_CPUS, object_store_memory=_STORE_BYTES))
        self._ray.wait_for_nodes(PATIENCE_SECS)

    def replace(self, rng: random.Random, busy: Collection[int]) -> int:
        """Kills a node, one with workers, but not the head, and adds another one.

        Args:
          rng: chooses.
          busy: process numbers of the raylets of nodes with workers.

        Returns:
          the process number of its raylet.
        """
        nodes = sorted(self._ray.worker_nodes, key=_raylet)
        node = rng.choice([node for node in nodes if _raylet(node) in busy] or nodes)
        pid = _raylet(node)
        self._ray.remove_node(node, allow_graceful=False)
        self._add()
        return pid

    def fds(self) -> int:
        """Open files of the head's services."""
        processes = [info.process.pid for infos in self._ray.head_node.all_processes.values() for info in infos]
        return sum(psutil.Process(pid).num_fds() for pid in processes)

    def store(self) -> tuple[int, int]:
        """Objects in the stores of all nodes, and their bytes."""
        from ray._private.internal_api import get_memory_info_reply

        stats = get_memory_info_reply(self._ray.global_state).store_stats
        return int(stats.num_local_objects), int(stats.object_store_bytes_used)

    def close(self) -> None:
        self._ray.shutdown()


def _patiently(start: Callable[[], Any]) -> Any:
    """Starts a node: Ray gives it 30 s to come up, which a busy machine may need for other things, and then gives up."""
    deadline = time.monotonic() + PATIENCE_SECS
    while True:
        before = _children()
        try:
            return start()
        except Exception:
            for process in _children() - before:
                process.kill()
            if time.monotonic() > deadline:
                raise


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


class Run:
    """A run, its command and what it tells of itself."""

    def __init__(self, root_dir: pathlib.Path, address: str, workers: int, settings: list[str]) -> None:
        self.root_dir = root_dir
        self.log = root_dir.with_suffix(".log")
        self.workers = workers
        self._command = [
            *(sys.executable, "-m", "alf.bin.train", f"--root_dir={root_dir}", f"--num_workers={workers}"),
            *(f"--ray_address={address}", "--gin_file=async_ppo_cart_pole.gin"),
            *(f"--gin_param={setting}" for setting in settings),
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self._newest = (0, 0)

    def start(self, *settings: str) -> None:
        """The same command, with further settings if there are any."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self._command, *(f"--gin_param={setting}" for setting in settings)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait(self, limit_secs: float = PATIENCE_SECS) -> int:
        """The exit status of the command, in time."""
        assert self.process is not None
        return self.process.wait(limit_secs)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def told(self) -> str:
        """The end of what it has written."""
        return self.log.read_text(errors="replace")[-5000:]

    def table(self) -> dict[str, Any]:
        """What is known of the workers; {} before anything is."""
        try:
            return dict(json.loads((self.root_dir / WORKERS_FILE).read_text()))
        except FileNotFoundError:
            return {}

    def rows(self) -> dict[Any, dict[str, Any]]:
        return {row["worker"]: row for row in self.table()["workers"]}

    def until(self, true: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Waits until the table is as wished, and the run alive; returns the table."""
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            table = self.table()
            if table and true(table):
                return table
            assert self.process is not None
            assert self.process.poll() is None, f"the learner has ended:\n{self.told()}"
            assert time.monotonic() < deadline, f"{what} did not come: {json.dumps(table, indent=1)}\n{self.told()}"
            time.sleep(_LOOK_SECS)

    def until_all_run(self, since: float, version: int, restarts: dict[Any, int]) -> dict[str, Any]:
        """Waits until all workers run, those in `restarts` in a new life, and the learner has come on by itself."""

        def well(table: dict[str, Any]) -> bool:
            rows = {row["worker"]: row for row in table["workers"]}
            return (
                table["written"] > since
                and table["policy_version"] > version
                and len(rows) == self.workers + 1
                and all(row["state"] == "running" for row in rows.values())
                and all(rows[worker]["restarts"] > before for worker, before in restarts.items())
            )

        return self.until(well, f"all workers running after version {version}, with new lives of {list(restarts)}")

    def check_index(self) -> int:
        """The index is whole, what it lists is there, and nothing that was listed is lost; returns the newest iteration.

        For a run that is not alive: one that is deletes old checkpoints meanwhile.
        """
        assert (self.root_dir / INDEX_FILE).exists() or self._newest == (0, 0), "the index is gone"
        records = RunIndex.load(str(self.root_dir)).records()
        counts = [(record.iterations, record.env_steps) for record in records]
        assert counts == sorted(set(counts)), f"the index is out of order: {counts}"
        for record in records:
            assert damage_of(str(self.root_dir / record.prefix())) is None, f"{record.name} is damaged"
        newest = counts[-1] if counts else (0, 0)
        assert newest >= self._newest, "a checkpoint is lost"
        self._newest = newest
        return newest[0]


class Chaos:
    """Kills, in turns, what a run consists of."""

    TURNS = ("worker", "evaluator", "node", "worker", "evaluator", "worker", "node", "learner")

    def __init__(self, cluster: Cluster, run: Run, seed: int) -> None:
        self._cluster, self._run = cluster, run
        self._rng = random.Random(seed)

    def kill(self, what: str) -> Kill:
        """Kills something of this kind, some time after all is well, and waits until all is well again."""
        run, rng = self._run, self._rng
        time.sleep(rng.uniform(0.0, 2.0))
        version, rows = run.table()["policy_version"], run.rows()
        begin, since = time.monotonic(), time.time()
        restarts: dict[Any, int] = {}
        if what == "learner":
            run.kill()
            version = run.check_index()
            run.start()
        elif what == "node":
            raylets = {worker: psutil.Process(row["pid"]).ppid() for worker, row in rows.items()}
            removed = self._cluster.replace(rng, set(raylets.values()))
            restarts = {worker: rows[worker]["restarts"] for worker, raylet in raylets.items() if raylet == removed}
        else:
            worker = "evaluator" if what == "evaluator" else rng.randrange(run.workers)
            os.kill(rows[worker]["pid"], signal.SIGKILL)
            restarts = {worker: rows[worker]["restarts"]}
        table = run.until_all_run(since, version, restarts)
        objects, size = self._cluster.store()
        fds = psutil.Process(run.pid()).num_fds()
        named = {"node": f"node with {len(restarts)} workers", "worker": f"worker {next(iter(restarts), '')}"}
        secs = time.monotonic() - begin
        return Kill(named.get(what, what), secs, table["policy_version"], fds, self._cluster.fds(), objects, size)
