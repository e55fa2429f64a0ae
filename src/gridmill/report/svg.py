"""Charts and the job graph as HTML and SVG, without scripts, without network access, and with the same text
size at any width.

The lines of a chart are an SVG image that is stretched to the available width. The texts (ticks, titles,
legend) are HTML beside the image, with positions in percent, so that they are never stretched.

The graph shows the jobs of a run as boxes in columns. The edges of the graph run between boxes and never
behind a box. If an edge passes a column, it has a lane of its own between the boxes. Edges from the same job
share a lane. The graph has a fixed size in pixels, so that its text is as large as the text of the page. If
a run has many jobs, those jobs whose names differ only at the end are drawn as a single box.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise
from math import floor, inf, isfinite, log10
from unicodedata import east_asian_width

from gridmill.domain.amounts import show_number
from gridmill.domain.frozen import dataclass

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
"""The CSS classes of the series in a chart. The first six classes have different colours."""
_LARGEST = 1e300
_MOST_POINTS = 400
_WIDE, _HIGH = 1000, 1000
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series of points in a chart, drawn as a line or as `dots`. The series has a name, and its points are
    in the order of x."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The titles and labels of both axes of a chart. `x_labels` are positions and texts that are shown
    instead of numbers. If `whole` is true, the ticks of x are whole numbers. `mark` is an x value at which a
    vertical line is drawn, and the text of this line."""

    x: str = ""
    y: str = ""
    x_labels: Sequence[tuple[float, str]] = ()
    whole: bool = False
    mark: tuple[float, str] | None = None


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Return about `count` round numbers between `low` and `high`. If `whole` is true, the ticks are whole
    numbers."""
    span = high - low
    if not 0 < span < inf:
        return [low]
    rough = max(span / count, 1.0) if whole else span / count
    power = 10.0 ** _exponent(rough)
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), 10 * power)
    if low + step == low or high + step == high:
        return [low]  # one tick, because the step is too small for floating-point numbers
    first = -(-low // step) * step
    return [first + step * index for index in range(int((high - first) / step + 1e-9) + 1)]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Return the ticks as texts, with enough decimals to distinguish them."""
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
    """The scale of both axes. Positions are fractions of the plot area, measured from its upper left
    corner."""

    low: Point
    high: Point

    def across(self, x: float) -> float:
        """Return the position of an x value as a fraction of the width, from the left."""
        return min(1.0, max(0.0, (x - self.low[0]) / ((self.high[0] - self.low[0]) or 1.0)))

    def down(self, y: float) -> float:
        """Return the position of a y value as a fraction of the height, from the top."""
        return min(1.0, max(0.0, (self.high[1] - y) / ((self.high[1] - self.low[1]) or 1.0)))

    def place(self, point: Point) -> str:
        """Return the coordinates of a point in the SVG image."""
        return f"{self.across(point[0]) * _WIDE:.0f},{self.down(point[1]) * _HIGH:.0f}"


def line_chart(series: Sequence[Series], axes: Axes | None = None) -> str:
    """Return a chart of lines with a common scale. If there are several lines, the chart has a legend.

    Points that are not finite are left out. Values that are too large for a chart are drawn at its edge.
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
    tick_values = ticks(low, high, 8, whole=whole)
    return list(zip(tick_values, tick_texts(tick_values), strict=True))


def _drawable(series: Series) -> Series:
    """Return the finite points of a series, reduced to the number that a screen can show: every n-th point,
    and the last point."""
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
    """Return a plot of the SVG `parts`, with labels at fractions of its width and height, titles, and a
    legend of names and CSS classes."""
    names = "".join(f'<li><span class="key {style}"></span>{escape(name)}</li>' for name, style in legend)
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
    """Return the HTML of a text below the axis. On a narrow screen, only every second text is shown."""
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
    """Return a point that stays round in a stretched image, because it is a line of length 0 with round
    ends."""
    note = f"<title>{escape(note)}</title>" if note else ""
    return f'<path class="dot {colour}" d="M{scale.place(point)}h0">{note}</path>'


def histogram(edges: Sequence[float], counts: Sequence[int], axes: Axes) -> str:
    """Return a histogram with bars of counts between edges. The number of edges is one more than the number
    of counts."""
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
class TimelineBar:
    """A bar of a timeline, with its position in seconds from the start. `state` is the CSS class of the
    bar."""

    begins: float
    ends: float
    state: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A row of a timeline. `link` is the anchor to which the name of the row links, and `time` is a text
    after the name."""

    name: str
    bars: Sequence[TimelineBar]
    link: str = ""
    time: str = ""


def timeline(rows: Sequence[TimelineRow], total: float) -> str:
    """Return a timeline with a row for each job, and bars for its waiting and its attempts."""
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


