"""Tables that hold no rows yet, and the jobs that can do nothing without them."""

from collections.abc import Iterable

from gridmill.model.artifact import Input
from gridmill.model.job import Job


def lacking_rows(job: Job, inputs: Iterable[Input]) -> tuple[str, ...]:
    """The tables that hold no rows, where a dataset cannot have any without them: its basis, or without one
    all that its `sql` reads. Of other jobs none: what they do about it is theirs."""
    spec = job.dataset
    if spec is None:
        return ()
    needed = (spec.basis.table,) if spec.basis else spec.references()
    empty = {one.name for one in inputs if one.artifact.output.rows == 0}
    return needed if needed and empty.issuperset(needed) else ()
