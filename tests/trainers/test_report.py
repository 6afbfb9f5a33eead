"""The report of a run: a page that parses, with as many points as there are rows."""

from __future__ import annotations

import html.parser
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.metrics.tables import CsvFile
from alf.trainers.report import mean_shares, read_columns, write_report
from alf.trainers.report_svg import Series, line_chart, stacked_bars

SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"


def _fill(path, rows, **columns):
    file = CsvFile(str(path))
    for i in range(rows):
        file.append({name: value(i) for name, value in columns.items()})
    file.close()


def _run(root, rows=40):
    _fill(
        root / "train" / "stats.csv",
        rows,
        global_step=lambda i: i,
        env_steps=lambda i: 100 * i,
        seconds=lambda i: 0.5 * i,
        **{
            "Metrics/AverageReturn": lambda i: 3.0 * i if i > 3 else None,
            "Metrics/AverageReturn_std": lambda i: 1.0 if i > 3 else None,
            "Metrics/AverageEpisodeLength": lambda i: 2.0 * i if i > 3 else None,
            "Losses/loss": lambda i: 1 / (i + 1),
            "Losses/grad_norm/kernel:0": lambda i: 1.0,
            "staleness/lag_mean": lambda i: 1.5,
            "Time/learner_training": lambda i: 0.25 if i else None,
            "Time/learner_waiting": lambda i: 0.5 if i else None,
            "Time/learner_other": lambda i: 0.25 if i else None,
            "Time/environment": lambda i: 0.75 if i else None,
            "Time/inference": lambda i: 0.125 if i else None,
            "Time/collecting_waiting": lambda i: 0.125 if i else None,
        },
    )
    _fill(
        root / "eval" / "stats.csv",
        5,
        global_step=lambda i: i,
        env_steps=lambda i: 800 * i,
        seconds=lambda i: 4.0 * i,
        **{"Metrics/AverageReturn": lambda i: 25.0 * i},
    )
    (root / "configured.gin").write_text("# a & b <c>\nAdam.learning_rate = 0.1\n")


def _page(root):
    text = (root / "report.html").read_text()
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n")), text


def _charts(page):
    return {svg.get("aria-label"): svg for svg in page.iter(f"{SVG}svg")}


def _points(svg):
    return [len(line.get("points").split()) for line in svg.iter(f"{SVG}polyline")]


def test_the_page_of_a_run(tmp_path):
    root = tmp_path / "my run"
    _run(root)
    path = write_report(str(root), facts=[("Ended", "num_iterations=40 & more")])
    assert path == str(root / "report.html")
    page, text = _page(root)
    charts = _charts(page)
    assert page.find(f".//{HTML}h1").text == "my run"
    assert [h.text for h in page.iter(f"{HTML}h2")] == [
        "Learning",
        "Where the time went",
        "Losses",
        "How old the acting weights were",
        "Configuration",
    ]
    assert _points(charts["Return"]) == [36, 5]
    assert len(list(charts["Return"].iter(f"{SVG}circle"))) == 5
    assert len(list(charts["Return"].iter(f"{SVG}polygon"))) == 1
    assert _points(charts["Episode length"]) == [36]
    assert _points(charts["loss"]) == [40]
    assert "grad_norm/kernel:0" not in charts
    assert _points(charts["Lag in versions"]) == [40]
    assert _points(charts["Environment steps per second"]) == [39]
    shares = [t.text for t in charts["Shares of the run"].iter(f"{SVG}text")]
    assert "the learner: training 25%, waiting 50%, other 25%" in shares
    assert "the environment is the bottleneck" in text
    assert "num_iterations=40 & more" in [td.text for td in page.iter(f"{HTML}td")]
    assert "Adam.learning_rate = 0.1" in page.find(f".//{HTML}pre").text
    assert "tensorflow" in page.find(f".//{HTML}footer").text
    assert not [e for e in page.iter() if e.get("src") or e.get("href") or e.tag.endswith("script")]


def test_the_page_is_html_too(tmp_path):
    _run(tmp_path)
    write_report(str(tmp_path))
    seen = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.append(tag)

    Parser().feed((tmp_path / "report.html").read_text())
    assert seen.count("svg") == len(_charts(_page(tmp_path)[0])) + 1


def test_a_run_without_statistics(tmp_path):
    write_report(str(tmp_path), title="empty")
    page, _ = _page(tmp_path)
    assert not _charts(page)
    assert page.find(f".//{HTML}p").text == "No statistics were written."


def test_damaged_rows_and_odd_values(tmp_path):
    _run(tmp_path)
    with open(tmp_path / "train" / "stats.csv", "a") as file:
        file.write("nonsense\n1,2\n" + ",".join(["inf"] * 15) + "\n" + ",".join(["nan"] * 15) + "\n41,")
    (tmp_path / "configured.gin").write_bytes(b"a = '\x00\xff\x1b'\n")
    write_report(str(tmp_path))
    assert _points(_charts(_page(tmp_path)[0])["Return"]) == [36, 5]


def test_shares_of_a_run_in_turns():
    train = {
        "Time/environment": [0.5],
        "Time/inference": [0.25],
        "Time/learner_training": [0.25],
        "Time/learner_other": [0.0],
    }
    assert mean_shares(train).threads == 0
    assert mean_shares({"Time/environment": [math.nan]}) is None
    assert mean_shares({}) is None


