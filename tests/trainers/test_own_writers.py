"""Writers of users' own beside the tables of a run."""

from __future__ import annotations

import csv

import gin
import pytest

from alf.metrics.reporter import StatsReporter
from alf.metrics.writers import Row, Writer
from alf.trainers.making import make_trainer

SMALL = [
    "create_environment.num_parallel_environments=4",
    "TrainerConfig.random_seed=1",
    "TrainerConfig.export_saved_model=False",
    "TrainerConfig.evaluate=True",
    "TrainerConfig.eval_interval=2",
    "TrainerConfig.num_eval_episodes=2",
    "StatsReporter.min_interval_secs=0.0",
    "StatsReporter.formats=('csv', @KeptRows)",
]


@gin.configurable
class KeptRows(Writer):
    """Keeps what it is told, by directory, over all instances."""

    told: dict[str, list] = {}

    def __init__(self, log_dir: str) -> None:
        self.calls = self.told.setdefault(log_dir, [])

    def resume(self, step: int) -> dict:
        self.calls.append(("resume", step))
        return {}

    def write(self, row: Row) -> None:
        self.calls.append(("row", {**row.axes, **row.values}))

    def close(self) -> None:
        self.calls.append(("close", None))


class Failing(Writer):
    """Cannot write."""

    def __init__(self, log_dir: str, error: Exception) -> None:
        self.error = error
        self.tries = 0

    def write(self, row: Row) -> None:
        self.tries += 1
        raise self.error


@pytest.fixture(autouse=True)
def _nothing_told():
    KeptRows.told.clear()


def _rows(directory):
    return [what for call, what in KeptRows.told[str(directory)] if call == "row"]


def _table(directory):
    with open(directory / "stats.csv", encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


def _same(told, table):
    """Whether rows that were told are those of a table, in which what a row has no value for is empty."""
    as_text = [{name: str(value) for name, value in row.items() if value is not None} for row in told]
    return as_text == [{name: text for name, text in row.items() if text} for row in table]


def test_it_gets_the_rows_of_the_tables_of_training_and_of_evaluations(tmp_path):
    with make_trainer("ac_cart_pole", tmp_path, [*SMALL, "TrainerConfig.num_iterations=4"]) as trainer:
        trainer.train()
    for directory in (tmp_path / "train", tmp_path / "eval"):
        assert len(_rows(directory)) >= 2
        assert _same(_rows(directory), _table(directory))
    assert {"global_step", "env_steps", "seconds", "wall_time", "Metrics/AverageReturn"} <= set(
        _rows(tmp_path / "eval")[0]
    )
    assert all(calls[0] == ("resume", -1) and calls[-1] == ("close", None) for calls in KeptRows.told.values())


def test_a_resumed_run_tells_where_it_goes_on(tmp_path):
    for iterations in (2, 4):
        with make_trainer("ac_cart_pole", tmp_path, [*SMALL, f"TrainerConfig.num_iterations={iterations}"]) as trainer:
            trainer.train()
    for calls in KeptRows.told.values():
        assert [step for call, step in calls if call == "resume"] == [-1, 2]
    assert sorted({row["global_step"] for row in _rows(tmp_path / "train")}) == [1, 2, 3, 4]


def test_what_cannot_be_written_is_told_once_and_missing(tmp_path, caplog):
    failing = Failing("", ConnectionError("the service is away"))
    with StatsReporter(str(tmp_path), formats=[lambda _: failing, "csv"]) as reporter:
        for step in (1, 2, 3):
            reporter.write(step, step)
    assert failing.tries == 3
    assert [row["global_step"] for row in _table(tmp_path)] == ["1", "2", "3"]
    assert [r.getMessage() for r in caplog.records] == [
        f"Statistics cannot be written and are missing in {tmp_path}: the service is away"
    ]


def test_a_mistake_in_it_ends_the_run(tmp_path):
    reporter = StatsReporter(str(tmp_path), formats=[lambda d: Failing(d, KeyError("score"))])
    with pytest.raises(KeyError, match="score"):
        reporter.write(1, 1)


@pytest.mark.parametrize(
    ("format_", "error", "message"),
    [
        (
            lambda d: d,
            TypeError,
            r"formats has <function .*>, which made '.*' of a directory: it should make an alf\.metrics",
        ),
        (Failing("", OSError()), ValueError, r"nor a class or function that makes a Writer of a directory\."),
        ("database", ValueError, r"formats has 'database', which is none of tensorboard, csv, jsonl\.\n"),
    ],
)
def test_what_is_no_writer_is_refused(tmp_path, format_, error, message):
    with pytest.raises(error, match=message):
        StatsReporter(str(tmp_path), formats=[format_])


def test_gin_files_that_give_no_writer_are_refused(tmp_path):
    with pytest.raises(Exception, match=r"StatsReporter\.formats"):
        make_trainer("ac_cart_pole", tmp_path, ["StatsReporter.formats=('csv', 3)"])
