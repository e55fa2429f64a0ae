"""Draws the diagrams of the documentation, and what a terminal shows, as SVG.

They are 400 units wide, so that a phone shows their text at its size, and have colours for light and dark
screens.
"""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH = 400
_LINE = 17
"""Distance of two lines of text."""
_CHARACTER, _MONO = 6.25, 7.3
"""The widest average of a character of a line in the fonts below, at 12.5 units."""
_STYLE = """
svg { --paper: #ffffff; --ink: #1f2933; --soft: #52606d; --box: #e6f4f1; --edge: #00897b; --loud: #b4540a;
  --good: #1f7a48 }
@media (prefers-color-scheme: dark) {
  svg { --paper: #1e2129; --ink: #e4e7eb; --soft: #a3aebb; --box: #21423f; --edge: #4db6ac; --loud: #f0a35e;
    --good: #6cc794 }
}
.paper { fill: var(--paper) }
.box { fill: var(--box); stroke: var(--edge); stroke-width: 1.2 }
.frame { fill: none; stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 4 }
.line { fill: none; stroke: var(--edge); stroke-width: 1.6 }
.axis { fill: none; stroke: var(--soft); stroke-width: 1.2 }
.span { stroke: var(--edge); stroke-width: 7; stroke-linecap: butt; opacity: .75 }
.late { stroke: var(--loud); stroke-width: 7; opacity: .75 }
.head { fill: var(--edge) }
.dot { fill: var(--edge) }
.no { fill: var(--loud) }
text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink) }
.title { font-weight: 600 }
.soft { fill: var(--soft) }
.loud { fill: var(--loud) }
.good { fill: var(--good) }
.edge { fill: var(--edge) }
.code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 12px }
"""


