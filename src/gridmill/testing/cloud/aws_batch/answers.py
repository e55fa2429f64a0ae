"""Reads the requests to the simulated AWS Batch and CloudWatch Logs, and writes the answers.

The names, types and required members come from the service models of botocore, which AWS publishes. Sources:
https://smithy.io/2.0/aws/protocols/aws-restjson1-protocol.html and
https://docs.aws.amazon.com/batch/latest/APIReference/CommonErrors.html
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gridmill.testing.cloud.ec2.refusal import RefusalError

_SERVICES = ("batch", "logs")


@lru_cache
def model(service: str) -> Any:  # noqa: ANN401  botocore has no types
    """Returns the model of a service. Raises RefusalError for a service that is not simulated."""
    # imported here, because botocore belongs to the extra `aws`
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    if service not in _SERVICES:
        raise RefusalError("Simulation.NotImplemented", f"The service {service} is not simulated.", 501)
    return ServiceModel(Loader().load_service_model(service, "service-2"), service)


@lru_cache
def _paths() -> dict[str, str]:
    batch = model("batch")
    return {batch.operation_model(one).http["requestUri"]: one for one in batch.operation_names}


def action_of(service: str, path: str, headers: Mapping[str, str]) -> str:
    """Returns the action of a request: Batch has a path for each action, Logs names it in a header. Raises
    RefusalError if the service has no such action."""
    if service == "logs":
        action = headers.get("X-Amz-Target", "").rpartition(".")[2]
    else:
        action = _paths().get(path.partition("?")[0], "")
    if action not in model(service).operation_names:
        raise RefusalError("UnknownOperationException", "The operation is not known.", 404)
    return str(action)


def read_request(service: str, action: str, body: bytes) -> dict[str, Any]:
    """Returns the parameters of a request. Raises RefusalError if a parameter is unknown, is missing or has
    the wrong type."""
    from botocore.validate import ParamValidator

    try:
        given = json.loads(body or b"{}")
    except ValueError as error:
        raise RefusalError("SerializationException", "The request is not valid JSON.") from error
    report = ParamValidator().validate(given, model(service).operation_model(action).input_shape)
    if report.has_errors():
        raise client_error(f"Error executing request, Exception : {report.generate_report()}")
    return dict(given)


def client_error(message: str) -> RefusalError:
    """Returns the error of AWS Batch for a request that is not valid."""
    return RefusalError("ClientException", message)


def write_answer(service: str, action: str, values: Mapping[str, Any]) -> bytes:
    """Returns the body of an answer. Raises KeyError if a value has a name that the model does not have,
    which is a defect of the simulation."""
    shape = model(service).operation_model(action).output_shape
    return json.dumps(_known(shape, values) if shape is not None else {}).encode()


def _known(shape: Any, value: Any) -> Any:  # noqa: ANN401
    match shape.type_name:
        case "structure":
            return {name: _known(shape.members[name], one) for name, one in value.items() if one is not None}
        case "list":
            return [_known(shape.member, one) for one in value]
        case "map":
            return {name: _known(shape.value, one) for name, one in value.items()}
        case _:
            return value


def milliseconds(time: float | None) -> int | None:
    """Returns Unix time in seconds as answers show it."""
    return None if time is None else round(time * 1000)
