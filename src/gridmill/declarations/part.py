"""A part of a sink from one line of YAML, by the same schema that reads pipeline files."""

import json

from gridmill.declarations.nodes import Fields, parse_documents
from gridmill.declarations.read import parse_declarations
from gridmill.errors import InputError, PipelineError
from gridmill.model.constraint import Constraint
from gridmill.model.outage import Outage
from gridmill.model.pipeline import Pipeline
from gridmill.model.sink import SinkSpec


def read_constraint(text: str) -> Constraint:
    """`{column: price, min: 0}`, as below `constraints` in a file. Raises InputError."""
    return _sink("constraints", text).constraints[0]


def read_outage(text: str) -> Outage:
    """`{time: at, begins: ..., ends: ...}`, as below `outages` in a file. Raises InputError."""
    return _sink("outages", text).outages[0]


def _sink(field: str, text: str) -> SinkSpec:
    (document,) = parse_documents(text, field) or (None,)
    value = document.value if document is not None else None
    if not isinstance(value, Fields):
        raise InputError(f"{text!r} is no mapping", hint="For example {column: price, min: 0}.", place=field)
    jobs = {"altered": {"sink": {"source": "any", field: [value]}}}
    other = value.get("references")
    if isinstance(other, str) and "/" not in other:
        jobs[other] = {"sink": {"source": "any"}}
    whole = json.dumps({"pipeline": "altered", "jobs": jobs})
    try:
        (pipeline,) = parse_declarations(whole, file=field)
    except PipelineError as error:
        raise InputError(error.message, hint=error.hint, place=field) from error
    assert isinstance(pipeline, Pipeline)
    spec = pipeline.job("altered").sink
    assert spec is not None
    return spec
