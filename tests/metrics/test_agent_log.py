"""The rows of single agents' episodes: what they hold, after a resume, and on a disk that takes nothing."""

from __future__ import annotations

import csv

import numpy as np

from alf.metrics.agent_episodes import Ended
from alf.metrics.agent_log import AgentLog
from alf.metrics.episode_log import EpisodeLog


def _ended(*rows):
    row, slot, returns, lengths, cut = zip(*rows, strict=True)
    return Ended(np.array(row), np.array(slot), np.array(returns), np.array(lengths), np.array(cut))


def _rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_go_on_after_a_resume(tmp_path):
    log = EpisodeLog(str(tmp_path), flush_every=2)
    log.at(global_step=3)
    log.agents.write("runner", 1, _ended((0, 2, 1.5, 4, False)))
    assert not _rows(tmp_path / "agents.csv")
    log.agents.write("chaser", 0, _ended((1, 0, -1.0, 2, True)))
    # As many as may be held back: they are there.
    assert len(_rows(tmp_path / "agents.csv")) == 2
    log.at(global_step=4)
    log.agents.write("chaser", 0, _ended((1, 0, 7.0, 2, True), (1, 1, 8.0, 3, False)))
    log.close()
    again = EpisodeLog(str(tmp_path))
    again.resume(3)
    again.at(global_step=5)
    again.agents.write("chaser", 0, _ended((3, 1, 9.0, 1, False)))
    again.close()
    rows = _rows(tmp_path / "agents.csv")
    assert rows[0] == {
        "agent": "1",
        "global_step": "3",
        "thread": "1",
        "row": "0",
        "behavior": "runner",
        "slot": "2",
        "length": "4",
        "return": "1.5",
        "cut": "0",
    }
    assert [(row["agent"], row["global_step"], float(row["return"])) for row in rows] == [
        ("1", "3", 1.5),
        ("2", "3", -1.0),
        ("3", "5", 9.0),
    ]


def test_what_came_after_a_checkpoint_goes_though_it_has_its_step(tmp_path):
    log = EpisodeLog(str(tmp_path))
    log.at(global_step=3)
    log.agents.write("runner", 1, _ended((0, 2, 1.5, 4, False)))
    state = log.state_dict()
    log.agents.write("runner", 1, _ended((0, 2, 2.5, 4, False)))
    log.close()
    again = EpisodeLog(str(tmp_path))
    again.load_state_dict(state)
    again.resume(3)
    again.agents.write("chaser", 0, _ended((3, 1, 9.0, 1, False)))
    again.close()
    assert [(row["agent"], row["return"]) for row in _rows(tmp_path / "agents.csv")] == [("1", "1.5"), ("2", "9.0")]


def test_a_disk_that_takes_nothing_ends_no_run(tmp_path, caplog):
    (tmp_path / "file").write_text("no directory")
    log = AgentLog(str(tmp_path / "file"))
    for _ in range(3):
        log.write("runner", 0, _ended((0, 0, 1.0, 1, False)))
    log.close()
    assert len([r for r in caplog.records if "cannot be written" in r.getMessage()]) == 1
