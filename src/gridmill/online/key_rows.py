"""Reads the rows of the keys of a request from a view, in the form in which the window kernels read them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.dataset.window_kernels import LoadedTable
from gridmill.jobs.dataset.window_ranges import NOWHERE, Ints, KeyedTimes, QueryRows
from gridmill.online.plan import Feed, OnlinePlan
from gridmill.online.requests import RequestColumns
from gridmill.online.row_codec import Key, codec_of, key_maker, plain_keys
from gridmill.online.view import StoredRow, ViewFile, ViewState

NEVER = -(2**63)
"""The time of the newest row of a key that has no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRows:
    """The rows of the keys of a request, and the requesting rows. `newest` is for each requesting row the
    time of the newest row of its key that was known before, or NEVER."""

    loaded: LoadedTable
    asking: QueryRows
    newest: Ints


class TooManyRowsError(InputError):
    """The rows of a request need more rows of a view at once than may be held in memory."""

    default_hint = "Send fewer rows in one request."


def load_rows(
    view: ViewFile, number: int, feed: Feed, request: RequestColumns, most_rows: int | None = None
) -> KeyRows:
    """Read all rows that the features of a feed need for these requests. Raises DamagedViewError, and
    TooManyRowsError if they are more than `most_rows`."""
    keys = _keys(feed, request)
    spans = _spans(keys, request.times)
    reach = round(feed.seconds * 1_000_000)
    places: dict[Key, int] = {}
    lengths: list[int] = [0]
    rows: list[StoredRow] = []
    for key, (first, last) in spans.items():
        low = first - reach
        found = view.rows_of(number, key, low, last, (low - 1, feed.rows))
        if found:
            places[key] = len(places)
            rows += found
            lengths.append(len(rows))
        if most_rows is not None and len(rows) > most_rows:
            raise TooManyRowsError(f"the features need more than {most_rows:,} rows of {feed.table!r}")
    loaded = _loaded(feed, rows, lengths)
    numbers = [NOWHERE if key is None else places.get(key, NOWHERE) for key in keys]
    asking = QueryRows(known=loaded.times, keys=np.asarray(numbers, np.int64), times=request.times)
    return KeyRows(loaded=loaded, asking=asking, newest=_newest(asking))


def with_history(view: ViewFile, plan: OnlinePlan, request: RequestColumns) -> tuple[RequestColumns, Ints]:
    """Return the rows of a request with the earlier rows of their sequences, and for each place in each
    sequence the number of its row.

    If a key has too few earlier rows, its first row is repeated, as in training. Raises DamagedViewError.
    """
    assert plan.history is not None
    feed, length = plan.history, plan.sequence or 1
    names = [column.name for column in feed.columns]
    parts: list[pa.Table] = []
    times: list[int] = []
    owners: list[int] = []
    places: list[int] = []
    for number, (key, time) in enumerate(zip(_keys(feed, request), request.times.tolist(), strict=True)):
        found = [] if key is None else view.rows_of(len(plan.feeds), key, time, time, (time - 1, feed.rows))
        every = [(known, row) for known, row, count in found for _ in range(count)]
        earlier = every[max(0, len(every) - feed.rows) :]
        first = len(times)
        parts.append(
            _with_own_row(request, number, codec_of(feed).decode([row for _, row in earlier], names))
        )
        times += [*(known for known, _ in earlier), time]
        owners += [*(NOWHERE for _ in earlier), number]
        places += [*(first for _ in range(feed.rows - len(earlier))), *range(first, len(times))]
    given = {
        name: [owner != NOWHERE and has[owner] for owner in owners] for name, has in request.given.items()
    }
    expanded = RequestColumns(table=pa.concat_tables(parts), times=np.asarray(times, np.int64), given=given)
    assert len(places) == length * len(request.times)
    return expanded, np.asarray(places, np.int64)


def _keys(feed: Feed, request: RequestColumns) -> list[Key | None]:
    make, columns = key_maker(feed.key_types), plain_keys(request.table, feed.on)
    return (
        [make(values) for values in zip(*columns, strict=True)]
        if feed.on
        else [make(())] * len(request.times)
    )


def _with_own_row(request: RequestColumns, number: int, earlier: pa.Table) -> pa.Table:
    """Return the earlier rows of one request, followed by its own row.

    In the earlier rows, key columns have the values of the request.
    """
    own = request.table.slice(number, 1)
    columns = [
        pa.concat_arrays(
            [
                _whole(earlier[name])
                if name in earlier.column_names
                else pa.repeat(own[name][0], earlier.num_rows),
                _whole(own[name]),
            ]
        )
        for name in own.column_names
    ]
    return pa.table(columns, names=own.column_names)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _spans(keys: Sequence[Key | None], times: Ints) -> dict[Key, tuple[int, int]]:
    """Return the first and the last as-of time of each key."""
    spans: dict[Key, tuple[int, int]] = {}
    for key, time in zip(keys, times.tolist(), strict=True):
        if key is not None:
            first, last = spans.get(key, (time, time))
            spans[key] = (min(first, time), max(last, time))
    return spans


def _loaded(feed: Feed, rows: Sequence[StoredRow], lengths: Sequence[int]) -> LoadedTable:
    known = np.asarray([row[0] for row in rows], np.int64)
    table = codec_of(feed).decode([row[1] for row in rows], sorted(feed.request.columns))
    offsets = np.asarray(lengths, np.int64)
    counts = np.asarray([row[2] for row in rows], np.int64)
    if len(counts) and counts.max() > 1:
        at = np.repeat(np.arange(len(counts)), counts)
        known, table = known[at], table.take(pa.array(at))
        offsets = np.append(0, np.cumsum(counts))[offsets]
    return LoadedTable(plan=feed.request, times=KeyedTimes(offsets=offsets, times=known), rows=table, keys="")


def _newest(asking: QueryRows) -> Ints:
    if not len(asking.known.times):
        return np.full(len(asking.times), NEVER)
    at = asking.newest(None, None)
    return np.where(at == NOWHERE, NEVER, asking.known.times[np.maximum(at, 0)])


def check_floor(times: Ints, state: ViewState) -> None:
    """Raise InputError if an as-of time is before the oldest time that the view answers."""
    if state.floor_us is None or not len(times) or times.min() >= state.floor_us:
        return
    row = int(np.argmin(times))
    floor, asked = (shown_time(us) for us in (state.floor_us, int(times[row])))
    raise InputError(
        f"the as-of time {asked} is before {floor}, the oldest time that the view answers",
        hint="Send a later time, or set a longer `reach_back` in the rules of the service.",
        place=f"rows[{row}]",
    )


def check_ahead(times: Ints, now_us: int, most_seconds: float) -> None:
    """Raise InputError if an as-of time is more than `most_seconds` after now."""
    if not len(times) or times.max() <= now_us + most_seconds * 1_000_000:
        return
    row = int(np.argmax(times))
    asked, now = (shown_time(us) for us in (int(times[row]), now_us))
    raise InputError(
        f"the as-of time {asked} is in the future: the clock of the service shows {now}",
        hint="Send a time that is not after the request, or leave it out.",
        place=f"rows[{row}]",
    )


def shown_time(us: int) -> str:
    """Return a time in microseconds since 1970 as ISO 8601 in UTC."""
    return str(np.datetime64(us, "us")) + "Z"
