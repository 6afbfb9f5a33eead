"""A worker that lives, and whose answers never come."""

from __future__ import annotations

import contextlib

import pytest

from alf.distributed import in_process_engine, keeper, member, rollout_keeper
from tests.distributed.scripted import N, Stage, check_prefixes, told

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


@pytest.mark.parametrize("sync", [False, True])
def test_a_worker_whose_answers_never_come_is_replaced(
    sync: bool, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    """Its signs of life come all the time."""
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    monkeypatch.setattr(rollout_keeper, "_TAKE_SECS", 0.05)
    monkeypatch.setattr(keeper, "_BEAT_SECS", 0.02)
    monkeypatch.setattr(in_process_engine, "_STOP_TIMEOUT_SECS", 0.5)
    method = "collect" if sync else "take"
    with contextlib.closing(Stage(workers=1, sync=sync, heartbeat_timeout_secs=0.5)) as s:
        s.engine.forgets, s.engine.methods = 1.0, (method,)
        s.start()
        if sync:
            s.pool.request_batch(N)
        s.until(lambda: s.fact(0, "restarts") == 1)
        s.engine.forgets = 0.0
        s.fetch(N)
        assert told(s.segments[-1])["life"] == s.fact(0, "life") > 0
        check_prefixes(s.segments, N)
    assert any(f"s all its answers to '{method}' got lost: the network was away" in line for line in logged)