@pytest.mark.parametrize("rows", [0, 1, 99, 100, 199, 200, 5000])
def test_long_files_are_thinned_out(tmp_path, rows):
    _fill(tmp_path / "x.csv", rows, step=lambda i: i)
    steps = read_columns(str(tmp_path / "x.csv"), most=100).get("step", [])
    assert len(steps) <= 201
    assert steps == sorted(set(steps))
    if rows:
        assert (steps[0], steps[-1]) == (0, rows - 1)
    if rows < 200:
        assert len(steps) == rows
    elif rows:
        assert np.ptp(np.diff(steps)[:-1]) == 0


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=32), st.integers(-1000, 1000))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=20))
def test_a_chart_of_any_numbers_parses_and_stays_inside(points):
    x, y, spread = ([float(v) for v in column] for column in zip(*points, strict=True)) if points else ([], [], [])
    text = line_chart("any <title> & more", "x", [Series("a", x, y, [abs(v) for v in spread])])
    finite = [p for p in points if all(math.isfinite(v) for v in p[:2])]
    if not finite:
        assert text == ""
        return
    svg = ET.fromstring(text)
    drawn = [tuple(map(float, p.split(","))) for line in svg.iter(f"{SVG}polyline") for p in line.get("points").split()]
    assert len(drawn) == len(finite)
    assert all(0 <= px <= 460 and 0 <= py <= 240 for px, py in drawn)


def test_bars_are_as_wide_as_their_shares():
    svg = ET.fromstring(stacked_bars("shares", [("learner", [("a", 0.25), ("b", 0.75)])]))
    widths = [float(r.get("width")) for r in svg.iter(f"{SVG}rect")]
    assert widths[1] == pytest.approx(3 * widths[0], rel=1e-2)


def _as_a_person_reads(svg):
    """The curves of a chart by colour, in the numbers that its axes say: oracle for what is drawn."""
    labels = [(t.get("text-anchor"), float(t.get("x")), float(t.get("y")), t.text) for t in svg.iter(f"{SVG}text")]
    y_ticks = [(y - 4, _told(text)) for anchor, _, y, text in labels if anchor == "end"]
    x_ticks = [(x, _told(text)) for anchor, x, y, text in labels if anchor == "middle" and y < 230]
    x_of, y_of = (np.polynomial.Polynomial.fit(*zip(*ticks, strict=True), 1) for ticks in (x_ticks, y_ticks))
    curves = {}
    for line in svg.iter(f"{SVG}polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
        curves.setdefault(line.get("stroke"), []).extend((x_of(px), y_of(py)) for px, py in points)
    return curves


def _told(text):
    """A tick's number: 12, 0.5, 3k."""
    return float(text.rstrip("kMG")) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)


def test_curves_have_the_values_of_the_tables(tmp_path):
    _run(tmp_path)
    write_report(str(tmp_path))
    pictures = [svg for svg in _page(tmp_path)[0].iter(f"{SVG}svg") if svg.get("aria-label") == "Return"]
    for svg, x_label, per_row, per_evaluation in zip(
        pictures, ("environment steps", "seconds"), (100, 0.5), (800, 4.0), strict=True
    ):
        training, evaluation = (np.array(curve) for curve in _as_a_person_reads(svg).values())
        # To a pixel: of 388 for 40 rows, and of 172 for a return of 125.
        np.testing.assert_allclose(training[:, 0], [per_row * i for i in range(4, 40)], atol=0.11 * per_row)
        np.testing.assert_allclose(training[:, 1], [3.0 * i for i in range(4, 40)], atol=0.8)
        np.testing.assert_allclose(evaluation[:, 0], [per_evaluation * i for i in range(5)], atol=0.11 * per_row)
        np.testing.assert_allclose(evaluation[:, 1], [25.0 * i for i in range(5)], atol=0.8)
        names = [t.text for t in svg.iter(f"{SVG}text")]
        assert {"Return", x_label, "training", "evaluation"} <= set(names)
    loss = _as_a_person_reads(_charts(_page(tmp_path)[0])["loss"])
    (drawn,) = loss.values()
    np.testing.assert_allclose(np.array(drawn)[:, 1], [1 / (i + 1) for i in range(40)], atol=0.01)


def test_a_run_that_collects_nothing_is_drawn_over_its_training_steps(tmp_path):
    columns = {"global_step": lambda i: 10 * i, "env_steps": lambda i: 0, "seconds": lambda i: 0.5 * i}
    _fill(tmp_path / "train" / "stats.csv", 40, **columns, **{"Losses/loss": lambda i: 1 / (i + 1)})
    _fill(tmp_path / "eval" / "stats.csv", 5, **columns, **{"Metrics/AverageReturn": lambda i: 25.0 * i})
    write_report(str(tmp_path))
    page, text = _page(tmp_path)
    assert "nvironment steps" not in text
    charts = _charts(page)
    assert set(charts) == {"Return", "loss"}
    (loss,) = _as_a_person_reads(charts["loss"]).values()
    np.testing.assert_allclose(np.array(loss)[:, 0], [10 * i for i in range(40)], atol=1.1)
    assert "training steps" in [t.text for t in charts["loss"].iter(f"{SVG}text")]
    first = next(svg for svg in page.iter(f"{SVG}svg") if svg.get("aria-label") == "Return")
    (returns,) = _as_a_person_reads(first).values()
    np.testing.assert_allclose(np.array(returns)[:, 0], [10 * i for i in range(5)], atol=0.2)
