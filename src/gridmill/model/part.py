"""A part of a job that is done on several machines."""

from gridmill.model.noun import dataclass
from gridmill.model.resource import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part `number` (from 0) of the `count` of the JobRun `of`. `node`: on that node and no other."""

    of: str
    number: int
    count: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the attempt that did a part told of it: Unix times, and what it used."""

    began: float
    ended: float
    use: Use
