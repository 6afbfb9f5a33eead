"""Metrics of one's own in a run: what a driver may have, and what becomes of them where the run is resumed."""

from __future__ import annotations

import csv
import pathlib
from typing import Any

import gin
import numpy as np
import pytest

from alf.metrics.reporter import StatsReporter
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer


class Actions:
    """Actions taken, without a base class."""

    name = "Actions"

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, trajectory: Any, env_thread_id: int = 0) -> None:
        self.count += int((np.asarray(trajectory.step_type) != 2).sum())

    def result(self) -> int:
        return self.count


class Resumed(Actions):
    """The same, which goes on where a run is resumed."""

    name = "Resumed"

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.count = int(state["count"])


def _train(small_config: Any, metrics: list[Any], num_iterations: int) -> list[dict[str, str]]:
    gin.bind_parameter("SyncOffPolicyDriver.metrics", metrics)
    with small_config(SyncOffPolicyTrainer, num_iterations=num_iterations).create_trainer() as trainer:
        trainer.train()
    with pathlib.Path(trainer._root_dir, "train", "stats.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_metric_with_a_state_goes_on_where_a_run_is_resumed(small_config):
    _train(small_config, [Actions(), Resumed()], 2)
    last = _train(small_config, [Actions(), Resumed()], 3)[-1]
    assert last["Metrics/Resumed"] == last["Metrics/EnvironmentSteps"]
    assert float(last["Metrics/Actions"]) < float(last["Metrics/Resumed"])


@pytest.mark.parametrize(("metric", "what"), [(Actions, "the class Actions"), (print, "<built-in function print>")])
def test_what_is_no_metric_is_told_before_anything_is_collected(small_config, metric, what):
    with pytest.raises(ValueError, match=f"metrics of a driver has {what}: a metric is an object with a name"):
        _train(small_config, [metric], 2)


@pytest.mark.parametrize("name", [None, "", 3, lambda self: "Actions"], ids=["None", "empty", "number", "method"])
def test_a_metric_whose_name_is_no_text_is_told_before_anything_is_collected(small_config, name):
    own = type("Own", (Actions,), {"name": name})()
    with pytest.raises(
        ValueError, match=r"^The metric Own of a driver has the name .*: give it a text, name = 'Own'\.$"
    ):
        _train(small_config, [own], 2)


def test_a_metric_whose_result_is_no_method_is_told_before_anything_is_collected(small_config):
    own = type("Own", (Actions,), {"result": 1.0})()
    with pytest.raises(ValueError, match=r"metrics of a driver has .*Own object.*: a metric is an object with a name"):
        _train(small_config, [own], 2)


def test_a_metric_with_the_name_of_another_is_told_before_anything_is_collected(small_config):
    own = Actions()
    own.name = "AverageReturn"
    with pytest.raises(
        ValueError, match=r"two metrics called 'AverageReturn', .*own/Actions\.name = 'OwnAverageReturn'"
    ):
        _train(small_config, [own], 1)


def test_a_metric_without_a_number_yet_is_left_out(small_config):
    class Late(Actions):
        def result(self) -> int | None:
            return self.count if self.count > 40 else None

    rows = _train(small_config, [Late()], 3)
    assert [row["Metrics/Actions"] != "" for row in rows] == [int(row["env_steps"]) > 40 for row in rows]
    assert rows[-1]["Metrics/Actions"] == rows[-1]["Metrics/EnvironmentSteps"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.arange(9).reshape(3, 3), r"array\(\[\[0, 1, 2\], \[3, 4, 5\], \[6, 7, 8\]\]\)"),
        ({"left": 1.0}, r"\{'left': 1\.0\}"),
        ("many", "'many'"),
        (list(range(1000)), r"\[0, 1, 2, .* \.\.\.,?"),
    ],
)
def test_a_metric_that_gives_no_number_is_told_by_name(tmp_path, value, shown):
    own = Actions()
    own.result = lambda: value
    with (
        StatsReporter(str(tmp_path)) as reporter,
        pytest.raises(ValueError, match=rf"^The metric 'Actions' gave {shown} for a result\(\): .*None.*\.$"),
    ):
        reporter.write(1, 1, [own])
