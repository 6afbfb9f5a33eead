"""What a search has found: a table of runs, a table of settings, a plot."""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from alf.bin.run_view import last_row
from alf.bin.search_space import Setting
from alf.trainers.report import read_columns
from alf.trainers.run_index import RATING, RunIndex

METRIC = "Metrics/AverageReturn"

_WIDTH, _LABELS, _ROW, _MARGIN = 900, 420, 24, 40


class Result(NamedTuple):
    """A run of setting `number`: `score` is what the search compares, `best` the highest evaluation; None where there is none.

    `source` says what the score is of: "evaluation" or "training".
    """

    name: str
    number: int
    repeat: int
    setting: Setting
    state: str
    score: float | None = None
    best: float | None = None
    env_steps: int | None = None
    seconds: float | None = None
    source: str | None = None


def read_result(directory: str, run: Result, metric: str | None = None) -> Result:
    """`run` with what its directory tells.

    Args:
      directory: of the run.
      run: whose numbers are filled in.
      metric: column of the training's statistics that is its score; by default the mean return of the last complete
        evaluation where there is one, of the agents of `TrainerConfig.best_by` if that is set, else the mean return of training.
    """
    index, row = RunIndex.load(directory), last_row(directory, []) or _last_of(directory)
    latest, best, judged_by = index.final() or index.latest(), index.best(), index.run.get("judged_by")
    rated = judged_by == RATING
    score, source = row.get(metric or METRIC), "training"
    if metric is None:
        name = METRIC if judged_by is None or rated else METRIC.replace("/", f"/{judged_by}/")
        columns = read_columns(os.path.join(directory, "eval", "stats.csv"))
        returns = columns.get(name, [])
        # Of one that is not complete, the episodes that came to their end may be the easy ones.
        complete = columns.get("complete", [1.0] * len(returns))
        evaluated = [value for value, whole in zip(returns, complete, strict=False) if whole != 0.0]
        if evaluated and math.isfinite(evaluated[-1]):
            score, source = evaluated[-1], "evaluation"
    steps = row.get("env_steps", latest.env_steps if latest else None)
    return run._replace(
        score=_number(score),
        best=best.reward if best and not rated else None,
        env_steps=None if _number(steps) is None else int(steps),
        seconds=_number(row.get("seconds")),
        source=None if _number(score) is None else source,
    )


def _last_of(directory: str) -> dict[str, Any]:
    """The last row of a run whose training writes no `stats.jsonl`."""
    columns = read_columns(os.path.join(directory, "train", "stats.csv"))
    return {name: values[-1] for name, values in columns.items() if math.isfinite(values[-1])}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class Group(NamedTuple):
    """Setting `number`: how many of its runs finished, and the scores of those."""

    setting: Setting
    number: int
    runs: int
    finished: int
    scores: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Of the scores; None when there is none."""
        return statistics.fmean(self.scores) if self.scores else None


def group(results: Sequence[Result]) -> list[Group]:
    """The settings, the best mean score first; those without a score last."""
    by_index: dict[int, list[Result]] = {}
    for result in results:
        by_index.setdefault(result.number, []).append(result)
    groups = []
    for number, same in by_index.items():
        finished = [r for r in same if r.state == "finished"]
        scores = tuple(r.score for r in finished if r.score is not None)
        groups.append(Group(same[0].setting, number, len(same), len(finished), scores))
    return sorted(groups, key=lambda g: (g.mean is None, -(g.mean or 0.0), g.number))


def csv_text(results: Sequence[Result]) -> str:
    """A row for each run, a column for each binding."""
    text = io.StringIO()
    names = list(results[0].setting) if results else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "setting", "repeat", *names, "state", "score", "source", "best", "env_steps", "seconds"])
    for r in results:
        values = (r.state, r.score, r.source, r.best, r.env_steps, r.seconds)
        writer.writerow([r.name, r.number, r.repeat, *r.setting.values(), *("" if v is None else v for v in values)])
    return text.getvalue()


def markdown(results: Sequence[Result]) -> str:
    """A row for each setting, the best first."""
    names = list(results[0].setting) if results else []
    header = [*names, "finished", "score", "± std"]
    rows = [
        [
            *(value.replace("|", "\\|") for value in g.setting.values()),
            f"{g.finished}/{g.runs}",
            "–" if g.mean is None else f"{g.mean:.2f}",
            "–" if g.mean is None else f"{statistics.pstdev(g.scores):.2f}",
        ]
        for g in group(results)
    ]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(results: Sequence[Result], title: str) -> str:
    """An SVG picture: a line for each setting, a dot for each run's score, a bar at their mean."""
    groups = [g for g in group(results) if g.scores]
    scores = [score for g in groups for score in g.scores]
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    span = (high - low) or 1.0

    def x(score: float) -> float:
        return _LABELS + (score - low) / span * (_WIDTH - _LABELS - _MARGIN)

    height = _ROW * len(groups) + 3 * _ROW + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_MARGIN / 2:g}" y="{_ROW}" font-size="15">{escape(title)}</text>',
    ]
    for row, g in enumerate(groups):
        parts += _plot_row(g, _ROW * (row + 2), x)
    bottom = _ROW * (len(groups) + 2)
    parts.append(f'<line x1="{_LABELS}" x2="{_WIDTH - _MARGIN}" y1="{bottom}" y2="{bottom}" stroke="black"/>')
    for value, anchor in ((low, "start"), (low + span, "end")):
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 16}" text-anchor="{anchor}">{value:.4g}</text>')
    return "\n".join([*parts, "</svg>", ""])


def label(setting: Mapping[str, str]) -> str:
    """A setting in a few words: the last part of each name, and its value."""
    return ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in setting.items())


def _plot_row(g: Group, y: int, x: Any) -> list[str]:
    whole = label(g.setting)
    short = whole if len(whole) <= 60 else f"{whole[:59]}…"
    assert g.mean is not None
    middle = x(g.mean)
    dots = [f'<circle cx="{x(score):.1f}" cy="{y}" r="4" fill="#3070b0" fill-opacity="0.6"/>' for score in g.scores]
    return [
        f'<text x="{_LABELS - 12}" y="{y + 4}" text-anchor="end">{escape(short)}</text>',
        f'<line x1="{_LABELS}" x2="{_WIDTH - _MARGIN}" y1="{y}" y2="{y}" stroke="#dddddd"/>',
        *dots,
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - 8}" y2="{y + 8}" stroke="#b03030" stroke-width="2"/>',
    ]


def write_reports(directory: str, results: Sequence[Result], title: str) -> Mapping[str, str]:
    """Writes `results.csv`, `results.md` and `results.svg`; returns their paths by suffix."""
    from alf.utils.files import write_atomically

    texts = {"csv": csv_text(results), "md": markdown(results) + "\n", "svg": plot(results, title)}
    paths = {suffix: os.path.join(directory, f"results.{suffix}") for suffix in texts}
    for suffix, text in texts.items():
        write_atomically(paths[suffix], text)
    return paths
