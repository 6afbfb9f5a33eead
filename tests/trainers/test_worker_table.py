"""The table of workers: what is written can be read, by whomever, whatever became of the file."""

from __future__ import annotations

import json

import pytest

from alf.bin import status
from alf.trainers.run_index import RunIndex
from alf.trainers.worker_table import WORKERS_FILE, lines, read_workers, write_workers
from tests.bin.running import run_here

FACTS = {
    "pool": "2 workers of 3 environment threads each, on 2 machines",
    "policy_version": 41,
    "workers": [
        {
            "worker": 0,
            "state": "running",
            "life": 0,
            "restarts": 0,
            "host": "here",
            "pid": 123,
            "policy_version": 40,
            "lag": 1,
            "steps": 123456,
            "steps_per_sec": 5432.1,
            "waits_for_learner": 0.25,
            "last_heartbeat_secs": 1.4,
            "lost_requests": 0,
            "last_error": "",
        },
        {
            "worker": 1,
            "state": "waiting to restart",
            "life": 2,
            "restarts": 3,
            "host": None,
            "pid": None,
            "policy_version": None,
            "lag": None,
            "steps": 99,
            "steps_per_sec": float("nan"),
            "waits_for_learner": 0.0,
            "last_heartbeat_secs": None,
            "lost_requests": 5,
            "last_error": "it has not begun within 120 s",
        },
    ],
}


def test_status_shows_the_table_and_json_has_it(tmp_path, capsys):
    index = RunIndex(str(tmp_path))
    index.run = {"status": "running"}
    index.save()
    write_workers(str(tmp_path), FACTS)
    assert run_here(status.main, f"--root_dir={tmp_path}") == 0
    shown = capsys.readouterr().out.splitlines()
    begin = next(i for i, line in enumerate(shown) if line.startswith("Workers "))
    assert "2 workers of 3 environment threads each, on 2 machines" in shown[begin]
    heading, first, second, why = shown[begin + 1 : begin + 5]
    assert heading.split()[:4] == ["worker", "state", "host", "pid"]
    assert first.split() == ["0", "running", "here", "123", "5,432", "123,456", "1", "25%", "0", "0", "1", "s", "ago"]
    assert second.split() == ["1", "waiting", "to", "restart", "-", "-", "-", "99", "-", "0%", "3", "5", "-"]
    assert len(heading) == len(first) == len(second)
    assert why.strip() == "Worker 1 was lost: it has not begun within 120 s."
    assert run_here(status.main, f"--root_dir={tmp_path}", "--json") == 0
    found = json.loads(capsys.readouterr().out)["workers"]
    assert found["workers"][0] == FACTS["workers"][0]
    assert found["workers"][1]["steps_per_sec"] is None
    assert found["age_secs"] >= 0


def test_a_run_without_workers_has_no_table(tmp_path):
    write_workers(str(tmp_path), None)
    assert read_workers(str(tmp_path), []) == {}
    write_workers(str(tmp_path), FACTS)
    assert read_workers(str(tmp_path), [])["policy_version"] == 41
    write_workers(str(tmp_path), None)
    assert not (tmp_path / WORKERS_FILE).exists()
    assert lines({}) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"workers": 3}', b'{"workers": [1]}', b"\xff", b"[" * 5000]
)
def test_a_damaged_table_is_a_problem_and_no_more(tmp_path, content):
    path = tmp_path / WORKERS_FILE
    path.parent.mkdir()
    path.write_bytes(content)
    problems: list[str] = []
    assert read_workers(str(tmp_path), problems) == {}
    assert len(problems) == 1
    assert str(path) in problems[0]


def test_a_table_of_odd_values_is_shown():
    odd = {"workers": [{"worker": "a", "lag": [1], "state": None}, {}]}
    assert len(lines(odd)) == 4
