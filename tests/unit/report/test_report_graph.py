"""The picture of a run's jobs: edges run between boxes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gridmill.report.svg import DagBox, dag

RECT = re.compile(r'<rect class="[^"]*" x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)"')
PATH = re.compile(r'<path class="edge" d="([^"]+)"')
NUMBER = re.compile(r"-?[0-9.]+")


def boxes(needs: dict[str, list[str]]) -> list[DagBox]:
    return [
        DagBox(name=name, kind="command", state="succeeded", needs=tuple(of)) for name, of in needs.items()
    ]


def straight_parts(path: str) -> list[tuple[float, float, float, float]]:
    """The lanes of an edge: where it crosses a column of boxes."""
    points = [tuple(map(float, NUMBER.findall(part)))[-2:] for part in re.split("(?=[MCL])", path) if part]
    kinds = [part[0] for part in re.split("(?=[MCL])", path) if part]
    return [(*points[i - 1], *points[i]) for i, kind in enumerate(kinds) if kind == "L"]


def check(drawn: str, edges: int) -> None:
    rects = [tuple(map(float, found)) for found in RECT.findall(drawn)]
    paths = PATH.findall(drawn)
    assert len(paths) == edges
    for path in paths:
        for x1, y1, x2, y2 in straight_parts(path):
            assert y1 == y2
            behind = [r for r in rects if r[0] < x2 and x1 < r[0] + r[2] and r[1] <= y1 <= r[1] + r[3]]
            assert not behind


def test_an_edge_over_a_column_runs_beside_its_boxes() -> None:
    drawn = dag(boxes({"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"]}))
    check(drawn, 4)
    assert max(len(straight_parts(path)) for path in PATH.findall(drawn)) == 2


@given(st.data())
def test_no_edge_runs_behind_a_box(data: st.DataObject) -> None:
    names = [f"j{number}" for number in range(data.draw(st.integers(1, 12)))]
    needs = {
        name: data.draw(st.lists(st.sampled_from(names[:place]), unique=True, max_size=4)) if place else []
        for place, name in enumerate(names)
    }
    check(dag(boxes(needs)), sum(map(len, needs.values())))


def test_a_run_without_jobs_is_an_empty_picture() -> None:
    assert "<svg" in dag([])
