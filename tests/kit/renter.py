"""The leases of a cloud site in a real control node, as tests want to see them."""

from gridmill.bootstrap.node import EmbeddedNode
from gridmill.domain.lease import Lease, TryProblem


class Renter:
    """Reads the leases of the control node that was named last."""

    def __init__(self) -> None:
        self._node: EmbeddedNode | None = None

    def start(self, node: EmbeddedNode) -> None:
        """Read the leases of this control node."""
        self._node = node

    @property
    def leases(self) -> dict[str, Lease]:
        """All leases by pod, also closed ones."""
        assert self._node is not None
        found = [view.lease for view in self._node.grid.leases().items]
        return {lease.pod_id: lease for lease in reversed(found)}

    @property
    def faults(self) -> list[str]:
        """The defects of machines that were replaced."""
        tries = [one for lease in self.leases.values() for one in lease.tries]
        return [one.message for one in tries if one.problem is TryProblem.FAULT]
