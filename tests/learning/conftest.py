"""Which of these tests the oldest TensorFlow line runs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

# One task, solved by each actor-critic, in turns and asynchronously: what another TensorFlow would break shows there.
_ON_BOTH_LINES = {"test_actor_critics_learn.py"}


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Marks all others as slow."""
    for item in items:
        if item.path.parent.name == "learning" and item.path.name not in _ON_BOTH_LINES:
            item.add_marker(pytest.mark.slow)
