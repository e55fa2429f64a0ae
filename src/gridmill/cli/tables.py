"""Tables that fit terminals of any width. The columns that identify a row are never hidden."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gridmill.cli.format import visible

_NEVER_FOLDED = ("job", "node", "state")
"""The columns that are not wrapped if the table is wide enough for them. The first column of each table is
not wrapped either."""
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
    """Return a plain table for printing. The cells of the table are text, and states are coloured. On a
    narrow screen the widest columns are wrapped, and no text is cut."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=index == 0 or column in _NEVER_FOLDED)
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object, *, one_line: bool = False) -> Text:
    text = "" if value is None else visible(str(value))
    cell = Text(text, style=COLOURS.get(text, ""))
    if one_line:
        cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


class FittedTable:
    """A table that is at most as wide as the screen, and in which no word is broken.

    The columns that `folded` names are wrapped between words. Columns without values are hidden. If the
    table is still too wide, the columns that `left_out` names are hidden too, the least important column
    first. The widest of the wrapped columns has a width of at least `comfort` characters, unless its texts
    are shorter. With `one_line`, the texts in these columns are cut instead of wrapped.
    """

    def __init__(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        folded: Collection[str] = (),
        left_out: Sequence[str] = (),
        comfort: int = 24,
        one_line: bool = False,
    ) -> None:
        self._head, self._folded, self._left_out = head, folded, left_out
        self._rows = [["" if value is None else visible(str(value)) for value in row] for row in rows]
        self._comfort, self._one_line = comfort, one_line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Return the parts of the table to the library Rich, which calls this method."""
        shown = [at for at in range(len(self._head)) if any(row[at] for row in self._rows)]
        for name in self._left_out:
            if self._wanted_width(shown) > options.max_width:
                shown = [at for at in shown if self._head[at] != name]
        spare = options.max_width - self._least(shown)
        made = table(*(self._head[at] for at in shown))
        crowded = spare < 0
        for at, column in zip(shown, made.columns, strict=True):
            more = max(0, min(self._whole(at) - self._needed(at), spare))
            spare -= more
            # no width, because Rich narrows only columns without a width if the table is too wide
            squeezed = crowded and self._head[at] in self._folded
            column.no_wrap, column.width = False, None if squeezed else self._needed(at) + more
        for row in self._rows:
            made.add_row(*(_cell(row[at], one_line=self._one_line) for at in shown))
        yield made

    def _texts(self, at: int) -> Iterable[str]:
        return (self._head[at], *(row[at] for row in self._rows))

    def _whole(self, at: int) -> int:
        """Return the width of the column if none of its texts is wrapped."""
        return max(map(cell_len, self._texts(at)))

    def _needed(self, at: int) -> int:
        """Return the smallest width of the column. If the column may be wrapped, the smallest width is the
        width of the longest word in the column."""
        if self._head[at] not in self._folded:
            return self._whole(at)
        return max(cell_len(word) for text in self._texts(at) for word in text.split() or [""])

    def _least(self, shown: Sequence[int]) -> int:
        return sum(map(self._needed, shown)) + _GAP * (len(shown) - 1)

    def _wanted_width(self, shown: Sequence[int]) -> int:
        widest = max((at for at in shown if self._head[at] in self._folded), key=self._whole, default=None)
        if widest is None:
            return self._least(shown)
        return self._least(shown) + max(0, min(self._whole(widest), self._comfort) - self._needed(widest))
