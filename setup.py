"""A shim for tools that want setup.py; everything stands in pyproject.toml."""

from setuptools import setup

setup()
