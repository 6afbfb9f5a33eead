"""Charts as SVG text: lines with a band around them, and stacked bars. No library, no script, no font of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 30, 38
COLOURS = ("#3b76c4", "#d9822b", "#3f9b5c", "#b5489a", "#8a6d3b", "#5b5bd6", "#c0392b", "#4a9aa8")


class Series(NamedTuple):
    """A line through the points (x, y), with a band of half width `spread`, if any; marked points with `dots`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    dots: bool = False


class _Axis(NamedTuple):
    """Maps values in [low, high] to pixels."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)


def line_chart(title: str, x_label: str, series: Sequence[Series]) -> str:
    """A chart with axes, a legend where there are several series, and one `<polyline>` for each unbroken stretch."""
    shown = [s for s in series if any(_finite(x, y) for x, y in zip(s.x, s.y, strict=True))]
    if not shown:
        return ""
    x_axis, y_axis = _axes(shown)
    parts = [_grid(x_axis, y_axis), _text(_LEFT, 16, title, "t")]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 4, x_label, "l", "middle"))
    for i, one in enumerate(shown):
        parts += _series(one, COLOURS[i % len(COLOURS)], x_axis, y_axis)
    if len(shown) > 1:
        parts.append(_legend([s.name for s in shown], WIDTH - _RIGHT, 16))
    return _svg(title, HEIGHT, "".join(parts))


def stacked_bars(title: str, bars: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> str:
    """A chart of horizontal bars, each of shares in [0, 1] with their names and percentages."""
    row, parts = 46, [_text(8, 16, title, "t")]
    for i, (name, pieces) in enumerate(bars):
        top, left = 34 + i * row, 8.0
        told = ", ".join(f"{what} {share:.0%}" for what, share in pieces)
        parts.append(_text(8, top + 8, f"{name}: {told}", "l"))
        for j, (what, share) in enumerate(pieces):
            width = max(0.0, share) * (WIDTH - 16)
            tip = f"{what} {share:.0%}"
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 13}" width="{width:.1f}" height="18" fill="{COLOURS[j]}">'
                f"<title>{escape(tip)}</title></rect>"
            )
            if width > 6.4 * len(tip):
                parts.append(_text(left + 4, top + 26, tip, "w"))
            left += width
    return _svg(title, 40 + row * len(bars), "".join(parts))


# ---- parts ----


def _svg(title: str, height: int, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">{inside}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str], right: float, y: float) -> str:
    parts, x = [], right
    for i in reversed(range(len(names))):
        x -= 6.6 * len(names[i])
        parts.append(_text(x, y, names[i], "l"))
        parts.append(
            f'<rect x="{x - 12:.1f}" y="{y - 8:.1f}" width="9" height="9" fill="{COLOURS[i % len(COLOURS)]}" />'
        )
        x -= 24
    return "".join(parts)


def _axes(series: Sequence[Series]) -> tuple[_Axis, _Axis]:
    points = [(x, y) for s in series for x, y in zip(s.x, s.y, strict=True) if _finite(x, y)]
    ys = [y for _, y in points]
    for s in series:
        for x, y, half in zip(s.x, s.y, s.spread or (), strict=False):
            ys += [y - half, y + half] if _finite(x, y) and math.isfinite(half) else []
    low, high = min(ys), max(ys)
    # A curve that is flat but for rounding is drawn flat.
    room = 0.04 * (high - low) if high - low > 1e-9 * max(abs(low), abs(high)) else 0.1 * max(abs(high), 1e-9)
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    if x_high - x_low <= 1e-9 * max(abs(x_low), abs(x_high)):
        x_high = x_low + max(1.0, 0.01 * abs(x_low))
    return (
        _Axis(x_low, x_high, _LEFT, WIDTH - _RIGHT),
        _Axis(low - room, high + room, HEIGHT - _BOTTOM, _TOP),
    )


def _grid(x_axis: _Axis, y_axis: _Axis) -> str:
    parts = []
    for value in _ticks(y_axis.low, y_axis.high, 5):
        y = y_axis.at(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="g" />')
        parts.append(_text(_LEFT - 6, y + 4, _number(value), "l", "end"))
    for value in _ticks(x_axis.low, x_axis.high, 5):
        parts.append(_text(x_axis.at(value), HEIGHT - _BOTTOM + 16, _number(value), "l", "middle"))
    return "".join(parts)


def _series(one: Series, colour: str, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for stretch in _stretches(one):
        if one.spread is not None:
            upper = [(x, y + half) for x, y, half in stretch]
            lower = [(x, y - half) for x, y, half in reversed(stretch)]
            parts.append(f'<polygon points="{_points(upper + lower, x_axis, y_axis)}" fill="{colour}" class="b" />')
        line = [(x, y) for x, y, _ in stretch]
        parts.append(f'<polyline points="{_points(line, x_axis, y_axis)}" stroke="{colour}" class="c" />')
        if one.dots or len(line) == 1:
            parts += [
                f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="2.5" fill="{colour}" />' for x, y in line
            ]
    return parts


def _stretches(one: Series) -> list[list[tuple[float, float, float]]]:
    """The points between those that are no numbers, with their half width of the band."""
    found: list[list[tuple[float, float, float]]] = [[]]
    for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
        if _finite(x, y):
            half = one.spread[i] if one.spread is not None and math.isfinite(one.spread[i]) else 0.0
            found[-1].append((x, y, half))
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _points(points: Sequence[tuple[float, float]], x_axis: _Axis, y_axis: _Axis) -> str:
    return " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)


def _finite(*values: float) -> bool:
    return all(math.isfinite(v) for v in values)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers in [low, high]."""
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _number(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
