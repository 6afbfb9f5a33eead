"""The report of a run: one HTML file with its curves, its configuration and what it ran on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from xml.sax.saxutils import escape

import numpy as np

from alf.metrics.tables import STEP, read_csv
from alf.metrics.time_shares import TimeShares
from alf.trainers.report_svg import Series, line_chart, stacked_bars
from alf.trainers.run_index import CONFIG_FILE
from alf.utils.files import write_atomically

REPORT_FILE = "report.html"
_MOST_POINTS = 600
_MOST_LOSSES = 12
_MOST_BEHAVIORS = 8
_PACKAGES = ("alf", "tensorflow", "tf-keras", "tf-agents", "numpy", "gin-config")

Columns = Mapping[str, list[float]]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff; }
h1 { font-size: 1.5em; margin-bottom: .2em; } h2 { font-size: 1.1em; margin: 1.6em 0 .4em; }
svg { max-width: 100%; height: auto; margin: 4px; } .charts { display: flex; flex-wrap: wrap; }
svg text { fill: currentColor; font: 11px system-ui, sans-serif; } svg .t { font-size: 13px; font-weight: 600; }
svg .w { fill: #fff; } svg .g { stroke: #8884; } svg .c { fill: none; stroke-width: 1.6; } svg .b { opacity: .18; }
table { border-collapse: collapse; } td { padding: .1em 1.2em .1em 0; vertical-align: top; }
pre { overflow-x: auto; background: #8881; padding: 1em; font-size: 12px; }
footer { margin-top: 2em; opacity: .7; font-size: 12px; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #16181c; } }
"""


def write_report(root_dir: str, title: str = "", facts: Iterable[tuple[str, str]] = ()) -> str:
    """Writes ROOT/report.html from what the run has written, whole or not at all.

    The file needs nothing beside it: charts are inside it as SVG, and no script runs.

    Args:
      root_dir: of the run; `train/stats.csv`, `eval/stats.csv` and `configured.gin` are used as far as they are there.
      title: of the page; the directory's name by default.
      facts: names and values to begin with, such as what ended the run.

    Returns:
      its path.

    Raises:
      OSError: it cannot be written.
    """
    train = read_columns(os.path.join(root_dir, "train", "stats.csv"))
    evaluation = read_columns(os.path.join(root_dir, "eval", "stats.csv"))
    path = os.path.join(root_dir, REPORT_FILE)
    title = title or os.path.basename(os.path.abspath(root_dir))
    spent = mean_shares(train)
    if spent is not None:
        facts = [*facts, ("Where the time went", spent.verdict())]
    page = _page(title, facts, _sections(train, evaluation), _configuration(root_dir))
    write_atomically(path, page)
    return path


def read_columns(path: str, most: int = _MOST_POINTS) -> Columns:
    """The columns of a CSV file as numbers, NaN where there is none.

    Of a file with more than `most` rows, evenly spaced ones and the last; never more than twice as many are in memory.
    """
    rows: list[dict[str, str]] = []
    stride, last = 1, None
    for i, row in enumerate(read_csv(path)):
        last = row
        if i % stride == 0:
            rows.append(row)
        if len(rows) >= 2 * most:
            rows, stride = rows[::2], 2 * stride
    if last is not None and last is not rows[-1]:
        rows.append(last)
    names = rows[-1] if rows else {}
    return {name: [_number(row.get(name, "")) for row in rows] for name in names}


# ---- charts ----


def _sections(train: Columns, evaluation: Columns) -> list[tuple[str, list[str]]]:
    sections = [
        ("Learning", _learning(train, evaluation)),
        ("Where the time went", _time(train)),
        ("Losses", _losses(train)),
        ("How old the acting weights were", _lag(train)),
    ]
    return [(name, [c for c in charts if c]) for name, charts in sections]


def _learning(train: Columns, evaluation: Columns) -> list[str]:
    charts, steps = [], x_axis(train, evaluation)
    for axis, label in (steps, ("seconds", "seconds")):
        series = [_series("training", train, axis, "Metrics/AverageReturn", "Metrics/AverageReturn_std")]
        series.append(_series("evaluation", evaluation, axis, "Metrics/AverageReturn", None, dots=True))
        charts.append(line_chart("Return", label, [s for s in series if s is not None]))
    lengths = _series("length", train, steps[0], "Metrics/AverageEpisodeLength")
    charts.append(line_chart("Return of agents", steps[1], _of_behaviors(train, steps[0])))
    charts.append(line_chart("Episode length", steps[1], [lengths] if lengths else []))
    return charts


def x_axis(*tables: Columns) -> tuple[str, str]:
    """The column that curves are drawn over, and its name: of a run that collects nothing its training steps."""
    if any(steps > 0.0 for table in tables for steps in table.get("env_steps", [])):
        return "env_steps", "environment steps"
    return STEP, "training steps"


