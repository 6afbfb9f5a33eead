"""The helpers of the benchmarks do what the figures rest on, and the cheap scripts run."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import psutil
import pytest
import tensorflow as tf

from benchmarks import _events, _machine, examples, memory


def test_table_has_a_line_for_each_row_and_shows_what_is_missing() -> None:
    lines = _machine.table([{"a": 1, "b": 1234.5}, {"a": 2, "b": None}]).splitlines()
    assert lines == ["| a | b |", "|---|---|", "| 1 | 1,234 |", "| 2 | – |"]


def test_median_counts_a_run_that_did_not_get_there_as_the_worst() -> None:
    assert _machine.median([3.0, None, 1.0]) == 3.0
    assert _machine.median([None, None, 1.0]) is None
    assert _machine.median([2.0, 4.0]) == 3.0


def test_machine_is_described() -> None:
    described = _machine.machine()
    assert described["processors"] >= 1
    assert described["processor"]
    assert len(described["load_average"]) == 3


def test_last_json_reads_the_last_object_and_reports_failures() -> None:
    code = "print('noise'); print('{\"a\": 1}')"
    assert _machine.last_json([sys.executable, "-c", code], timeout=30)["a"] == 1
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        _machine.last_json([sys.executable, "-c", "1 / 0"], timeout=30)


def test_save_writes_what_it_prints(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "RESULTS", tmp_path)
    monkeypatch.setattr(_machine, "ROOT", tmp_path)
    _machine.save("x", {"title": "t"}, [{"a": 1.5}], more=[1])
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["rows"] == [{"a": 1.5}]
    assert written["more"] == [1]


def test_scalars_of_an_event_file_come_back(tmp_path: pathlib.Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "train"))
    with writer.as_default():
        for step, value in enumerate([1.0, 5.0, 9.0]):
            tf.summary.scalar("Metrics/AverageReturn", value, step=step)
        tf.summary.text("notes", "not a number", step=0)
    writer.close()
    points = _events.scalars(tmp_path)
    assert set(points) == {"Metrics/AverageReturn"}
    assert [(p.step, p.value) for p in points["Metrics/AverageReturn"]] == [(0, 1.0), (1, 5.0), (2, 9.0)]


def test_no_event_file_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="no TensorBoard event file"):
        _events.scalars(tmp_path)


def test_rate_leaves_the_warm_up_out() -> None:
    points = [_events.Point(wall_time=t, step=0, value=v) for t, v in [(0, 0), (1, 5), (2, 10), (3, 110), (4, 210)]]
    assert _events.steps_per_second(points, warm_up=2.0) == 100.0
    assert _events.steps_per_second(points[:2], warm_up=2.0) is None


def test_reached_is_the_first_time() -> None:
    points = [_events.Point(wall_time=10.0 + i, step=i, value=v) for i, v in enumerate([1.0, 480.0, 400.0, 490.0])]
    assert _events.reached(points, 475.0) == 11.0
    assert _events.reached(points, 500.0) is None


def test_memory_counts_from_the_end_of_the_warm_up() -> None:
    readings = [memory.Reading(*r) for r in [(0.0, 50.0), (1.0, 100.0), (1.5, 97.0), (2.0, 104.0), (2.5, 101.0)]]
    found = memory.growth(readings, 1.0)
    assert (found["from minute"], found["to minute"]) == (1.0, 2.5)
    assert (found["MB"], found["MB then"]) == (100.0, 101.0)
    assert (found["growth %"], found["furthest %"]) == pytest.approx((1.0, 4.0))
    with pytest.raises(ValueError, match=r"over before its warm-up of 3\.0 minutes"):
        memory.growth(readings, 3.0)


def test_memory_is_that_of_all_processes_of_a_run() -> None:
    inner = "x = b'x' * (60 << 20); print(1, flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        assert memory.resident(psutil.Process(process.pid)) > 60.0
    finally:
        process.stdin.close()
        process.wait(30)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("# Return: at least 475 within 150,000 env steps.", (475.0, 150_000, 100)),
        ("# Return: at least -2.5.", (-2.5, None, 100)),
        ("# Return: at least -200 over 20 episodes within 20,000 env steps.", (-200.0, 20_000, 20)),
        ("# Return: about 475.", None),
        ("# Return: at least 475 within a day.", None),
    ],
)
def test_what_a_header_states(header: str, expected: tuple[float, int | None, int] | None) -> None:
    assert examples.stated_in(f"# CartPole.\n#\n{header}\n# More.\n") == expected


def test_every_runnable_example_states_a_return_and_the_steps_to_it_or_that_there_is_none() -> None:
    stated = examples.runnable()
    assert len(stated) >= 6
    assert all(s is None or s.within is not None for s in stated.values()), stated
    silent = [name for name, s in stated.items() if s is None and not examples.states_none(_header(name))]
    assert not silent


def _header(name: str) -> str:
    return (_machine.ROOT / "examples" / f"{name}.gin").read_text()


@pytest.mark.parametrize(
    ("reached", "within", "verdict"),
    [
        (475.0, 3000, {"reached": 490.0, "after": 3000, "ok": "yes"}),
        (475.0, 2999, {"reached": 490.0, "after": 3000, "ok": "NO"}),
        (475.0, None, {"reached": 490.0, "after": 3000, "ok": "yes"}),
        (491.0, None, {"reached": 490.0, "after": None, "ok": "NO"}),
    ],
)
def test_an_example_passes_by_return_and_steps(reached: float, within: int | None, verdict: dict[str, object]) -> None:
    def points(steps: list[int], values: list[float]) -> list[_events.Point]:
        return [_events.Point(float(i), step, value) for i, (step, value) in enumerate(zip(steps, values, strict=True))]

    written = {
        # The first point is before the hundredth episode, when the mean is over fewer.
        "Metrics/NumberOfEpisodes": points([1, 2, 3, 4], [99.0, 100.0, 200.0, 300.0]),
        "Metrics_vs_EnvironmentSteps/AverageReturn": points([1000, 2000, 3000, 4000], [500.0, 400.0, 480.0, 490.0]),
    }
    assert examples.judge(examples.Stated(reached, within), written) == verdict
    # Over 99 episodes the first point counts as well.
    assert examples.judge(examples.Stated(reached, within, 99), written)["reached"] == 500.0


def test_an_example_that_states_nothing() -> None:
    assert examples.judge(None, {})["ok"] == "no return stated"
