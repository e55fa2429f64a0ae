"""A list of the control node, as a Python sequence that is read page by page."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, overload

from gridmill.errors import InputError
from gridmill.ports.pages import MOST_ITEMS, Page

T = TypeVar("T")


class Lists(Protocol[T]):
    """A use case that returns pages. All other arguments of the use case are already set."""

    def __call__(self, *, limit: int, cursor: str | None) -> Page[T]:
        """Return the page that begins at the cursor."""


class Listing(Sequence[T]):
    """A list of the control node, or its first `limit` items. The list is equal to every sequence that has
    the same items in the same order.

    The first page is read immediately, and each further page is read when one of its items is used. The
    client must be open until all needed pages are read. `tuple(...)` reads all pages. An item that exists
    the whole time is in the list exactly once. An item that is created or deleted while the list is read may
    be in the list.
    """

    def __init__(self, read: Lists[T], *, limit: int | None = None) -> None:
        """Read the first page. Raises the errors of the use case, and InputError for an invalid limit."""
        if limit is not None and limit < 1:
            raise InputError(f"{limit} is less than 1", place="limit")
        self._read, self._limit = read, limit
        self._items: list[T] = []
        self._cursor: str | None = None
        self._complete = False
        self._read_page()

    def _read_page(self) -> None:
        left = MOST_ITEMS if self._limit is None else self._limit - len(self._items)
        page = self._read(limit=min(left, MOST_ITEMS), cursor=self._cursor)
        self._items += page.items
        self._cursor = page.next_cursor
        self._complete = self._cursor is None or len(self._items) == self._limit

    def _reach(self, count: int | None) -> None:
        """Read pages until the list has the given number of items. If the number is None, read all pages."""
        while not self._complete and (count is None or len(self._items) < count):
            self._read_page()

    def __iter__(self) -> Iterator[T]:
        index = 0
        while True:
            self._reach(index + 1)
            if index == len(self._items):
                return
            yield self._items[index]
            index += 1

    def __len__(self) -> int:
        self._reach(None)
        return len(self._items)

    def __bool__(self) -> bool:
        self._reach(1)
        return bool(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            bounds = (index.start or 0, index.stop, index.step or 1)
            bounded = bounds[1] is not None and min(bounds) >= 0
            self._reach(index.stop if bounded else None)
            return tuple(self._items[index])
        self._reach(index + 1 if index >= 0 else None)
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        more = "" if self._complete else ", ..."
        return f"[{', '.join(map(repr, self._items))}{more}]"
