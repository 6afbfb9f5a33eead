"""The pages of reference name each gin configurable of the package once, and nothing else."""

from __future__ import annotations

import ast
import collections
import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The old name of `create_environment`, of the same arguments.
_SAID_ELSEWHERE = {"alf.trainers.run_environments.create_training_environment"}


def configurables() -> Iterator[str]:
    """The dotted name of every class and function of the package that `gin.configurable` decorates."""
    for path in sorted((ROOT / "alf").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            decorators = node.decorator_list if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else []
            if any("gin.configurable" in ast.unparse(decorator) for decorator in decorators):
                yield f"{module}.{node.name}"


def test_the_reference_names_each_configurable_once() -> None:
    pages = sorted((ROOT / "docs").glob("reference_*.md"))
    told = collections.Counter(re.findall(r"(?m)^::: (\S+)$", "\n".join(page.read_text() for page in pages)))
    assert [name for name, times in told.items() if times > 1] == []
    assert set(told) == set(configurables()) - _SAID_ELSEWHERE
