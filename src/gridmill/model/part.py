"""A part of a job that is done on several machines."""

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part `number` (from 0) of the `count` of the JobRun `of`. `node`: on that node and no other."""

    of: str
    number: int
    count: int
    node: str = ""
