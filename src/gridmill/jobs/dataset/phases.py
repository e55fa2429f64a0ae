"""How far a dataset job is: its rows are computed, then encoded, then described."""

from enum import StrEnum

from gridmill.jobs.context import JobContext


class Phase(StrEnum):
    """What is done with each row, in this order; the value is shown to users."""

    COMPUTE = "computing"
    ENCODE = "encoding"
    DESCRIBE = "describing"


def show_progress(context: JobContext, phase: Phase, done: int, rows: int, note: str = "") -> None:
    """Report that `done` of `rows` rows have passed a phase. Every phase counts, so that the job is at 100 %
    when nothing is left to do."""
    spec, part = context.order.job.dataset, context.order.part
    encodes = spec is not None and bool(spec.encoders) and part is None
    phases = [one for one in Phase if one != Phase.ENCODE or encodes]
    at = phases.index(phase) * rows + min(done, rows)
    context.progress(at, len(phases) * rows or None, "rows", note or phase.value)
