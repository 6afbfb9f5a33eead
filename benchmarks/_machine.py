"""What every benchmark shares: the machine and versions it ran on, tables, and where results are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / ".cache"

_PACKAGES = ("tensorflow", "tf-keras", "tf-agents", "numpy", "gymnasium", "envpool", "mujoco")


def versions(names: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Installed versions of the named packages; those that are not installed are left out."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def machine() -> dict[str, Any]:
    """Processor, memory, Python, load average at this moment: what a reader needs to judge the figures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
    }


def announce(title: str) -> dict[str, Any]:
    """Prints the title, machine and versions, and returns them as the head of the result."""
    head = {"title": title, "machine": machine(), "versions": versions()}
    print(f"# {title}")
    print("machine: " + ", ".join(f"{k} {v}" for k, v in head["machine"].items()))
    print("versions: " + ", ".join(f"{k} {v}" for k, v in head["versions"].items()), flush=True)
    return head


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A markdown table of `rows`, whose columns are the keys of the first."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def save(name: str, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Prints the rows as a table and writes them, with the load average at the end, to results/NAME.json."""
    print(table(rows), flush=True)
    RESULTS.mkdir(exist_ok=True)
    after = [round(x, 2) for x in os.getloadavg()]
    payload = {**head, "load_average_after": after, "rows": list(rows), **more}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(payload, indent=1) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


def median(values: Sequence[float | None]) -> float | None:
    """The median; a run that did not get there (None) counts as the largest. None when half or more did not."""
    ordered = sorted(float("inf") if v is None else v for v in values)
    middle = statistics.median(ordered) if ordered else float("inf")
    return None if middle == float("inf") else middle


def last_json(command: Sequence[str], timeout: float) -> dict[str, Any]:
    """Runs `command` and returns the JSON object on the last line that it prints.

    The result gets `started`, the time just before the process was made, so that a time the child noted can be told
    from process start.

    Raises:
      RuntimeError: the command failed or printed no JSON; holds the end of what it said.
    """
    started = time.time()
    # In a session of its own, so that what it started ends with it when it takes too long.
    process = subprocess.Popen(
        list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        tail = (out + err)[-2000:]
        raise RuntimeError(f"{command[:4]} ended with code {process.returncode} and printed no result:\n{tail}")
    return {**json.loads(lines[-1]), "started": started}


def rate(act: Callable[[], Any], size: int, seconds: float) -> float:
    """`size` a call of `act`, per second, over about `seconds`; a first call does not count."""
    act()
    calls, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        act()
        calls += 1
    return calls * size / (time.perf_counter() - begun)


@contextlib.contextmanager
def cpu_use() -> Iterator[dict[str, float]]:
    """Measures wall seconds, processor seconds of this process, and processors kept busy, inside the block."""
    out: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield out
    out["wall_s"] = time.perf_counter() - wall
    out["cpu_s"] = time.process_time() - cpu
    out["processors_busy"] = out["cpu_s"] / out["wall_s"]


def told(error: Exception) -> str:
    """The end of an error's message, without the folder of this checkout."""
    return str(error).replace(f"{ROOT}/", "")[-300:]


def progress(text: str) -> None:
    """One line to standard error, so that a long benchmark shows where it is."""
    print(text, file=sys.stderr, flush=True)
