"""The learning curves of a search, as one page: settings beside each other, and each setting's runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np

from alf.bin.search_report import METRIC, Group, Result, group, label
from alf.metrics.tables import STEP
from alf.trainers.report import Columns, html_page, read_columns, x_axis
from alf.trainers.report_svg import COLOURS, Series, line_chart

# As many settings as there are colours are compared in one picture, and so many have a picture of their own.
_MOST_COMPARED = len(COLOURS)
_MOST_SHOWN = 60
_GRID = 200


def read_table(directory: str, metric: str | None = None) -> Columns:
    """What a curve is made of, from `train/stats.csv`; from `eval/stats.csv` where it is of the return, and training has none."""
    columns = read_columns(os.path.join(directory, "train", "stats.csv"))
    if metric is None and not np.isfinite(columns.get(METRIC, [])).any():
        columns = read_columns(os.path.join(directory, "eval", "stats.csv"))
    # A search may have thousands of runs, whose tables are in memory at the same time.
    return {name: columns[name] for name in (STEP, "env_steps", metric or METRIC) if name in columns}


def read_curve(columns: Columns, axis: str, metric: str | None = None) -> Series | None:
    """The learning curve of a run, without a name.

    Args:
      columns: of the run.
      axis: one of them.
      metric: another one; by default the mean return.

    Returns:
      the metric over the axis; None where the run has written neither.
    """
    x, y = columns.get(axis, []), columns.get(metric or METRIC, [])
    points = [(a, b) for a, b in zip(x, y, strict=False) if np.isfinite(a) and np.isfinite(b)]
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    return Series("", xs, ys)


def mean_curve(name: str, curves: Sequence[Series]) -> Series | None:
    """The mean of several curves with their standard deviation, where all of them have values; None where nowhere."""
    if len(curves) == 1:
        return curves[0]._replace(name=name)
    first, last = (max(c.x[0] for c in curves), min(c.x[-1] for c in curves)) if curves else (1.0, 0.0)
    if first > last:
        return None
    grid = np.linspace(first, last, _GRID if last > first else 1)
    values = np.stack([np.interp(grid, c.x, c.y) for c in curves])
    return Series(name, grid.tolist(), values.mean(0).tolist(), values.std(0).tolist())


def curves_page(root_dir: str, results: Sequence[Result], title: str, metric: str | None = None) -> str:
    """The text of a page that needs nothing beside it.

    Args:
      root_dir: of the search, which the runs are below of.
      results: of its runs, finished or not.
      title: of the page.
      metric: column of the statistics of training; by default the mean return, of evaluations where training has none.
    """
    groups = group(results)
    curves, x_label = _curves(root_dir, results, metric)
    shown = [g for g in groups if g.number in curves]
    what = (metric or METRIC).rpartition("/")[2]
    means = [(g, mean_curve(str(g.number), curves[g.number])) for g in shown]
    compared = [mean for _, mean in means if mean is not None][:_MOST_COMPARED]
    body = [f"<h1>{escape(title)}</h1>", _key(groups)]
    if compared:
        told = f"{what} of the settings, the {len(compared)} best" if len(compared) < len(groups) else what
        body += ["<h2>Settings</h2>", f'<div class="charts">{line_chart(told, x_label, compared)}</div>']
        body += ["<h2>Runs</h2>", '<div class="charts">']
        body += [line_chart(f"{g.number}: {label(g.setting)}", x_label, curves[g.number]) for g in shown[:_MOST_SHOWN]]
        body.append("</div>")
    else:
        body.append(f"<p>No run has a value of {escape(metric or METRIC)} yet.</p>")
    if len(shown) > _MOST_SHOWN:
        body.append(f"<p>{len(shown) - _MOST_SHOWN} more settings are left out; results.csv has all runs.</p>")
    return html_page(title, "\n".join(body))


def _curves(root_dir: str, results: Sequence[Result], metric: str | None) -> tuple[dict[int, list[Series]], str]:
    """For each setting that has some, by number, the curves of its runs, called by their repeats; and what they are over."""
    tables = [read_table(os.path.join(root_dir, r.name), metric) for r in results]
    axis, label = x_axis(*tables)
    found: dict[int, list[Series]] = {}
    for r, table in zip(results, tables, strict=True):
        curve = read_curve(table, axis, metric)
        if curve is not None:
            found.setdefault(r.number, []).append(curve._replace(name=f"repeat {r.repeat}"))
    return found, label


def _key(groups: Sequence[Group]) -> str:
    """What the numbers of the settings stand for, the best first."""
    rows = [
        f"<tr><td>{g.number}</td><td>{escape(label(g.setting))}</td><td>{g.finished}/{g.runs}</td>"
        f"<td>{'–' if g.mean is None else f'{g.mean:.2f}'}</td></tr>"
        for g in groups
    ]
    head = "<tr><th>number</th><th>setting</th><th>finished</th><th>score</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
