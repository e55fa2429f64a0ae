"""Tables that fit terminals of any width: the columns that identify a row are never hidden."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gridmill.cli.format import JOBS

_NEVER_FOLDED = ("job", "node", "state")
"""Columns that are never wrapped if there is room for them, like the first one of each table."""
_LEFT_OUT = ("memory", "on", "time", "progress")
"""Columns of JOBS that are hidden on a narrow screen, the least important first."""
_LEAST_SAID = 24
"""The smallest width of the last column, in characters, before other columns are hidden."""
_GAP = 2

COLOURS: Mapping[str, str] = {
    "running": "cyan",
    "building": "cyan",
    "active": "cyan",
    "succeeded": "green",
    "unchanged": "green",
    "up": "green",
    "failed": "red",
    "lost": "red",
    "stopped": "yellow",
    "stopping": "yellow",
    "skipped": "yellow",
}


def table(*columns: str, rows: Iterable[Sequence[object]] = (), title: str | None = None) -> Table:
    """A plain table; cells are text, states are coloured. On a narrow screen the widest columns are folded;
    nothing is cut, least of all a name."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=index == 0 or column in _NEVER_FOLDED)
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def fitted(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    folded: Collection[str],
    left_out: Sequence[str],
    comfort: int = 0,
) -> Table:
    """A table no wider than that in which no word is broken: the `folded` columns are between their words.
    Columns that say nothing go, and while that is not enough those `left_out`, the least needed first.
    The widest folded column has at least `comfort` columns of the screen, if it needs them."""
    shown = [at for at in range(len(head)) if any(row[at] for row in rows)]

    def whole(at: int) -> int:
        return max(map(cell_len, (head[at], *(row[at] for row in rows))))

    def needed(at: int) -> int:
        texts = (head[at], *(row[at] for row in rows))
        return max(
            cell_len(word)
            for text in texts
            for word in (text.split() if head[at] in folded else [text]) or [""]
        )

    def wished() -> int:
        widest = max((at for at in shown if head[at] in folded), key=whole, default=None)
        more = 0 if widest is None else max(0, min(whole(widest), comfort) - needed(widest))
        return sum(map(needed, shown)) + more + _GAP * (len(shown) - 1)

    for name in left_out:
        if wished() > width:
            shown = [at for at in shown if head[at] != name]
    spare = width - sum(map(needed, shown)) - _GAP * (len(shown) - 1)
    made = table(*(head[at] for at in shown), rows=[[row[at] for at in shown] for row in rows])
    for at, column in zip(shown, made.columns, strict=True):
        more = max(0, min(whole(at) - needed(at), spare))
        spare -= more
        column.no_wrap, column.width = False, needed(at) + more
    return made


class FittedTable:
    """A table that is `fitted` to the screen on which it is shown."""

    def __init__(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        folded: Collection[str] = (),
        left_out: Sequence[str] = (),
    ) -> None:
        self._head, self._folded, self._left_out = head, folded, left_out
        self._rows = [["" if value is None else str(value) for value in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich asks for it."""
        yield fitted(
            self._head,
            self._rows,
            options.max_width,
            folded=self._folded,
            left_out=self._left_out,
            comfort=_LEAST_SAID,
        )


def _cell(value: object) -> Text:
    text = "" if value is None else str(value)
    return Text(text, style=COLOURS.get(text, ""))


class JobTable:
    """Rows of words.JOBS. Columns that say nothing of any job are left out, and on a narrow screen those
    that say least: the last one, why a job waits, has their room. It is folded there, or cut where a job has
    `one_line`; name and state never are."""

    def __init__(self, rows: Sequence[Sequence[str]], *, one_line: bool) -> None:
        self._rows = rows
        self._one_line = one_line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich asks for it."""
        yield self._made(self._shown(options.max_width))

    def _shown(self, width: int) -> list[int]:
        shown = [
            at for at, name in enumerate(JOBS) if name in _NEVER_FOLDED or any(row[at] for row in self._rows)
        ]
        for name in _LEFT_OUT:
            if self._needed(shown) > width:
                shown = [at for at in shown if JOBS[at] != name]
        return shown

    def _needed(self, shown: Sequence[int]) -> int:
        widths = [
            max(cell_len(text) for text in (JOBS[at], *(row[at] for row in self._rows))) for at in shown
        ]
        if shown[-1] == len(JOBS) - 1:
            widths[-1] = min(_LEAST_SAID, widths[-1])
        return sum(widths) + _GAP * (len(widths) - 1)

    def _made(self, shown: Sequence[int]) -> Table:
        made = table(*(JOBS[at] for at in shown))
        for column in made.columns:
            column.no_wrap = column.header in _NEVER_FOLDED
        for row in self._rows:
            made.add_row(*(self._cell(row[at]) for at in shown))
        return made

    def _cell(self, value: str) -> Text:
        cell = _cell(value)
        if self._one_line:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        return cell
