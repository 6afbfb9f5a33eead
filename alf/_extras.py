"""How what is optional is installed."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The end of a sentence on something that is missing; `extra` is one of `pyproject.toml`, such as "atari"."""
    # Not by the name alone, by which pip would fetch another project where this one is not installed.
    return f'pip install ".[{extra}]" in the folder of alf\'s source (the alf of PyPI is another project).'
