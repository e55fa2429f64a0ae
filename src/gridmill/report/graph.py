"""The jobs of a run as a picture: boxes in columns, and edges that run between boxes, never behind them.

An edge that passes a column has a lane of its own there, between the boxes; edges from one job share it.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from gridmill.model.noun import dataclass
from gridmill.report.charts import Point, svg

_WIDE, _HIGH, _LANE = 168.0, 46.0, 4.0
_GAP_X, _GAP_Y = 56.0, 16.0

Slot = tuple[str, int]
"""A job's name and a column: its box in its own column, else the lane of edges from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of the DAG, with the names of those it needs; `critical`: it is on the critical path."""

    name: str
    kind: str
    state: str
    needs: tuple[str, ...]
    note: str = ""
    critical: bool = False


def dag(boxes: Sequence[Box]) -> str:
    """Boxes in columns by the longest way from a source; edges from needs."""
    depth = _depths(boxes)
    columns = _ordered(_sources(boxes, depth), depth)
    tallest = max((_tall(column, depth) for column in columns), default=_HIGH)
    at = dict(_places(columns, depth, tallest))
    edges = [_edge(_way(need, box.name, at, depth)) for box in boxes for need in box.needs if need in depth]
    drawn = (_box(box, at[box.name, depth[box.name]]) for box in boxes)
    return svg(max(len(columns) * (_WIDE + _GAP_X), 300), tallest, [*edges, *drawn])


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
    return (
        f'<g><rect class="box {marks}" x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="7"/>'
        f'<text x="{x + 12}" y="{y + 19}" class="name">{escape(box.name)}</text>'
        f'<text x="{x + 12}" y="{y + 36}" class="axis">{escape(line)}</text></g>'
    )
