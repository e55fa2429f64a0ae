"""Orders and reports of services are stored as JSON, and an older file lacks newer fields."""

import pytest

from gridmill.codec import decode, encode
from gridmill.domain.serving import (
    LoadedVersion,
    ReplicaReport,
    ReplicaState,
    RequestLog,
    ServedVersion,
    ServiceOrder,
    ServiceReport,
    ServiceState,
    Verification,
)
from gridmill.errors import InputError

ORDER = ServiceOrder(
    name="weather",
    generation=3,
    versions=(
        ServedVersion(label="weather/lstm@3", folder="/m/3", weight=9),
        ServedVersion(label="weather/lstm@4", folder="/m/4"),
    ),
    request_log=RequestLog(folder="/logs", fraction=0.1),
)
REPORT = ServiceReport(
    name="weather",
    state=ServiceState.READY,
    generation=3,
    seen_generation=3,
    address="http://127.0.0.1:8100",
    host="127.0.0.1",
    port=8100,
    pid=12,
    started_at=1.5,
    written_at=2.5,
    replicas=(
        ReplicaReport(
            number=0,
            state=ReplicaState.READY,
            generation=3,
            pid=13,
            versions=(LoadedVersion(label="weather/lstm@3", verification=Verification.VERIFIED),),
        ),
    ),
)


@pytest.mark.parametrize("record", [ORDER, REPORT], ids=["order", "report"])
def test_a_record_is_equal_after_it_was_stored(record: ServiceOrder | ServiceReport):
    assert decode(encode(record), type(record)) == record


def test_an_order_needs_a_name_and_versions():
    order = decode(b'{"name": "a", "versions": [{"label": "m@1", "folder": "/m"}]}', ServiceOrder)
    assert (order.generation, order.replicas, order.max_wait_seconds) == (1, 1, 0.0)
    with pytest.raises(InputError, match="versions"):
        decode(b'{"name": "a"}', ServiceOrder)