def _row(row: TimelineRow, total: float) -> str:
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
    """Return a chart of horizontal bars. Each bar has a name, a length from -1 to 1 relative to the longest
    bar, and a text. Negative bars have another colour."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><i class="bar {"negative" if share < 0 else "c1"}" '
        f'style="width:{min(1.0, abs(share)):.1%}"></i></td><td class="num">{escape(text)}</td></tr>'
        for name, share, text in values
    )
    return f'<table class="barchart"><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>'


_GRAPH_WIDTH, _GRAPH_HEIGHT, _LANE = 184.0, 46.0, 4.0
_GAP_X, _GAP_Y = 36.0, 14.0
_NAME, _LINE = 19, 23
"""The numbers of characters that fit into the first and the second line of a box."""
FOLDED_FROM, MOST_BOXES = 24, 60
"""FOLDED_FROM is the smallest number of jobs for which similar jobs are drawn as a single box. MOST_BOXES is
the largest number of boxes."""
_ALIKE = 3
_END = re.compile(r"([-_.]?\d+)+$")

Slot = tuple[str, int]
"""The name of a job and the number of a column. The box of the job is in its own column, and its edges pass
other columns in a lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagBox:
    """A box of the graph, with the names of the jobs that it depends on. If `critical` is true, the job is
    on the critical path. `link` is the anchor of the job. If a box represents several similar jobs, `count`
    is their number."""

    name: str
    kind: str
    state: str
    needs: tuple[str, ...]
    note: str = ""
    critical: bool = False
    link: str = ""
    count: int = 1


def dag(boxes: Sequence[DagBox]) -> str:
    """Return the graph of the jobs. Boxes are in columns by their longest path from a source, and edges show
    dependencies. The result is empty if there are too many boxes."""
    boxes = folded(boxes) if len(boxes) >= FOLDED_FROM else boxes
    if len(boxes) > MOST_BOXES:
        return ""
    depth = _depths(boxes)
    columns = _ordered(_sources(boxes, depth), depth)
    tallest = max((_tall(column, depth) for column in columns), default=_GRAPH_HEIGHT)
    at = dict(_places(columns, depth, tallest))
    edges = [
        _edge(_edge_points(need, box.name, at, depth)) for box in boxes for need in box.needs if need in depth
    ]
    drawn = (_box(box, at[box.name, depth[box.name]]) for box in boxes)
    wide = max(len(columns) * (_GRAPH_WIDTH + _GAP_X) - _GAP_X + 16, 184)
    size = f'width="{wide:.0f}" height="{tallest:.0f}" viewBox="0 0 {wide:.0f} {tallest:.0f}"'
    body = "".join([*edges, *drawn])
    return f'<svg class="dag" {size} role="group" aria-label="the jobs and their dependencies">{body}</svg>'


def folded(boxes: Sequence[DagBox]) -> list[DagBox]:
    """Merge jobs of the same kind and column into a single box if their names differ only at the end."""
    depth = _depths(boxes)
    keys = {box.name: (box.kind, depth[box.name], _stem(box.name)) for box in boxes}
    counts = Counter(keys.values())
    alike: dict[tuple[str, int, str], list[DagBox]] = {}
    for box in boxes:
        if counts[keys[box.name]] >= _ALIKE:
            alike.setdefault(keys[box.name], []).append(box)
    names = {box.name: f"{key[2]}… ({key[1]})" for key, some in alike.items() for box in some}
    together = {names[some[0].name]: _together(names[some[0].name], some) for some in alike.values()}
    shown = {name: together.get(name) or box for box in boxes for name in [names.get(box.name, box.name)]}
    return [_renamed(box, names) for box in shown.values()]


def _stem(name: str) -> str:
    """Return the name without numbers at its end, or without its last part."""
    shorter = _END.sub("", name)
    return shorter if shorter != name else name.rpartition("-")[0] or name


def _together(name: str, boxes: Sequence[DagBox]) -> DagBox:
    states = Counter(box.state for box in boxes)
    worst = next((state for state in _WORST if states[state]), boxes[0].state)
    message = f"{states[worst]:,} {worst}"
    return DagBox(
        name=name,
        kind=f"{len(boxes):,} jobs",
        state=worst,
        needs=tuple(dict.fromkeys(need for box in boxes for need in box.needs)),
        note=message,
        critical=any(box.critical for box in boxes),
        link=next(box.link for box in boxes if box.state == worst),
        count=len(boxes),
    )


_WORST = ("failed", "running", "waiting", "blocked", "stopped", "skipped")


def _renamed(box: DagBox, names: Mapping[str, str]) -> DagBox:
    needs = tuple(dict.fromkeys(names.get(need, need) for need in box.needs))
    return replace(box, needs=tuple(need for need in needs if need != box.name))


def _sources(boxes: Sequence[DagBox], depth: Mapping[str, int]) -> dict[Slot, list[Slot]]:
    """Return all slots in the order of the boxes, each with the slots of the previous column from which
    edges lead to it."""
    sources: dict[Slot, list[Slot]] = {}
    for box in boxes:
        own = depth[box.name]
        sources.setdefault((box.name, own), [])
        for need in (need for need in box.needs if need in depth):
            for column in range(depth[need] + 1, own):
                sources.setdefault((need, column), [(need, column - 1)])
            sources[box.name, own].append((need, own - 1))
    return sources


