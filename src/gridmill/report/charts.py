"""Charts as HTML and SVG: no script, no network, and text of one size on screens of any width.

The lines are an SVG picture that is stretched to the room there is. The texts (ticks, titles, legend) are
HTML beside it, placed in percent, so they are never stretched.
"""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise
from math import floor, inf, isfinite, log10

from gridmill.model.amounts import show_number
from gridmill.model.noun import dataclass

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
"""CSS classes of series: the first six have colours of their own."""
_LARGEST = 1e300
_MOST_POINTS = 400
_WIDE, _HIGH = 1000, 1000
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line (or `dots`): its name and its points, in order of x."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The titles of both axes; `x_labels` are positions and texts in place of numbers; `whole` x values have
    whole ticks; `mark` is an x value with a vertical line, and its text."""

    x: str = ""
    y: str = ""
    x_labels: Sequence[tuple[float, str]] = ()
    whole: bool = False
    mark: tuple[float, str] | None = None


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """About `count` round numbers between `low` and `high`; whole ones if asked for."""
    span = high - low
    if not 0 < span < inf:
        return [low]
    rough = max(span / count, 1.0) if whole else span / count
    power = 10.0 ** _exponent(rough)
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), 10 * power)
    if low + step == low or high + step == high:
        return [low]  # too fine for doubles
    first = -(-low // step) * step
    return [first + step * index for index in range(int((high - first) / step + 1e-9) + 1)]


def tick_texts(values: Sequence[float]) -> list[str]:
    """The ticks as texts with as many decimals as tell them apart."""
    step = min((after - before for before, after in pairwise(values)), default=0.0)
    largest = max(map(abs, values), default=0.0)
    if step <= 0 or largest >= 1e6 or step < 1e-4:
        return [show_number(value) for value in values]
    decimals = max(0, -floor(log10(step) + 1e-9))
    return [f"{value + 0.0:,.{decimals}f}" for value in values]


def _exponent(value: float) -> int:
    return max(-307, floor(log10(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Both axes: what is where, in shares of the plot from its left upper corner."""

    low: Point
    high: Point

    def across(self, x: float) -> float:
        """The share from the left."""
        return min(1.0, max(0.0, (x - self.low[0]) / ((self.high[0] - self.low[0]) or 1.0)))

    def down(self, y: float) -> float:
        """The share from the top."""
        return min(1.0, max(0.0, (self.high[1] - y) / ((self.high[1] - self.low[1]) or 1.0)))

    def place(self, point: Point) -> str:
        """The point within the picture."""
        return f"{self.across(point[0]) * _WIDE:.0f},{self.down(point[1]) * _HIGH:.0f}"


def line_chart(series: Sequence[Series], axes: Axes | None = None) -> str:
    """Lines over a common scale, with a legend if there are several.

    Points that are not finite are left out, and values that are too large to be drawn are drawn at the edge.
    """
    shown = [one for one in map(_drawable, series) if one.points]
    if not shown:
        return ""
    axes = axes or Axes()
    scale = _scale([point for one in shown for point in one.points])
    levels = ticks(scale.low[1], scale.high[1])
    across = list(axes.x_labels) or _numbers(scale.low[0], scale.high[0], whole=axes.whole)
    parts = [_level(scale, level) for level in levels]
    parts += [_mark(scale, axes.mark)] if axes.mark is not None else []
    parts += [_line(scale, one, index) for index, one in enumerate(shown)]
    legend = [(one.name, f"{COLOURS[index % len(COLOURS)]}{_kind(one)}") for index, one in enumerate(shown)]
    return figure(
        parts,
        legend=legend if len(shown) > 1 else (),
        y_labels=[(scale.down(y), text) for y, text in zip(levels, tick_texts(levels), strict=True)],
        x_labels=[(scale.across(x), text) for x, text in across],
        axes=axes,
    )


def _kind(series: Series) -> str:
    return " dots" if series.dots else " dashed" if series.dashed else ""


def _scale(points: Sequence[Point]) -> Scale:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    pad = (max(ys) - min(ys)) * 0.06 or abs(max(ys)) * 0.1 or 1.0
    return Scale(low=(min(xs), min(ys) - pad), high=(max(xs), max(ys) + pad))


def _numbers(low: float, high: float, *, whole: bool) -> list[tuple[float, str]]:
    found = ticks(low, high, 8, whole=whole)
    return list(zip(found, tick_texts(found), strict=True))


