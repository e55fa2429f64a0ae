"""The base class of all use cases: the control node, and how records are read."""

from typing import TypeVar

from gridmill.control.node import ControlNode

N = TypeVar("N")


class Cases:
    """A family of use cases on one node. Every method takes the node's lock for a short time only."""

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
