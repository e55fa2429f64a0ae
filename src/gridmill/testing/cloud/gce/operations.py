"""Operations: their state, their end, and waiting for it.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations/get and
https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations/wait
"""

from typing import Any

from gridmill.testing.cloud.gce.call import Call, operation_shape
from gridmill.testing.cloud.gce.lists import listing
from gridmill.testing.cloud.gce.records import Operation
from gridmill.testing.cloud.gce.refusal import not_found


def _scope(call: Call) -> str:
    if "zone" in call.place:
        return f"zones/{call.zone}"
    return f"regions/{call.region}" if "region" in call.place else "global"


def get_operation(call: Call) -> dict[str, Any]:
    """Returns an operation."""
    scope, name = _scope(call), call.place["operation"]
    call.require("compute.zoneOperations.get", f"{scope}/operations/{name}")
    operation = call.world.operations.get(name)
    if operation is None or operation.scope != scope:
        raise not_found(f"projects/{call.world.project}/{scope}/operations/{name}")
    return _shape(call, operation)


def list_operations(call: Call) -> dict[str, Any]:
    """Lists the operations of a zone, also those of the system, such as preemptions."""
    scope = _scope(call)
    call.require("compute.zoneOperations.list", scope)
    found = [one for one in call.world.operations.values() if one.scope == scope]
    return listing("operation", [_shape(call, one) for one in found], call.query)


def _shape(call: Call, operation: Operation) -> dict[str, Any]:
    return operation_shape(call, operation, is_done=operation.is_done(call.now))