def _of_behaviors(train: Columns, axis: str) -> list[Series]:
    """The return of each behavior of several agents: `Metrics/<behavior>/AverageReturn`."""
    names = [
        n.split("/") for n in train if n.startswith("Metrics/") and n.endswith("/AverageReturn") and n.count("/") == 2
    ]
    return [
        s
        for _, behavior, name in names[:_MOST_BEHAVIORS]
        if (s := _series(behavior, train, axis, f"Metrics/{behavior}/{name}")) is not None
    ]


def _losses(train: Columns) -> list[str]:
    names = [name for name in train if name.startswith("Losses/") and name.count("/") == 1]
    axis, label = x_axis(train)
    shown = [(n, _series(n, train, axis, n)) for n in names[:_MOST_LOSSES]]
    return [line_chart(n.removeprefix("Losses/"), label, [s]) for n, s in shown if s is not None]


def _lag(train: Columns) -> list[str]:
    found = [
        _series(name, train, "env_steps", tag)
        for name, tag in (("recent", "Driver/lag_recent"), ("mean", "staleness/lag_mean"), ("max", "staleness/lag_max"))
    ]
    return [line_chart("Lag in versions", "environment steps", [s for s in found if s is not None])]


def _time(train: Columns) -> list[str]:
    charts = []
    spent = mean_shares(train)
    if spent is not None:
        bars = [(name, [(_words(part), share) for part, share in parts]) for name, parts in _bars(spent)]
        charts.append(stacked_bars("Shares of the run", bars))
    rate = _rates(train)
    charts.append(line_chart("Environment steps per second", "seconds", [rate] if rate else []))
    return charts


def mean_shares(train: Columns) -> TimeShares | None:
    """The shares of time over the whole run; None where they were not measured."""
    weights = np.diff(train.get("seconds", []), prepend=0.0).tolist()
    found = {f: _mean(train.get(f"Time/{f}", []), weights) for f in TimeShares._fields if f != "threads"}
    if all(np.isnan(v) for v in found.values()):
        return None
    threads = 0 if np.isnan(found["learner_waiting"]) else 1
    return TimeShares(**{k: 0.0 if np.isnan(v) else v for k, v in found.items()}, threads=threads)


def _bars(s: TimeShares) -> list[tuple[str, list[tuple[str, float]]]]:
    learner = [("learner_training", s.learner_training), ("learner_other", s.learner_other)]
    collecting = [("environment", s.environment), ("inference", s.inference)]
    if not s.threads:
        return [("collecting and learning in turns", [*collecting, *learner])]
    return [
        ("the learner", [learner[0], ("learner_waiting", s.learner_waiting), learner[1]]),
        ("environment threads", [*collecting, ("collecting_waiting", s.collecting_waiting)]),
    ]


def _words(part: str) -> str:
    return part.rpartition("_")[2]


def _rates(train: Columns) -> Series | None:
    seconds, steps = (np.array(train.get(name, [])) for name in ("seconds", "env_steps"))
    if len(seconds) < 2 or not steps.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.diff(steps) / np.diff(seconds)
    return Series("steps/s", seconds[1:].tolist(), rates.tolist())


def _series(
    name: str, columns: Columns, x: str, y: str, spread: str | None = None, dots: bool = False
) -> Series | None:
    if x not in columns or y not in columns:
        return None
    return Series(name, columns[x], columns[y], columns.get(spread) if spread else None, dots)


# ---- page ----


def _page(
    title: str, facts: Iterable[tuple[str, str]], sections: list[tuple[str, list[str]]], configuration: str
) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts)
    body = [f"<h1>{escape(title)}</h1>", f"<table>{rows}</table>" if rows else ""]
    for name, charts in sections:
        if charts:
            body.append(f'<h2>{escape(name)}</h2><div class="charts">{"".join(charts)}</div>')
    if not any(charts for _, charts in sections):
        body.append("<p>No statistics were written.</p>")
    if configuration:
        body.append(
            f"<h2>Configuration</h2><details><summary>configured.gin</summary><pre>{escape(configuration)}</pre></details>"
        )
    return html_page(title, chr(10).join(body))


def html_page(title: str, body: str) -> str:
    """A page that needs nothing beside it and is XML as well, with what it was made by at its foot.

    Args:
      title: plain text.
      body: HTML that is well-formed XML.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{body}\n<footer>{escape(_versions())}</footer></body></html>\n"
    )


def _configuration(root_dir: str) -> str:
    path = os.path.join(root_dir, CONFIG_FILE)
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as f:
        return "".join(c for c in f.read() if c.isprintable() or c in "\n\t")


def _versions() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return f"Python {platform.python_version()}, {', '.join(found)}; {platform.system()}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean of the numbers among `values`, by their weights where these are known; NaN without any."""
    pairs = list(zip(values, weights, strict=True)) if len(weights) == len(values) else [(v, 1.0) for v in values]
    known = [(v, w) for v, w in pairs if np.isfinite(v) and np.isfinite(w) and w > 0.0]
    return sum(v * w for v, w in known) / sum(w for _, w in known) if known else float("nan")
