"""The documentation is true: its blocks run, its gin parses, its links lead somewhere.

A fenced `bash`, `python` or `gin` block in README.md or docs/ is run by these tests unless the line before it says
`<!-- not run: why -->`. The bash blocks of a page are run one after another in one folder, as a reader would; the cells of
notebooks.md in a notebook, by `test_notebooks.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from alf.utils import gin_utils
from alf.utils.value_kinds import parameters_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
RUN_SECONDS = 100

# Parses each text of a list in a process of its own, as one command would, and tells of each what went wrong.
_GIN_CHECK = """
import json, os, signal, sys, tempfile, traceback
from absl import flags
from alf.bin import command_line
import gin
flags.FLAGS(["docs"])
command_line.set_up()
gin.add_config_file_search_path("examples")
said = []
for text in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if not child:
            signal.alarm(30)
            try:
                gin.parse_config(text)
            except BaseException:
                traceback.print_exc(file=file)
            file.flush()
            os._exit(0)
        code = os.waitpid(child, 0)[1]
        file.seek(0)
        said.append(file.read() or (f"ended with {code}" if code else ""))
json.dump(said, sys.stdout)
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


def _run_blocks(language: str, *pages: pathlib.Path) -> list[Block]:
    return [b for page in pages or PAGES for b in blocks(page) if b.language == language and b.not_run is None]


def _place(block: Block) -> str:
    return f"{block.page}:{block.line}"


GIN_BLOCKS = _run_blocks("gin")


def _in_a_copy(folder: pathlib.Path) -> dict[str, str]:
    """Makes `folder` look like the repository to a command, so that what it writes goes there; its environment."""
    for name in ("examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def _check(done: subprocess.CompletedProcess[str], block: Block) -> None:
    said = (done.stdout + done.stderr)[-3000:]
    assert done.returncode == 0, f"{_place(block)} ended with code {done.returncode}:\n{block.code}\n{said}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _run_blocks("bash", page)], ids=lambda p: p.name)
def test_bash_blocks_run(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    env = _in_a_copy(tmp_path)
    for block in _run_blocks("bash", page):
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        _check(
            subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=RUN_SECONDS), block
        )


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in _run_blocks("python") if b.page != "notebooks.md"], ids=_place)
def test_python_blocks_run(block: Block, tmp_path: pathlib.Path) -> None:
    env = _in_a_copy(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(block.code)
    command = [sys.executable, str(script)]
    _check(subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=RUN_SECONDS), block)


@pytest.fixture(scope="module")
def said_of_gin(tmp_path_factory: pytest.TempPathFactory) -> dict[Block, str]:
    """What is wrong with each gin block; nothing with most."""
    folder = tmp_path_factory.mktemp("gin")
    texts = [b.code for b in GIN_BLOCKS]
    done = subprocess.run(
        [sys.executable, "-c", _GIN_CHECK],
        cwd=folder,
        env=_in_a_copy(folder),
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(GIN_BLOCKS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("block", GIN_BLOCKS, ids=_place)
def test_gin_blocks_parse(block: Block, said_of_gin: dict[Block, str]) -> None:
    assert not said_of_gin[block], f"{_place(block)}:\n{block.code}\n{said_of_gin[block]}"


def _anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _text(page: pathlib.Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_settings_named_in_the_text_exist() -> None:
    modules, looked_at, wrong = gin_utils._configurables_of_alf(), 0, []
    for page in PAGES:
        for owner, argument in re.findall(r"`(?:\w+/)?([A-Za-z]\w*)\.([a-z]\w*)(?: = [^`\n]*)?`", _text(page)):
            configurable = getattr(importlib.import_module(modules.get(owner, "alf")), owner, None)
            if configurable is None:
                continue
            looked_at += 1
            if argument not in parameters_of(configurable)[0] and not hasattr(configurable, argument):
                wrong.append(f"{page.name}: {owner}.{argument}")
    assert looked_at > 100
    assert not wrong, f"nothing takes these settings: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page: pathlib.Path) -> None:
    text = _text(page)
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
