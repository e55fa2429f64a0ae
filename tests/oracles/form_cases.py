"""Random columns of dates and numbers in common forms, loaded in one or several loads.

What must come out is computed in plain Python from the table of forms of docs/how-to/data.md: a value shows
one order or sign, or several; the values of a load and those loaded before must leave one.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import date, datetime
from io import StringIO
from pathlib import Path
from random import Random

from gridmill.domain.sink import ColumnType, OnMisfit
from gridmill.errors import DataError
from tests.kit.sink_case import SinkCase
from tests.oracles.values import exact

_NAMED = ("%Y-%m-%d", "%Y/%m/%d", "%b %d %Y", "%B %d, %Y", "%d %b %Y", "%d-%b-%Y", "%G-W%V-%u")
_NUMERIC = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")
_SHORT = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{2})")


class RefusedError(Exception):
    """The load must fail, and the table stay as it is."""


@dataclass
class Column:
    """What is loaded of a column. `form` is the order or the sign that was shown; `kind` None: no table."""

    declared: bool
    rejects: bool
    kind: str | None = None
    form: str | None = None
    values: list[object] = field(default_factory=list)
    rejected: int = 0


def _date_by(text: str, order: str) -> date | None:
    found = _NUMERIC.fullmatch(text)
    if not found:
        return None
    first, second, year = int(found[1]), int(found[3]), int(found[4])
    try:
        return date(year, second, first) if order == "day" else date(year, first, second)
    except ValueError:
        return None


def _named_date(text: str) -> date | None:
    for pattern in _NAMED:
        try:
            return datetime.strptime(text, pattern).date()
        except ValueError:
            continue
    return None


def load_dates(column: Column, texts: Sequence[str]) -> None:
    """Raises RefusedError."""
    if column.kind == "string":
        column.values += texts
        return
    orders = {text: {o: d for o in ("day", "month") if (d := _date_by(text, o))} for text in texts}
    short = [text for text in texts if _SHORT.fullmatch(text)]
    others = [t for t in texts if not orders[t] and _named_date(t) is None and t not in short]
    if not column.declared and others:
        if column.kind is None:
            column.kind = "string"
            column.values += texts
            return
        raise RefusedError
    if (short or others) and not column.rejects:
        raise RefusedError
    form = column.form
    written = [text for text in texts if orders[text]]
    if form is None and written:
        left = [one for one in ("day", "month") if all(one in orders[text] for text in written)]
        open_ = any(len({*orders[text].values()}) > 1 for text in written)
        if not left or (len(left) > 1 and open_):
            raise RefusedError
        form = left[0] if len(left) == 1 else None
    values: list[object] = []
    rejected = 0
    for text in texts:
        value = _named_date(text)
        if value is None and orders[text]:
            value = orders[text].get(form) if form else next(iter(orders[text].values()))
        if value is not None:
            values.append(value)
        elif column.rejects:
            rejected += 1
        else:
            raise RefusedError
    if not values and not column.values:
        raise RefusedError
    column.kind, column.form = "date", form
    column.values += values
    column.rejected += rejected


def _number(text: str, sign: str) -> tuple[float, bool] | None:
    """The number with that decimal sign, and whether it is whole."""
    group = "," if sign == "." else "."
    whole, mark, decimals = text.removeprefix("-").partition(sign)
    parts = whole.split(group)
    grouped = len(parts) > 1
    if (
        group in decimals
        or not all(part.isdigit() for part in parts)
        or (decimals and not decimals.isdigit())
    ):
        return None
    if grouped and (parts[0].startswith("0") or len(parts[0]) > 3 or any(len(p) != 3 for p in parts[1:])):
        return None
    value = float("".join(parts) + "." + (decimals or "0"))
    return (-value if text.startswith("-") else value), not mark


def load_numbers(column: Column, texts: Sequence[str]) -> None:
    """Raises RefusedError."""
    if column.kind == "string":
        column.values += texts
        return
    read = {text: {sign: n for sign in ".," if (n := _number(text, sign))} for text in texts}
    plain = all(re.fullmatch(r"-?\d+(\.\d*)?", text) for text in texts)
    signs = [column.form] if column.form else [".", ","]
    left = [sign for sign in signs if all(sign in read[text] for text in texts)]
    if not left:
        if column.declared or column.kind is not None:
            raise RefusedError
        column.kind = "string"
        column.values += texts
        return
    if len(left) > 1 and any(re.fullmatch(r"-?[1-9]\d{0,2},\d{3}", text) for text in texts):
        raise RefusedError
    sign = left[0]
    whole = all(read[text][sign][1] for text in texts)
    kind = "float" if column.declared or not whole or column.kind == "float" else "integer"
    if kind == "float" and column.kind == "integer":
        column.values = [float(value) for value in column.values if isinstance(value, int)]
    numbers = [read[text][sign][0] for text in texts]
    column.values += numbers if kind == "float" else map(int, numbers)
    column.kind = kind
    if kind == "float" or not plain or column.form is not None:
        column.form = sign


def _drawn_date(random: Random, order: str) -> str:
    day = date(random.randint(1900, 2100), random.randint(1, 12), random.randint(1, 28))
    chance = random.random()
    if chance < 0.35:
        return day.strftime(random.choice(_NAMED))
    if chance > 0.985:
        return random.choice(["soon", "2024-13-01", "31/31/2024", "1/2/24"])
    if chance > 0.97:
        order = "day" if order == "month" else "month"
    first, second = (day.day, day.month) if order == "day" else (day.month, day.day)
    return f"{first:02d}/{second:02d}/{day.year}" if chance < 0.8 else f"{first}.{second}.{day.year}"


def _drawn_number(random: Random, sign: str) -> str:
    group = "," if sign == "." else "."
    minus = random.choice(["", "", "-"])
    thousands = f"{random.randint(1, 999)}{group}{random.randint(0, 999):03d}"
    chance = random.random()
    if chance > 0.985:
        return random.choice(["n/k", "1,2,3", "1.2.3", "12,34.5,6"])
    if chance > 0.97:
        return _drawn_number(random, group)
    return minus + random.choice(
        [
            str(random.randint(0, 9999)),
            f"{random.randint(0, 99)}{sign}{random.randint(0, 99):02d}",
            f"{random.randint(1, 999)}{sign}{random.randint(0, 999):03d}",
            thousands,
            f"{thousands}{sign}{random.randint(0, 9)}",
            f"{random.randint(1, 9)}{group}{random.randint(0, 999):03d}{group}{random.randint(0, 999):03d}",
        ]
    )


def case(seed: int, folder: Path) -> None:
    """One column through one to three loads."""
    random = Random(seed)
    kind = random.choice(["date", "float"])
    form = random.choice(["day", "month"] if kind == "date" else [".", ","])
    draw: Callable[[Random, str], str] = _drawn_date if kind == "date" else _drawn_number
    load = load_dates if kind == "date" else load_numbers
    declared = random.random() < 0.5
    column = Column(declared, declared and kind == "date" and random.random() < 0.5)
    sink = SinkCase(folder)
    log = [f"{column}"]
    for number in range(random.randint(1, 3)):
        files = [
            [draw(random, form) for _ in range(random.randint(1, 5))] for _ in range(random.randint(1, 2))
        ]
        column = _step(sink, column, load, kind, files, number, log)


def _step(
    sink: SinkCase,
    before: Column,
    load: Callable[[Column, Sequence[str]], None],
    kind: str,
    files: Sequence[Sequence[str]],
    number: int,
    log: list[str],
) -> Column:
    """Load more files; what the column then is. Files that are refused are taken away again."""
    after = Column(
        before.declared, before.rejects, before.kind, before.form, [*before.values], before.rejected
    )
    refused = False
    try:
        load(after, [text for texts in files for text in texts])
    except RefusedError:
        refused = True
    names = [f"{number}{at}.csv" for at in range(len(files))]
    for name, texts in zip(names, files, strict=True):
        sink.write(name, "n;x\n" + "".join(f'{at};"{text}"\n' for at, text in enumerate(texts)))
    log.append(f"load {files}: {'refused' if refused else after}")
    error = _loaded(sink, before, kind)
    if (error is not None) != refused:
        raise AssertionError("\n".join([*log, f"error: {error}"]))
    if refused:
        assert error is not None
        assert error.hint, log
        for name in names:
            (sink.folder / name).unlink()
        return before
    found = Counter(map(exact, sink.table()["x"].to_pylist()))
    if found != Counter(map(exact, after.values)):
        raise AssertionError("\n".join([*log, f"found {found}"]))
    return after


def _loaded(sink: SinkCase, column: Column, kind: str) -> DataError | None:
    spec: dict[str, object] = {"columns": {"x": ColumnType(kind)}} if column.declared else {}
    if column.rejects:
        spec["on_misfit"] = OnMisfit.REJECT
    try:
        with redirect_stdout(StringIO()):
            sink.load(delimiter=";", **spec)
    except DataError as error:
        return error
    return None
