"""The page on scale says what the results say, and the model makes of the measured costs what was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import _machine, _scale_model, _scale_page, scale

MEASURED = scale.measurements()


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return json.loads((_machine.RESULTS / "scale.json").read_text())


def test_every_figure_of_the_page_is_of_the_results(result: dict[str, Any]) -> None:
    page = (_machine.ROOT / "docs" / "scale.md").read_text()
    wrong = [name for name, block in _scale_page.blocks(result).items() if block not in page]
    assert not wrong, f"docs/scale.md does not have these blocks of benchmarks/_scale_page.py as they are now: {wrong}"


@pytest.mark.parametrize("name", list(MEASURED))
def test_the_results_are_those_of_the_measured_costs(name: str, result: dict[str, Any]) -> None:
    found = result["workloads"][name]
    assert [row["workers"] for row in found["limits"]] == pytest.approx(
        [row["workers"] for row in scale.limits(MEASURED[name])]
    )
    for row, again in zip(found["compared"], scale.compared(MEASURED[name]), strict=True):
        assert row == pytest.approx(again)


@pytest.mark.parametrize("name", list(MEASURED))
def test_the_model_reproduces_the_measured_runs_within_the_error_that_is_stated(
    name: str, result: dict[str, Any]
) -> None:
    measured, costs = MEASURED[name], scale.costs_of(MEASURED[name])
    stated = result["largest_error_percent"] / 100.0
    assert stated < 0.1
    for row in measured["rows"]:
        if row["workers"]:
            outcome = _scale_model.simulate(costs, row["workers"], measured["machine"]["processors"])
            assert outcome.steps_per_sec == pytest.approx(row["steps_per_s"], rel=stated + 1e-3)


def test_the_computed_size_of_a_segment_is_the_one_that_travelled() -> None:
    costs = scale.costs_of(MEASURED["large segments"])
    length, rows, *seen = scale.SIZES["large segments"]
    assert _scale_model.segment_bytes(length, rows, *seen) == costs.segment_bytes
    assert length * rows == costs.steps