class Picture:
    """A drawing that grows downward; `svg` is its text."""

    def __init__(self, title: str, meaning: str) -> None:
        """`meaning` says in words what the picture shows, for people who cannot see it."""
        self.title, self.meaning = title, meaning
        self._parts: list[str] = []
        self._lowest = 0.0

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """One line. Raises ValueError where it would leave the picture."""
        length = len(words) * (_MONO if "code" in kind else _CHARACTER)
        left = {"start": x, "middle": x - length / 2, "end": x - length}[anchor]
        if left < 2 or left + length > WIDTH - 2:
            raise ValueError(f"{words!r} does not fit: it would reach from {left:.0f} to {left + length:.0f}")
        shown = f' class="{kind}"' if kind else ""
        at = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._add(f'<text x="{x:g}" y="{y:g}"{shown}{at}>{escape(words, quote=False)}</text>', y + 6)

    def box(self, x: float, y: float, width: float, lines: Sequence[str], title: str = "") -> float:
        """A box with centred lines; returns where it ends. Raises ValueError where a line is too long."""
        words = [(title, "title")] * bool(title) + [(line, "") for line in lines]
        height = 14 + _LINE * len(words)
        self._add(
            f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="6"/>', y + height
        )
        for number, (line, kind) in enumerate(words):
            if len(line) * _CHARACTER > width - 8:
                raise ValueError(f"{line!r} is too long for its box")
            self.text(x + width / 2, y + 20 + _LINE * number, line, kind, "middle")
        return y + height

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """A dashed rectangle around things that belong together."""
        self._add(
            f'<rect class="frame" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>',
            y + height,
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through the points, with its head at the last."""
        (x0, y0), (x1, y1) = points[-2:]
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        way = " ".join(f"{x:g},{y:g}" for x, y in (*points[:-1], (x1 - 6 * dx, y1 - 6 * dy)))
        self._add(f'<polyline class="line" points="{way}"/>', max(y for _, y in points))
        a, b = (
            (x1 - 8 * dx + 4.5 * dy, y1 - 8 * dy + 4.5 * dx),
            (x1 - 8 * dx - 4.5 * dy, y1 - 8 * dy - 4.5 * dx),
        )
        self._add(f'<polygon class="head" points="{x1:g},{y1:g} {a[0]:g},{a[1]:g} {b[0]:g},{b[1]:g}"/>', y1)

    def line(self, x0: float, y0: float, x1: float, y1: float, kind: str = "axis") -> None:
        """A straight line."""
        self._add(f'<line class="{kind}" x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}"/>', max(y0, y1))

    def dot(self, x: float, y: float, kind: str = "dot") -> None:
        """A point in time."""
        self._add(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="4.5"/>', y + 5)

    def _add(self, part: str, lowest: float) -> None:
        self._parts.append(part)
        self._lowest = max(self._lowest, lowest)

    @property
    def svg(self) -> str:
        """The file."""
        height = round(self._lowest + 10)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
                'aria-labelledby="title meaning">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="meaning">{escape(self.meaning)}</desc>',
                f"<style>{_STYLE}</style>",
                f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def run_picture() -> str:
    """How a run flows, from the pipeline file to a version."""
    picture = Picture(
        "How a run flows",
        "gridmill run reads the pipeline file. The control node checks it and stores the run with its jobs. "
        "It plans each job that is ready: its size, its resource, its pod. The pod executes the attempt. "
        "The result is stored as a version, and the jobs that need it become ready.",
    )
    x, width = 56, 290
    middle = x + width / 2
    picture.text(middle, 22, "gridmill run pipeline.yaml", "code", "middle")
    steps = (
        ("1  Check", ("Errors name file, line and field.",), ""),
        ("2  Store the run and its jobs", ("A job waits for the jobs that it needs.",), ""),
        (
            "3  Compare",
            ("If code, settings and inputs are as before,", "the job is unchanged: its result is used."),
            "blocked until then",
        ),
        ("4  Plan", ("Size, resource, site and pod;", "all ready jobs are planned together."), "waiting"),
        (
            "5  Execute the attempt in a pod",
            ("The pod limits memory and sends", "lines, progress and metrics."),
            "running",
        ),
        ("6  Store the result as a version", ("It never changes.",), "succeeded"),
    )
    y, tops = 32.0, []
    for title, lines, state in steps:
        picture.arrow((middle, y), (middle, y + 28))
        if state:
            picture.text(middle + 10, y + 18, state, "soft")
        tops.append(y + 28)
        y = picture.box(x, y + 28, width, lines, title)
    picture.arrow((x, y - 25), (30, y - 25), (30, tops[2] + 32), (x, tops[2] + 32))
    picture.text(x, y + 22, "The jobs that need the result are ready now.", "soft")
    picture.text(x, y + 42, "An attempt that fails or is lost is retried:", "soft")
    picture.text(x, y + 59, "its job waits again (4).", "soft")
    return picture.svg


def farm_picture() -> str:
    """How a home reaches a farm."""
    picture = Picture(
        "How a farm is reached",
        "The control node at home opens one connection to the controller of the farm, by TLS or through SSH. "
        "Inputs are uploaded in chunks, and only those that the farm lacks. Pods of the farm run the jobs. "
        "Results and checkpoints are downloaded and verified.",
    )
    picture.frame(10, 10, 380, 96)
    picture.text(22, 30, "Home: your machine or server", "title")
    picture.box(40, 42, 140, ("plans and records",), "Control node")
    picture.box(220, 42, 150, ("tables, models",), "Storage root")
    picture.arrow((75, 106), (75, 216))
    picture.arrow((290, 106), (290, 216))
    picture.arrow((330, 216), (330, 106))
    picture.text(86, 134, "orders, messages:")
    picture.text(86, 151, "TLS, or SSH if only")
    picture.text(86, 168, "its port is open")
    picture.text(280, 190, "missing chunks", "soft", "end")
    picture.text(340, 134, "results,", "soft")
    picture.text(340, 151, "check-", "soft")
    picture.text(340, 168, "points", "soft")
    picture.frame(10, 216, 380, 214)
    picture.text(22, 236, "Farm: machines of another owner", "title")
    picture.box(30, 248, 170, ("admits tenants,", "limits their share"), "Controller")
    picture.box(220, 248, 150, ("chunks of inputs,", "results until sent"), "Staging folder")
    picture.arrow((115, 313), (115, 346))
    picture.arrow((295, 313), (295, 346))
    picture.box(30, 346, 165, ("tenant A · GPU 0",), "Pod")
    picture.box(205, 346, 165, ("tenant B · GPU 1",), "Pod")
    picture.text(22, 416, "Pods of two tenants cannot read each other.", "soft")
    picture.text(22, 450, "The connection breaks: jobs continue, messages wait.")
    picture.text(22, 468, "No contact for the lease (1 h): the farm ends the pods.")
    return picture.svg


def time_picture() -> str:
    """Which rows a feature and a label see."""
    picture = Picture(
        "How a dataset sees time",
        "A row of the dataset has a time. A window uses rows of the span before it, but only those that were "
        "known before it. A row that happened earlier and became known later is not used. The label is taken "
        "after the time of the row, over the horizon, and is known after its delay.",
    )
    now, left, right = 215, 25, 375
    picture.text(now, 22, "time of the row", "title", "middle")
    picture.line(now, 30, now, 262)
    picture.text(left, 52, "What is known: features")
    picture.text(right, 52, "What follows: label", "", "end")
    picture.line(left, 76, right, 76)
    for x in (45, 105, 150, 185):
        picture.dot(x, 76)
    picture.dot(200, 76, "no")
    picture.arrow((200, 84), (200, 106), (252, 106))
    picture.text(258, 104, "happens before,", "loud")
    picture.text(258, 120, "known after:", "loud")
    picture.text(258, 136, "known_at is later,", "loud")
    picture.text(258, 152, "not used", "loud")
    picture.line(85, 172, now, 172, "span")
    picture.text(85, 192, "window: span 30d")
    picture.text(85, 208, "these rows are used", "soft")
    picture.line(now, 234, 315, 234, "span")
    picture.line(315, 234, 365, 234, "late")
    picture.text(222, 254, "horizon 7d")
    picture.text(312, 254, "delay 2d", "loud")
    picture.text(left, 290, "Windows, lags and joins use a row from its known_at on.", "soft")
    picture.text(left, 308, "A label is known after its horizon and delay; no feature", "soft")
    picture.text(left, 326, "uses it before.", "soft")
    return picture.svg


def sizes_picture() -> str:
    """How the memory of a job is found."""
    picture = Picture(
        "How the memory of a job is found",
        "A declared value counts first, then what earlier attempts of the job measured, then an estimate "
        "from the kind of the job and the size of its data. The attempt is measured, and this improves the "
        "next estimate. A job that runs out of memory is retried with more.",
    )
    x, width = 40, 300
    middle = x + width / 2
    y = picture.box(x, 14, width, ("memory: 2GiB in the job or its resource",), "Is it declared?")
    picture.arrow((middle, y), (middle, y + 30))
    picture.text(middle + 10, y + 19, "no", "soft")
    y = picture.box(
        x,
        y + 30,
        width,
        ("The largest peak, scaled to the data", "of today, plus a margin."),
        "Was the job measured before?",
    )
    measured = y - 32
    picture.arrow((middle, y), (middle, y + 30))
    picture.text(middle + 10, y + 19, "no", "soft")
    y = picture.box(
        x,
        y + 30,
        width,
        ("base + rows × columns × bytes per cell,", "plus a margin."),
        "Estimate from the kind of the job",
    )
    picture.arrow((middle, y), (middle, y + 30))
    y = picture.box(x, y + 30, width, ("The kernel limits it to its memory.",), "The attempt runs")
    picture.arrow((x + width, y - 22), (372, y - 22), (372, measured), (x + width, measured))
    picture.text(x, y + 22, "Each attempt is measured: the next estimate is better.", "soft")
    picture.text(x, y + 40, "Out of memory: the job is retried with more memory,", "soft")
    picture.text(x, y + 58, "up to what its resource or its site has.", "soft")
    return picture.svg


def grid_picture() -> str:
    """What is pooled into one grid."""
    picture = Picture(
        "One grid from scattered machines",
        "Commands, Python and the REST API talk to the control node. It runs jobs on this machine, on Slurm, "
        "on Ray and at farms, and keeps tables, models and predictions in the storage root.",
    )
    picture.box(20, 14, 110, (), "Commands")
    picture.box(145, 14, 110, (), "Python")
    picture.box(270, 14, 110, (), "REST API")
    for x in (75, 200, 325):
        picture.arrow((x, 45), (x, 76))
    picture.box(20, 76, 360, ("checks pipelines, sizes jobs, plans, records",), "Control node")
    for x in (60, 153, 247, 340):
        picture.arrow((x, 124), (x, 156))
    for x, name, what in (
        (20, "This", "machine"),
        (113, "Slurm", "cluster"),
        (207, "Ray", "cluster"),
        (300, "Farm", "with GPUs"),
    ):
        picture.box(x, 156, 82, (what,), name)
    for x in (60, 153, 247, 340):
        picture.arrow((x, 204), (x, 236))
    picture.box(20, 236, 360, ("tables → datasets → models → predictions",), "Storage root")
    return picture.svg


_SHADES = {"1": "title", "32": "good", "36": "edge"}
"""The classes of the codes with which a terminal is told to write bold, green and cyan."""
_SHADED = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")
_CELL = re.compile(r"\S+(?: \S+)*")


def terminal_picture() -> str:
    """The end of `gridmill run` in a terminal, from its recording in docs/terminal.txt."""
    picture = Picture(
        "gridmill run in a terminal",
        "A table with the state, the time and the metrics of five jobs, which all succeeded. Below it: why "
        "the jobs were executed, the time of the run, the rows that were dropped with the reasons, the best "
        "model, and the file of the report.",
    )
    x, y = 14, 26
    picture.text(x, y, "$ gridmill run examples/shops/short.yaml", "code soft")
    for line in (Path(__file__).parent / "terminal.txt").read_text("utf-8").splitlines():
        y += _LINE
        for column, words, kind in _cells(line):
            picture.text(x + column * _MONO, y, words, f"code {kind}".strip())
    return picture.svg


def _cells(line: str) -> list[tuple[int, str, str]]:
    """The column, the text and the class of each cell of a line. Two spaces end a cell, so that columns stay
    below each other in every font."""
    cells, column, place = [], 0, 0
    for shaded in [*_SHADED.finditer(line), None]:
        plain = line[place : shaded.start() if shaded else len(line)]
        pieces = [(plain, "")] + ([(shaded[2], _SHADES.get(shaded[1], ""))] if shaded else [])
        for text, kind in pieces:
            cells += [(column + cell.start(), cell[0], kind) for cell in _CELL.finditer(text)]
            column += len(text)
        place = shaded.end() if shaded else place
    return cells


PICTURES = {
    "docs/img/terminal.svg": terminal_picture,
    "docs/img/grid.svg": grid_picture,
    "docs/img/run.svg": run_picture,
    "docs/img/farm.svg": farm_picture,
    "docs/img/time.svg": time_picture,
    "docs/img/sizes.svg": sizes_picture,
}