def _drawable(series: Series) -> Series:
    """Finite points, and not more than a screen can show: every n-th, and the last one."""
    points = [(x, max(-_LARGEST, min(_LARGEST, y))) for x, y in series.points if isfinite(x) and isfinite(y)]
    every = -(-len(points) // _MOST_POINTS)
    if every > 1:
        points = [*points[:-1:every], points[-1]]
    return replace(series, points=points)


def figure(
    parts: Sequence[str],
    *,
    x_labels: Sequence[tuple[float, str]],
    y_labels: Sequence[tuple[float, str]],
    axes: Axes,
    legend: Sequence[tuple[str, str]] = (),
) -> str:
    """A plot of the SVG `parts`, with labels at shares of its width and height, titles and a legend (name,
    CSS classes)."""
    names = "".join(f'<li><span class="key {look}"></span>{escape(name)}</li>' for name, look in legend)
    across = "".join(_label(share, index, text) for index, (share, text) in enumerate(x_labels))
    up = "".join(f'<span style="top:{share:.1%}">{escape(text)}</span>' for share, text in y_labels)
    title = escape(f"{axes.y or 'values'} by {axes.x}" if axes.x else axes.y or "chart")
    return (
        '<div class="chart">'
        + (f'<ul class="legend">{names}</ul>' if names else "")
        + (f'<div class="y-title">{escape(axes.y)}</div>' if axes.y else "")
        + f'<div class="plot"><div class="y-labels">{up}</div>'
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none">'
        f'{"".join(parts)}</svg><div class="x-labels">{across}</div></div>'
        + (f'<div class="x-title">{escape(axes.x)}</div>' if axes.x else "")
        + "</div>"
    )


def _label(share: float, index: int, text: str) -> str:
    """A text below the axis; every second one is left out on a narrow screen."""
    edge = ' class="first"' if share < 0.02 else ' class="last"' if share > 0.95 else ""
    minor = " data-minor" if index % 2 else ""
    return f'<span style="left:{share:.1%}"{edge}{minor}>{escape(text)}</span>'


def _level(scale: Scale, value: float) -> str:
    y = scale.down(value) * _HIGH
    return f'<path class="grid" d="M0,{y:.0f}H{_WIDE}"/>'


def _mark(scale: Scale, mark: tuple[float, str]) -> str:
    x = scale.across(mark[0]) * _WIDE
    return f'<path class="mark" d="M{x:.0f},0V{_HIGH}"><title>{escape(mark[1])}</title></path>'


def _line(scale: Scale, series: Series, index: int) -> str:
    colour = COLOURS[index % len(COLOURS)]
    note = f"<title>{escape(series.name)}</title>"
    if series.dots:
        return "".join(
            dot(scale, point, f"{series.name}: {show_number(point[1])} at {show_number(point[0])}", colour)
            for point in series.points
        )
    path = " ".join(map(scale.place, series.points))
    dashed = " dashed" if series.dashed else ""
    return f'<polyline class="line {colour}{dashed}" points="{path}">{note}</polyline>'


def dot(scale: Scale, point: Point, note: str, colour: str = "c1") -> str:
    """A point that stays round however the picture is stretched: a line of no length with round ends."""
    note = f"<title>{escape(note)}</title>" if note else ""
    return f'<path class="dot {colour}" d="M{scale.place(point)}h0">{note}</path>'


def histogram(edges: Sequence[float], counts: Sequence[int], axes: Axes) -> str:
    """Bars of counts between edges (one more than counts)."""
    if not counts or len(edges) != len(counts) + 1:
        return ""
    scale = Scale(low=(edges[0], 0.0), high=(edges[-1], max(counts) * 1.05 or 1.0))
    bars = [
        f'<rect class="fill c1" x="{scale.across(low) * _WIDE:.0f}" y="{scale.down(count) * _HIGH:.0f}" '
        f'width="{max(1.0, (scale.across(high) - scale.across(low)) * _WIDE - 2):.0f}" '
        f'height="{(1 - scale.down(count)) * _HIGH:.0f}">'
        f"<title>{escape(f'{show_number(low)} to {show_number(high)}: {count:,} rows')}</title></rect>"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    levels = ticks(0.0, float(max(counts)), 4, whole=True)
    zero = [_mark(scale, (0.0, "no error"))] if edges[0] < 0 < edges[-1] else []
    return figure(
        [*(_level(scale, level) for level in levels), *bars, *zero],
        x_labels=[(scale.across(x), text) for x, text in _numbers(edges[0], edges[-1], whole=False)],
        y_labels=[(scale.down(y), text) for y, text in zip(levels, tick_texts(levels), strict=True)],
        axes=axes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a timeline: seconds from the start; `state` is its CSS class."""

    begins: float
    ends: float
    state: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a timeline; `link` is the anchor that its name leads to, `time` a text behind it."""

    name: str
    bars: Sequence[Bar]
    link: str = ""
    time: str = ""


def timeline(rows: Sequence[Row], total: float) -> str:
    """A row per job; its waiting and its attempts as bars of their state."""
    total = total if total > 0 and isfinite(total) else 1.0
    unit, size = _unit(total)
    marks = ticks(0.0, total / size, 6)
    labels = "".join(
        _label(mark * size / total, index, f"{text} {unit}")
        for index, (mark, text) in enumerate(zip(marks, tick_texts(marks), strict=True))
    )
    body = "".join(_row(row, total) for row in rows)
    axis = f'<div class="row axis"><span></span><div class="x-labels">{labels}</div></div>'
    return f'<div class="timeline">{body}{axis}</div>'


def _unit(total: float) -> tuple[str, float]:
    return ("h", 3600.0) if total >= 7200 else ("min", 60.0) if total >= 180 else ("s", 1.0)


def _row(row: Row, total: float) -> str:
    name = escape(row.name)
    linked = f'<a href="#{escape(row.link)}">{name}</a>' if row.link else name
    bars = "".join(
        f'<i class="bar {escape(bar.state)}" style="left:{min(1.0, max(0.0, bar.begins / total)):.2%};'
        f'width:{min(1.0, max(0.0, (bar.ends - bar.begins) / total)):.2%}" title="{escape(bar.note)}"></i>'
        for bar in row.bars
    )
    head = f"<span>{linked} <small>{escape(row.time)}</small></span>"
    return f'<div class="row">{head}<div class="bars">{bars}</div></div>'


def bars(values: Sequence[tuple[str, float, str]], title: str) -> str:
    """Horizontal bars: name, share of the longest from -1 to 1, text. A negative one is drawn in another
    colour."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><i class="bar {"negative" if share < 0 else "c1"}" '
        f'style="width:{min(1.0, abs(share)):.1%}"></i></td><td class="num">{escape(text)}</td></tr>'
        for name, share, text in values
    )
    return f'<table class="barchart"><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>'
