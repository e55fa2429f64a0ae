"""This module has the base class of all use cases. The base class has the control node, and methods that
read records."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from gridmill.control.node import ControlNode
from gridmill.ports.pages import MOST_ITEMS, Names, Page, PageRequest, cut_page
from gridmill.ports.store import Mark, Order

N = TypeVar("N")
_FIRST_READ = 16
"""The number of records in the first read. Each further read has twice as many records as the read before
it. The number of records is limited because some records are large and some are left out of the page."""


class UseCases:
    """A group of use cases on one control node. Every method holds the node's lock only for a short time."""

    def __init__(self, node: ControlNode) -> None:
        self._node = node
        self._control = node.control
        self._ledger = node.control.ledger

    def _list(
        self,
        kind: type[N],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> tuple[N, ...]:
        records = self._ledger.store.list(kind, parent=parent, limit=limit, newest_first=newest_first)
        return tuple(record.noun for record in records if isinstance(record.noun, kind))

    def _page_by_position(
        self,
        kind: type[N],
        request: PageRequest[int],
        order: Order,
        *,
        parent: str | None = None,
        selects: Callable[[N], bool] = lambda noun: True,
    ) -> Page[N]:
        """Return a page of records in the order in which they were created, or in reverse order."""
        found = self._following(kind, order, request.after, parent)
        return cut_page(
            request, ((mark, noun) for mark, noun in found if isinstance(mark, int) and selects(noun))
        )

    def _page_by_key(
        self,
        kind: type[N],
        request: PageRequest[Names],
        *,
        parent: str | None = None,
        selects: Callable[[N], bool] = lambda noun: True,
    ) -> Page[N]:
        """Return a page of records in the order of their keys."""
        after = None if request.after is None else request.after[0]
        found = self._following(kind, Order.BY_KEY, after, parent)
        return cut_page(request, (((str(mark),), noun) for mark, noun in found if selects(noun)))

    def _following(
        self, kind: type[N], order: Order, after: Mark | None, parent: str | None
    ) -> Iterator[tuple[Mark, N]]:
        """Yield records with their positions in the order. The records are read from the store only when
        they are needed."""
        limit = _FIRST_READ
        while True:
            rows = self._ledger.store.page(kind, order=order, after=after, limit=limit, parent=parent)
            for after, record in rows:
                if isinstance(record.noun, kind):
                    yield after, record.noun
            if len(rows) < limit:
                return
            limit = min(2 * limit, MOST_ITEMS)
