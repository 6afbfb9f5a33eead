"""Ray for the tests of remote workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    """A Ray of this machine for all tests of a file, which every `RayEngine` in them uses; gone after the last."""
    pytest.importorskip("ray")
    from alf.distributed.ray_engine import RayEngine

    engine = RayEngine("local")
    try:
        yield
    finally:
        engine.stop()