def _ordered(sources: Mapping[Slot, Sequence[Slot]], depth: Mapping[str, int]) -> list[list[Slot]]:
    """Return the slots of each column, from the top to the bottom. Each slot is placed near its sources, so
    that few edges cross."""
    columns: list[list[Slot]] = []
    place: dict[Slot, float] = {}
    for number in range(max(depth.values(), default=-1) + 1):
        column = [slot for slot in sources if slot[1] == number]
        order = {slot: index for index, slot in enumerate(column)}
        column.sort(
            key=lambda slot: (_mean([place[one] for one in sources[slot] if one in place]), order[slot])
        )
        place.update((slot, (index + 0.5) / len(column)) for index, slot in enumerate(column))
        columns.append(column)
    return columns


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _height(slot: Slot, depth: Mapping[str, int]) -> float:
    return _GRAPH_HEIGHT if depth[slot[0]] == slot[1] else _LANE


def _tall(column: Sequence[Slot], depth: Mapping[str, int]) -> float:
    return sum(_height(slot, depth) + _GAP_Y for slot in column)


def _places(
    columns: Sequence[Sequence[Slot]], depth: Mapping[str, int], tallest: float
) -> Iterator[tuple[Slot, Point]]:
    """Yield the upper left corner of each slot. Columns are centred vertically."""
    for number, column in enumerate(columns):
        y = (tallest - _tall(column, depth)) / 2 + _GAP_Y / 2
        for slot in column:
            yield slot, (8 + number * (_GRAPH_WIDTH + _GAP_X), y)
            y += _height(slot, depth) + _GAP_Y


def _edge_points(need: str, name: str, at: Mapping[Slot, Point], depth: Mapping[str, int]) -> list[Point]:
    """Return the points of an edge, from the right side of a box, along its lanes, to the left side of the
    other box."""
    x, y = at[need, depth[need]]
    path = [(x + _GRAPH_WIDTH, y + _GRAPH_HEIGHT / 2)]
    for column in range(depth[need] + 1, depth[name]):
        x, y = at[need, column]
        path += [(x, y + _LANE / 2), (x + _GRAPH_WIDTH, y + _LANE / 2)]
    x, y = at[name, depth[name]]
    return [*path, (x, y + _GRAPH_HEIGHT / 2)]


def _edge(edge_points: Sequence[Point]) -> str:
    """Return the SVG path of an edge: curves between columns, straight lines along lanes."""
    (x, y), *points = edge_points
    path = [f"M{x},{y}"]
    for index, (x2, y2) in enumerate(points):
        middle = (x + x2) / 2
        path.append(f"L{x2},{y2}" if index % 2 else f"C{middle},{y} {middle},{y2} {x2},{y2}")
        x, y = x2, y2
    return f'<path class="edge" d="{" ".join(path)}"/>'


def _depths(boxes: Sequence[DagBox]) -> dict[str, int]:
    needs = {box.name: box.needs for box in boxes}
    depth: dict[str, int] = {}
    while len(depth) < len(needs):
        deeper = {
            name: 1 + max((depth[need] for need in of if need in needs), default=-1)
            for name, of in needs.items()
            if name not in depth and all(need in depth or need not in needs for need in of)
        }
        if not deeper:  # a cycle cannot be stored; for a damaged record, draw the graph without this edge
            return depth | dict.fromkeys((name for name in needs if name not in depth), 0)
        depth |= deeper
    return depth


def _box(box: DagBox, at: Point) -> str:
    x, y = at
    marks = f"{box.state} critical" if box.critical else box.state
    line = f"{box.kind} · {box.note or box.state}"
    name = box.name.partition(" (")[0] if box.count > 1 else box.name
    drawn = (
        f"<title>{escape(f'{name}: {line}')}</title>"
        f'<rect class="box {escape(marks)}" x="{x}" y="{y}" '
        f'width="{_GRAPH_WIDTH}" height="{_GRAPH_HEIGHT}" rx="7"/>'
        f'<text x="{x + 12}" y="{y + 19}" class="name">{escape(elided(name, _NAME))}</text>'
        f'<text x="{x + 12}" y="{y + 36}" class="axis">{escape(elided(line, _LINE))}</text>'
    )
    return f'<a href="#{escape(box.link)}">{drawn}</a>' if box.link else f"<g>{drawn}</g>"


def elided(text: str, most: int) -> str:
    """Return the text, without its middle if the text is too long. A wide character counts as two
    characters."""
    if _width(text) <= most:
        return text
    head = _first(text, (most - 1) // 2)
    return f"{head}…{_first(text[::-1], most - 1 - _width(head))[::-1]}"


def _first(text: str, most: int) -> str:
    while _width(text) > most:
        text = text[: max(1, len(text) - max(1, (_width(text) - most) // 2))] if len(text) > 1 else ""
    return text


def _width(text: str) -> int:
    return len(text) + sum(east_asian_width(letter) in "WF" for letter in text)
