"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import pathlib

# Before TensorFlow is imported by anything.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
# A GPU sums in another order each time, where no seed of a run forbids it; CUDA_VISIBLE_DEVICES=0 has tests use one.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import threading
import time
from collections.abc import Iterator

import gin
import hypothesis
import psutil
import pytest
from absl import logging

import alf  # noqa: F401  (sets TensorFlow up)

# isort: split
import tensorflow as tf

from tests.awake import awake_secs

# Nothing in alf may depend on the order of a set of strings, so PYTHONHASHSEED is left random on purpose.

hypothesis.settings.register_profile("default", deadline=None, max_examples=15, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=15, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=200, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))

_TESTS = pathlib.Path(__file__).parent
_ROOMS_WITH_THREADS = ("drivers", "trainers")
_PATIENCE_SECONDS = 5.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that are listed in tests/thorough.txt."""
    listed = set((_TESTS / "thorough.txt").read_text().splitlines())
    for item in items:
        if item.nodeid.removeprefix("tests/") in listed:
            item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws, such as weights that it leaves to chance, does not depend on the tests before it."""
    tf.keras.utils.set_random_seed(1)


def _alf_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that a test must not leave: those that keep Python from exiting, and alf's own."""
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and (not thread.daemon or _is_alf(thread.name))
    ]


def _is_alf(name: str) -> bool:
    return name.startswith(("alf", "Alf")) or any(part in name for part in ("EnvThread", "ActorThread", "LogThread"))


def _children(before: set[int]) -> list[psutil.Process]:
    """Child processes that a test left, but Python's own helper of shared memory, which lives as long as Python."""
    left = []
    for child in psutil.Process().children(recursive=True):
        try:
            helper = "resource_tracker" in " ".join(child.cmdline())
            if child.pid not in before and not helper and child.status() != psutil.STATUS_ZOMBIE:
                left.append(child)
        except psutil.NoSuchProcess:
            continue
    return left


@pytest.fixture
def no_leaked_threads() -> Iterator[None]:
    """Fails the test when threads or child processes are left after it."""
    threads = set(threading.enumerate())
    processes = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    deadline = awake_secs() + _PATIENCE_SECONDS
    while (_alf_threads(threads) or _children(processes)) and awake_secs() < deadline:
        time.sleep(0.02)
    left = [thread.name for thread in _alf_threads(threads)]
    children = [" ".join(child.cmdline()) for child in _children(processes)]
    assert not left, f"threads left after the test: {left}"
    assert not children, f"child processes left after the test: {children}"


@pytest.fixture(autouse=True)
def _clean_gin() -> Iterator[None]:
    """No test finds bindings of another."""
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture(autouse=True)
def _no_leaks_in_rooms_with_threads(request: pytest.FixtureRequest) -> None:
    """Every test of a room that starts threads is held to `no_leaked_threads`."""
    parts = request.node.path.parts
    if "tests" in parts and set(parts[parts.index("tests") :]) & set(_ROOMS_WITH_THREADS):
        request.getfixturevalue("no_leaked_threads")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that is logged, as text."""
    lines: list[str] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logging, level, lambda text, *args: lines.append(str(text) % args if args else str(text)))
    return lines
