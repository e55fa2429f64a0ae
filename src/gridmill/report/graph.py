"""The jobs of a run as a picture: boxes in columns, and edges that run between boxes, never behind them.

An edge that passes a column has a lane of its own there, between the boxes; edges from one job share it. The
picture has a size in pixels of its own, so its text is as large as the page's. Jobs that differ only in the
end of their names are one box where there are many.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from unicodedata import east_asian_width

from gridmill.model.noun import dataclass
from gridmill.report.charts import Point

_WIDE, _HIGH, _LANE = 184.0, 46.0, 4.0
_GAP_X, _GAP_Y = 36.0, 14.0
_NAME, _LINE = 19, 23
"""Letters of the first and the second line that a box has room for."""
FOLDED_FROM, MOST_BOXES = 24, 60
"""Jobs from which on alike ones are one box, and boxes that are drawn at most."""
_ALIKE = 3
_END = re.compile(r"([-_.]?\d+)+$")

Slot = tuple[str, int]
"""A job's name and a column: its box in its own column, else the lane of edges from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of the DAG, with the names of those it needs; `critical`: it is on the critical path; `link`:
    the anchor that it leads to. One of several alike jobs has their `count`."""

    name: str
    kind: str
    state: str
    needs: tuple[str, ...]
    note: str = ""
    critical: bool = False
    link: str = ""
    count: int = 1


def dag(boxes: Sequence[Box]) -> str:
    """Boxes in columns by the longest way from a source; edges from needs. Empty where there are too many
    boxes."""
    boxes = folded(boxes) if len(boxes) >= FOLDED_FROM else boxes
    if len(boxes) > MOST_BOXES:
        return ""
    depth = _depths(boxes)
    columns = _ordered(_sources(boxes, depth), depth)
    tallest = max((_tall(column, depth) for column in columns), default=_HIGH)
    at = dict(_places(columns, depth, tallest))
    edges = [_edge(_way(need, box.name, at, depth)) for box in boxes for need in box.needs if need in depth]
    drawn = (_box(box, at[box.name, depth[box.name]]) for box in boxes)
    wide = max(len(columns) * (_WIDE + _GAP_X) - _GAP_X + 16, 184)
    size = f'width="{wide:.0f}" height="{tallest:.0f}" viewBox="0 0 {wide:.0f} {tallest:.0f}"'
    body = "".join([*edges, *drawn])
    return f'<svg class="dag" {size} role="group" aria-label="the jobs and what they need">{body}</svg>'


def folded(boxes: Sequence[Box]) -> list[Box]:
    """One box for jobs of one kind, in one column, whose names differ only in their end."""
    depth = _depths(boxes)
    keys = {box.name: (box.kind, depth[box.name], _stem(box.name)) for box in boxes}
    counts = Counter(keys.values())
    alike: dict[tuple[str, int, str], list[Box]] = {}
    for box in boxes:
        if counts[keys[box.name]] >= _ALIKE:
            alike.setdefault(keys[box.name], []).append(box)
    names = {box.name: f"{key[2]}… ({key[1]})" for key, some in alike.items() for box in some}
    together = {names[some[0].name]: _together(names[some[0].name], some) for some in alike.values()}
    shown = {name: together.get(name) or box for box in boxes for name in [names.get(box.name, box.name)]}
    return [_renamed(box, names) for box in shown.values()]


def _stem(name: str) -> str:
    """The name without the numbers at its end, or without its last part."""
    shorter = _END.sub("", name)
    return shorter if shorter != name else name.rpartition("-")[0] or name


def _together(name: str, boxes: Sequence[Box]) -> Box:
    states = Counter(box.state for box in boxes)
    worst = next((state for state in _WORST if states[state]), boxes[0].state)
    told = f"{states[worst]:,} {worst}"
    return Box(
        name=name,
        kind=f"{len(boxes):,} jobs",
        state=worst,
        needs=tuple(dict.fromkeys(need for box in boxes for need in box.needs)),
        note=told,
        critical=any(box.critical for box in boxes),
        link=next(box.link for box in boxes if box.state == worst),
        count=len(boxes),
    )


_WORST = ("failed", "running", "waiting", "blocked", "stopped", "skipped")


def _renamed(box: Box, names: Mapping[str, str]) -> Box:
    needs = tuple(dict.fromkeys(names.get(need, need) for need in box.needs))
    return replace(box, needs=tuple(need for need in needs if need != box.name))


def _sources(boxes: Sequence[Box], depth: Mapping[str, int]) -> dict[Slot, list[Slot]]:
    """Every slot, with the slots of the column before that lead to it; in the order of the boxes."""
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
    """The slots of each column from the top: each near those that lead to it, so that few edges cross."""
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
    return _HIGH if depth[slot[0]] == slot[1] else _LANE


def _tall(column: Sequence[Slot], depth: Mapping[str, int]) -> float:
    return sum(_height(slot, depth) + _GAP_Y for slot in column)


def _places(
    columns: Sequence[Sequence[Slot]], depth: Mapping[str, int], tallest: float
) -> Iterator[tuple[Slot, Point]]:
    """The left upper corner of each slot; columns are centred."""
    for number, column in enumerate(columns):
        y = (tallest - _tall(column, depth)) / 2 + _GAP_Y / 2
        for slot in column:
            yield slot, (8 + number * (_WIDE + _GAP_X), y)
            y += _height(slot, depth) + _GAP_Y


def _way(need: str, name: str, at: Mapping[Slot, Point], depth: Mapping[str, int]) -> list[Point]:
    """Where an edge goes: out of the box on its right, along its lanes, into the other on its left."""
    x, y = at[need, depth[need]]
    way = [(x + _WIDE, y + _HIGH / 2)]
    for column in range(depth[need] + 1, depth[name]):
        x, y = at[need, column]
        way += [(x, y + _LANE / 2), (x + _WIDE, y + _LANE / 2)]
    x, y = at[name, depth[name]]
    return [*way, (x, y + _HIGH / 2)]


def _edge(way: Sequence[Point]) -> str:
    """Curves between columns, straight lines along lanes."""
    (x, y), *points = way
    path = [f"M{x},{y}"]
    for index, (x2, y2) in enumerate(points):
        middle = (x + x2) / 2
        path.append(f"L{x2},{y2}" if index % 2 else f"C{middle},{y} {middle},{y2} {x2},{y2}")
        x, y = x2, y2
    return f'<path class="edge" d="{" ".join(path)}"/>'


def _depths(boxes: Sequence[Box]) -> dict[str, int]:
    needs = {box.name: box.needs for box in boxes}
    depth: dict[str, int] = {}
    while len(depth) < len(needs):
        found = {
            name: 1 + max((depth[need] for need in of if need in needs), default=-1)
            for name, of in needs.items()
            if name not in depth and all(need in depth or need not in needs for need in of)
        }
        if not found:  # a cycle cannot be stored; should one come, draw what there is
            return depth | dict.fromkeys((name for name in needs if name not in depth), 0)
        depth |= found
    return depth


def _box(box: Box, at: Point) -> str:
    x, y = at
    marks = f"{box.state} critical" if box.critical else box.state
    line = f"{box.kind} · {box.note or box.state}"
    name = box.name.partition(" (")[0] if box.count > 1 else box.name
    drawn = (
        f"<title>{escape(f'{name}: {line}')}</title>"
        f'<rect class="box {escape(marks)}" x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="7"/>'
        f'<text x="{x + 12}" y="{y + 19}" class="name">{escape(elided(name, _NAME))}</text>'
        f'<text x="{x + 12}" y="{y + 36}" class="axis">{escape(elided(line, _LINE))}</text>'
    )
    return f'<a href="#{escape(box.link)}">{drawn}</a>' if box.link else f"<g>{drawn}</g>"


def elided(text: str, most: int) -> str:
    """The text, without its middle where it is too long; a wide letter counts twice."""
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
