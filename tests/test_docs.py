"""The documentation is true: its blocks run, its gin parses, its links lead somewhere.

A fenced `bash`, `python` or `gin` block in README.md or docs/ is run by these tests unless the line before it says
`<!-- not run: why -->`.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
RUN_SECONDS = 100

_GIN_CHECK = """
import sys
from absl import flags
from alf.bin import command_line
import gin
flags.FLAGS(["docs"])
command_line.set_up()
gin.parse_config(sys.stdin.read())
"""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    not_run: str | None


def blocks(page: pathlib.Path) -> list[Block]:
    found = []
    lines = page.read_text().splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        mark = re.fullmatch(r"<!-- not run: (.+) -->", lines[start - 1].strip()) if start else None
        code = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(page.name, start + 1, lines[start][3:].strip(), code, mark and mark.group(1)))
        start = None
    assert start is None, f"{page.name}:{start}: a fence without its end"
    return found


def _run_blocks(language: str) -> list[object]:
    chosen = [b for page in PAGES for b in blocks(page) if b.language == language and b.not_run is None]
    return [pytest.param(b, id=f"{b.page}:{b.line}") for b in chosen]


def _in_a_copy(folder: pathlib.Path) -> dict[str, str]:
    """Makes `folder` look like the repository to a command, so that what it writes goes there; its environment."""
    for name in ("examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def _check(done: subprocess.CompletedProcess[str], block: Block) -> None:
    said = (done.stdout + done.stderr)[-3000:]
    assert done.returncode == 0, f"{block.page}:{block.line} ended with code {done.returncode}:\n{block.code}\n{said}"


@pytest.mark.slow
@pytest.mark.parametrize("block", _run_blocks("bash"))
def test_bash_blocks_run(block: Block, tmp_path: pathlib.Path) -> None:
    env = _in_a_copy(tmp_path)
    command = ["bash", "-euo", "pipefail", "-c", block.code]
    _check(subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=RUN_SECONDS), block)


@pytest.mark.slow
@pytest.mark.parametrize("block", _run_blocks("python"))
def test_python_blocks_run(block: Block, tmp_path: pathlib.Path) -> None:
    env = _in_a_copy(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(block.code)
    command = [sys.executable, str(script)]
    _check(subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=RUN_SECONDS), block)


@pytest.mark.slow
@pytest.mark.parametrize("block", _run_blocks("gin"))
def test_gin_blocks_parse(block: Block, tmp_path: pathlib.Path) -> None:
    env = _in_a_copy(tmp_path)
    command = [sys.executable, "-c", _GIN_CHECK]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, input=block.code, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    _check(done, block)


def _anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append(target)
    assert not broken, f"{page.name}: links that lead nowhere: {broken}"


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "index.md" and f"({p.name}" not in index]
    assert not missing, f"docs/index.md does not name {missing}"
