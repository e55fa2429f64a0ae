"""Charts as SVG text: no script, no network, readable in light and dark."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import floor, inf, isfinite, log10

from gridmill.model.noun import dataclass

COLOURS = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)")
_LARGEST = 1e300
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line: its name and its points, in order of x."""

    name: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a timeline: seconds from the start; `state` is its CSS class."""

    name: str
    begins: float
    ends: float
    state: str
    note: str = ""


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between `low` and `high`."""
    span = high - low
    if not 0 < span < inf:
        return [low]
    rough = span / count
    power = 10.0 ** _exponent(rough)
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), 10 * power)
    if low + step == low or high + step == high:
        return [low]  # too fine for doubles
    first = -(-low // step) * step
    return [first + step * index for index in range(int((high - first) / step + 1e-9) + 1)]


def _exponent(value: float) -> int:
    return max(-307, floor(log10(value)))


def line_chart(
    series: Sequence[Series], *, x_labels: Sequence[tuple[float, str]] = (), unit: str = ""
) -> str:
    """Lines over a common scale; `x_labels` are positions and texts below the axis (default: numbers).

    Points that are not finite are left out, and what is too large to be drawn is drawn at the edge.
    """
    shown = [one for one in map(_drawable, series) if one.points]
    if not shown:
        return ""
    width, height, left, bottom, top = 920.0, 300.0, 56.0, 34.0, 26.0
    xs = [x for one in shown for x, _ in one.points]
    ys = [y for one in shown for _, y in one.points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    pad = (high_y - low_y) * 0.06 or abs(high_y) * 0.1 or 1.0
    low_y, high_y = low_y - pad, high_y + pad

    def place(point: Point) -> Point:
        x = left + (point[0] - low_x) / ((high_x - low_x) or 1.0) * (width - left - 10)
        y = top + (high_y - point[1]) / (high_y - low_y) * (height - top - bottom)
        return x, y

    labels = list(x_labels) or [(tick, f"{tick:g}") for tick in ticks(low_x, high_x, 8)]
    parts = [_grid_line(place((low_x, y))[1], left, width, f"{y:g}{unit}") for y in ticks(low_y, high_y)]
    parts += [_x_label(place((x, low_y))[0], height - bottom, text, width) for x, text in labels]
    parts += [_polyline([place(p) for p in one.points], index, one.dashed) for index, one in enumerate(shown)]
    parts += [_legend(index, one.name, left) for index, one in enumerate(shown)]
    return svg(width, height, parts)


def _drawable(series: Series) -> Series:
    points = [(x, max(-_LARGEST, min(_LARGEST, y))) for x, y in series.points if isfinite(x) and isfinite(y)]
    return replace(series, points=points)


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """A picture of that size, made of `parts`."""
    body = "".join(parts)
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img">{body}</svg>'


def _grid_line(y: float, left: float, width: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _x_label(x: float, y: float, text: str, width: float) -> str:
    anchor = "end" if x > width - 40 else "middle"
    return f'<text class="axis" x="{x:.1f}" y="{y + 18:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _polyline(points: Sequence[Point], index: int, dashed: bool) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    colour = COLOURS[index % len(COLOURS)]
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'


def _legend(index: int, name: str, left: float) -> str:
    x = left + index * 150
    colour = COLOURS[index % len(COLOURS)]
    return (
        f'<rect x="{x}" y="6" width="12" height="12" rx="2" fill="{colour}"/>'
        f'<text class="axis" x="{x + 17}" y="16">{escape(name)}</text>'
    )


def timeline(bars: Sequence[Bar], total: float) -> str:
    """One row per name in order of appearance; waiting and attempts as bars of their state."""
    names = list(dict.fromkeys(bar.name for bar in bars))
    width, left, row = 920.0, 150.0, 26.0
    height = row * len(names) + 30
    scale = (width - left - 10) / (total or 1.0)
    parts = [_second(left + tick * scale, height, tick) for tick in ticks(0.0, total or 1.0, 8)]
    for index, name in enumerate(names):
        parts.append(f'<text x="{left - 8}" y="{index * row + 17}" text-anchor="end">{escape(name)}</text>')
    for bar in bars:
        y = names.index(bar.name) * row + 5
        x, wide = left + bar.begins * scale, max((bar.ends - bar.begins) * scale, 2.0)
        parts.append(
            f'<rect class="bar {bar.state}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="16" rx="3">'
            f"<title>{escape(bar.note)}</title></rect>"
        )
    return svg(width, height, parts)


def _second(x: float, height: float, seconds: float) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 24}"/>'
        f'<text class="axis" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{seconds:g} s</text>'
    )
