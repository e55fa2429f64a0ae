"""The columns of times that a sink's outages and its retention go by."""

import pyarrow as pa

from gridmill.errors import InputError
from gridmill.model.sink import SinkSpec


def check_times(spec: SinkSpec, schema: pa.Schema) -> None:
    """Raise InputError for one that is not there, or holds no times."""
    for number, outage in enumerate(spec.outages):
        _check_time(schema, outage.time, f"sink.outages[{number}].time")
    if spec.retain is not None:
        _check_time(schema, spec.retain.time, "sink.retain.time")


def _check_time(schema: pa.Schema, name: str, place: str) -> None:
    kind = schema.field(name).type if name in schema.names else None
    if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise InputError(
            f"column {name!r} holds no times", hint=f"The sink has {', '.join(schema.names)}.", place=place
        )
