"""Sinks as they were altered, for the runs that begin."""

from gridmill.control.state import Control
from gridmill.model.alteration import Alterations, altered_pipeline
from gridmill.model.pipeline import Pipeline


def alterations_of(control: Control, name: str) -> Alterations:
    """What was altered of a sink, maybe nothing."""
    record = control.ledger.store.get(Alterations, name)
    known = record.noun if record is not None and isinstance(record.noun, Alterations) else None
    return known or Alterations(name=name)


def as_altered(control: Control, pipeline: Pipeline) -> Pipeline:
    """The pipeline as it is to run."""
    sinks = [f"{pipeline.name}/{job.name}" for job in pipeline.jobs if job.sink is not None]
    found = {name: alterations_of(control, name) for name in sinks}
    return altered_pipeline(pipeline, {name: one for name, one in found.items() if one.changes})
