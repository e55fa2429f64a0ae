"""Which nodes of its site a command is run on, once on each."""

from fnmatch import fnmatchcase

from gridmill.model.amounts import Amounts
from gridmill.model.noun import dataclass
from gridmill.model.site import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """The nodes with one of these names (`*` and `?` stand for any letters; none: all of them) that have at
    least so much in all."""

    nodes: tuple[str, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0

    def matches(self, node: Node) -> bool:
        """Whether it is one of them."""
        named = not self.nodes or any(fnmatchcase(node.name, name) for name in self.nodes)
        least = Amounts(cpus=self.cpus or 0.0, memory_bytes=self.memory_bytes or 0, gpus=self.gpus)
        return named and least.fits_in(node.capacity)
