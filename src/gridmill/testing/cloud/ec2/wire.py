"""Converts requests and answers of AWS services between HTTP bodies and Python values.

The names, types and required members come from the service models of botocore, which AWS publishes. A request
with a parameter that the model does not have is refused, as AWS does. Values have the names of boto3.
Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html and
https://smithy.io/2.0/aws/protocols/aws-ec2-query-protocol.html
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

from gridmill.testing.cloud.ec2.refusal import RefusalError, invalid, missing

_MODELS = {
    "ec2": "ec2",
    "sts": "sts",
    "iam": "iam",
    "servicequotas": "service-quotas",
    "pricing": "pricing",
}
"""The name of the service in a signature, and the name of its model."""
_NUMBERS = {"integer": int, "long": int, "float": float, "double": float}
_LONGEST_NAME = 128


@lru_cache
def model(service: str) -> Any:  # noqa: ANN401  botocore has no types
    """Returns the model of a service. Raises RefusalError for a service that is not simulated."""
    # imported here, because botocore belongs to the extra `aws`
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    if service not in _MODELS:
        raise RefusalError("Simulation.NotImplemented", f"The service {service} is not simulated.", 501)
    return ServiceModel(Loader().load_service_model(_MODELS[service], "service-2"), service)


def protocol(service: str) -> str:
    """Returns `ec2`, `query` or `json`."""
    return str(model(service).metadata["protocol"])


def action_of(service: str, headers: Mapping[str, str], body: bytes) -> str:
    """Returns the name of the action of a request. Raises RefusalError if the request names none that the
    service has."""
    if protocol(service) == "json":
        action = headers.get("X-Amz-Target", "").rpartition(".")[2]
    else:
        action = dict(parse_qsl(body.decode())).get("Action", "")
    if not action:
        raise RefusalError("MissingAction", "The request must contain the parameter Action")
    if action not in model(service).operation_names:
        raise RefusalError(
            "InvalidAction", f"The action {action[:_LONGEST_NAME]} is not valid for this web service."
        )
    return action


def read_request(service: str, action: str, body: bytes) -> dict[str, Any]:
    """Returns the parameters of a request. Raises RefusalError if a parameter is unknown, is missing or has
    the wrong type."""
    shape = model(service).operation_model(action).input_shape
    if protocol(service) == "json":
        given = json.loads(body or b"{}")
        _check_json(shape, given)
        return dict(given)
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    if form.pop("Action", action) != action or form.pop("Version", _version(service)) != _version(service):
        raise RefusalError("InvalidParameterValue", "The version of the API is not supported.")
    tree: dict[str, Any] = {}
    for name, text in form.items():
        _plant(tree, name, text)
    return dict(_structure(shape, tree, "", protocol(service)))


def _version(service: str) -> str:
    return str(model(service).metadata["apiVersion"])


def _plant(tree: dict[str, Any], name: str, text: str) -> None:
    *branches, leaf = name.split(".")
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if not isinstance(tree, dict):
            raise _unknown(name)
    tree[leaf] = text


def _unknown(name: str) -> RefusalError:
    return RefusalError("UnknownParameter", f"The parameter {name[:_LONGEST_NAME]} is not recognized")


def _structure(shape: Any, tree: Mapping[str, Any], place: str, kind: str) -> dict[str, Any]:  # noqa: ANN401
    members = {} if shape is None else {_request_name(n, m, kind): (n, m) for n, m in shape.members.items()}
    found = {}
    for wire_name, value in tree.items():
        if wire_name not in members:
            raise _unknown(f"{place}{wire_name}")
        name, member = members[wire_name]
        found[name] = _value(member, value, f"{place}{wire_name}", kind)
    for name in shape.required_members if shape is not None else ():
        if name not in found:
            raise missing(f"{place}{_request_name(name, shape.members[name], kind)}")
    return found


def _request_name(name: str, member: Any, kind: str) -> str:  # noqa: ANN401
    serialization = member.serialization
    if kind == "ec2":
        if "queryName" in serialization:
            return str(serialization["queryName"])
        wire_name = str(serialization.get("name", name))
        return wire_name[0].upper() + wire_name[1:]
    return str(serialization.get("name", name))


def _value(shape: Any, value: Any, place: str, kind: str) -> Any:  # noqa: ANN401
    match shape.type_name:
        case "structure":
            return _structure(shape, _branches(value, place), f"{place}.", kind)
        case "list":
            return _list(shape, _branches(value, place), place, kind)
        case _:
            if not isinstance(value, str):
                raise _unknown(f"{place}.{next(iter(value), '')}")
            return _scalar(shape, value, place)


def _branches(value: Any, place: str) -> Mapping[str, Any]:  # noqa: ANN401
    if isinstance(value, str):
        raise _unknown(place)
    return dict(value)


def _list(shape: Any, tree: Mapping[str, Any], place: str, kind: str) -> list[Any]:  # noqa: ANN401
    if kind == "query" and not shape.serialization.get("flattened"):
        tree = _branches(tree.get("member", {}), place)
    numbers = sorted((name for name in tree if name.isdecimal()), key=int)
    if len(numbers) != len(tree):
        raise _unknown(f"{place}.{next(name for name in tree if not name.isdecimal())}")
    return [_value(shape.member, tree[number], f"{place}.{number}", kind) for number in numbers]


def _scalar(shape: Any, text: str, place: str) -> Any:  # noqa: ANN401
    kind = shape.type_name
    try:
        if kind in _NUMBERS:
            return _NUMBERS[kind](text)
        if kind == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if kind == "blob":
            return base64.b64decode(text, validate=True)
        if kind == "timestamp":
            return datetime.fromisoformat(text)
    except (ValueError, KeyError) as error:
        raise invalid(text[:_LONGEST_NAME], place) from error
    return text


def _check_json(shape: Any, given: Mapping[str, Any]) -> None:  # noqa: ANN401
    # The JSON protocols ignore members that the model does not have, so only missing members are refused.
    for name in shape.required_members:
        if name not in given:
            raise RefusalError("ValidationException", f"Value null at '{name}' failed to satisfy constraint")


def write_answer(service: str, action: str, values: Mapping[str, Any], request_id: str) -> bytes:
    """Returns the body of the answer to a request. Raises KeyError if a value has a name that the model does
    not have, which is a defect of the simulation."""
    operation = model(service).operation_model(action)
    shape = operation.output_shape
    if protocol(service) == "json":
        return json.dumps(values, default=_json_value).encode()
    root = ElementTree.Element(
        f"{action}Response", {"xmlns": str(model(service).metadata["xmlNamespace"]).rstrip("/") + "/"}
    )
    if protocol(service) == "ec2":
        ElementTree.SubElement(root, "requestId").text = request_id
        _write_structure(root, shape, values)
    else:
        if shape is not None:
            _write_structure(
                ElementTree.SubElement(root, shape.serialization["resultWrapper"]), shape, values
            )
        metadata = ElementTree.SubElement(root, "ResponseMetadata")
        ElementTree.SubElement(metadata, "RequestId").text = request_id
    return _document(root)


def _document(root: ElementTree.Element) -> bytes:
    return bytes(ElementTree.tostring(root, encoding="UTF-8", xml_declaration=True))


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{value!r} is not a JSON value")


def _write_structure(parent: ElementTree.Element, shape: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401
    for name, value in values.items():
        member = shape.members[name]
        if value is not None:
            _write(parent, str(member.serialization.get("name", name)), member, value)


def _write(parent: ElementTree.Element, wire_name: str, shape: Any, value: Any) -> None:  # noqa: ANN401
    element = ElementTree.SubElement(parent, wire_name)
    match shape.type_name:
        case "structure":
            _write_structure(element, shape, value)
        case "list":
            for item in value:
                _write(element, str(shape.member.serialization.get("name", "member")), shape.member, item)
        case _:
            element.text = _text(value)


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        case _:
            return str(value)


def write_error(service: str, error: RefusalError, request_id: str) -> bytes:
    """Returns the body of an error answer, in the format of the service."""
    kind = protocol(service) if service in _MODELS else "ec2"
    if kind == "json":
        return json.dumps({"__type": error.aws_code, "message": error.message}).encode()
    root = ElementTree.Element("Response" if kind == "ec2" else "ErrorResponse")
    parent = ElementTree.SubElement(root, "Errors") if kind == "ec2" else root
    element = ElementTree.SubElement(parent, "Error")
    if kind == "query":
        ElementTree.SubElement(element, "Type").text = "Sender" if error.status < 500 else "Receiver"
    ElementTree.SubElement(element, "Code").text = error.aws_code
    ElementTree.SubElement(element, "Message").text = error.message
    ElementTree.SubElement(root, "RequestID" if kind == "ec2" else "RequestId").text = request_id
    return _document(root)


def moment(seconds: float) -> datetime:
    """Returns Unix time in seconds as a time that answers can contain."""
    return datetime.fromtimestamp(seconds, UTC)
